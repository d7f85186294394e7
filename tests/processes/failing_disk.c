/* A disk that fails, for one process: preload it, and name a control file of 64 bytes in FAILING_DISK.

   The control file holds eight 64-bit numbers, which a test changes while the process runs:
   what fails, how many times still, with which error, the offset and the inode of a page that
   cannot be read, and how often something has failed.  Only files of stores and of embedded logs fail (*.mdb, *.records). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, WRITES, META_WRITES, SYNCS };
enum { KIND, COUNT, ERROR, OFFSET, INODE, HITS, NUMBERS = 8 };
#define PAGE 4096
#define MAPS_MAX 64

static volatile int64_t *control(void) {
    static volatile int64_t *numbers;
    const char *path;
    int fd;
    if (numbers || !(path = getenv("FAILING_DISK")))
        return numbers;
    if ((fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
        return NULL;
    static void *(*map)(void *, size_t, int, int, int, off_t);
    map = dlsym(RTLD_NEXT, "mmap");
    void *found = map(NULL, NUMBERS * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return numbers = found == MAP_FAILED ? NULL : found;
}

static int is_data(int fd) {
    char link[64], path[1024];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    return strstr(path, ".mdb") || strstr(path, ".records");
}

/* Tell FAILING_DISK_TRACE of a call, as "what offset". */
static void trace(int fd, const char *what, off_t at) {
    static int out = -1;
    const char *path;
    if (out < 0 && (path = getenv("FAILING_DISK_TRACE")))
        out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (out >= 0 && is_data(fd))
        dprintf(out, "%s %lld\n", what, (long long)at);
}

/* Whether a call on a file fails now; counts it. */
static int fails(int fd, int kind) {
    volatile int64_t *numbers = control();
    if (!numbers || numbers[KIND] != kind || numbers[COUNT] <= 0 || !is_data(fd))
        return 0;
    if (__atomic_fetch_sub(&numbers[COUNT], 1, __ATOMIC_SEQ_CST) <= 0)
        return 0;
    __atomic_fetch_add(&numbers[HITS], 1, __ATOMIC_SEQ_CST);
    errno = (int)numbers[ERROR];
    return 1;
}

static int unreadable(int fd, off_t from, size_t size) {
    volatile int64_t *numbers = control();
    struct stat about;
    if (!numbers || !numbers[INODE] || fstat(fd, &about) || (int64_t)about.st_ino != numbers[INODE])
        return 0;
    if (from >= numbers[OFFSET] + PAGE || from + (off_t)size <= numbers[OFFSET])
        return 0;
    __atomic_fetch_add(&numbers[HITS], 1, __ATOMIC_SEQ_CST);
    errno = EIO;
    return 1;
}

static struct { char *at; size_t size; int64_t inode; } maps[MAPS_MAX];

/* Have the process be killed with SIGBUS if it touches the page that cannot be read. */
static void spoil(void) {
    static void *(*map)(void *, size_t, int, int, int, off_t);
    static int empty = -1;
    volatile int64_t *numbers = control();
    if (!numbers || !numbers[INODE])
        return;
    if (!map)
        map = dlsym(RTLD_NEXT, "mmap");
    if (empty < 0)
        empty = memfd_create("empty", MFD_CLOEXEC);
    for (int i = 0; i < MAPS_MAX; i++)
        if (maps[i].at && maps[i].inode == numbers[INODE] && numbers[OFFSET] + PAGE <= (int64_t)maps[i].size)
            map(maps[i].at + numbers[OFFSET], PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, empty, 0);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    struct stat about;
    if (!real)
        real = dlsym(RTLD_NEXT, "mmap");
    void *found = real(at, size, protection, flags, fd, offset);
    if (found == MAP_FAILED || fd < 0 || offset || !is_data(fd) || fstat(fd, &about))
        return found;
    for (int i = 0; i < MAPS_MAX; i++)
        if (!maps[i].at || maps[i].at == found) {
            maps[i].size = size;
            maps[i].inode = (int64_t)about.st_ino;
            maps[i].at = found;
            break;
        }
    spoil();
    return found;
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(at, size, protection, flags, fd, offset);
}

int munmap(void *at, size_t size) {
    static int (*real)(void *, size_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "munmap");
    for (int i = 0; i < MAPS_MAX; i++)
        if (maps[i].at == at)
            maps[i].at = NULL;
    return real(at, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "pwrite");
    if (fails(fd, WRITES) || (at < 2 * PAGE && fails(fd, META_WRITES)))
        return -1;
    trace(fd, "write", at);
    return real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "pwritev");
    trace(fd, "write", at);
    return fails(fd, WRITES) ? -1 : real(fd, parts, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return pwritev(fd, parts, count, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real)
        real = dlsym(RTLD_NEXT, "writev");
    trace(fd, "write", lseek(fd, 0, SEEK_CUR));
    return fails(fd, WRITES) ? -1 : real(fd, parts, count);
}

ssize_t write(int fd, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "write");
    return fails(fd, WRITES) ? -1 : real(fd, data, size);
}

ssize_t read(int fd, void *data, size_t size) {
    static ssize_t (*real)(int, void *, size_t);
    volatile int64_t *numbers = control();
    if (!real)
        real = dlsym(RTLD_NEXT, "read");
    if (numbers && numbers[INODE] && unreadable(fd, lseek(fd, 0, SEEK_CUR), size))
        return -1;
    return real(fd, data, size);
}

ssize_t pread(int fd, void *data, size_t size, off_t at) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "pread");
    return unreadable(fd, at, size) ? -1 : real(fd, data, size, at);
}

ssize_t pread64(int fd, void *data, size_t size, off_t at) { return pread(fd, data, size, at); }

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real)
        real = dlsym(RTLD_NEXT, "fdatasync");
    spoil();
    trace(fd, "sync", 0);
    return fails(fd, SYNCS) ? -1 : real(fd);
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real)
        real = dlsym(RTLD_NEXT, "fsync");
    return fails(fd, SYNCS) ? -1 : real(fd);
}

