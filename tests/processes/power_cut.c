/* A disk that loses unsynced writes, for a process that preloads this library.

   Each sync of a file below $POWER_ROOT copies the file to $POWER_DISK/<inode>.  A write through a descriptor with
   O_SYNC or O_DSYNC copies only the written bytes.  A power cut leaves what is in $POWER_DISK.  The library appends
   syncs and renames to $POWER_DISK/events, one per line: `sync PATH`, `rename PATH`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int below_root(const char *path) {
    const char *root = getenv("POWER_ROOT");
    return root && strncmp(path, root, strlen(root)) == 0;
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return below_root(path);
}

static void note(const char *what, const char *path) {
    char file[PATH_MAX], line[PATH_MAX + 16];
    snprintf(file, sizeof file, "%s/events", getenv("POWER_DISK"));
    int size = snprintf(line, sizeof line, "%s %s\n", what, path);
    int out = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (out < 0 || write(out, line, size) != size) abort();
    close(out);
}

static int shadow(int fd) {
    struct stat found;
    char path[PATH_MAX];
    if (fstat(fd, &found)) abort();
    snprintf(path, sizeof path, "%s/%lu", getenv("POWER_DISK"), (unsigned long)found.st_ino);
    int out = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0) abort();
    return out;
}

static void copy(int fd) {
    char path[64], block[65536];
    struct stat found;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int in = open(path, O_RDONLY | O_CLOEXEC), out = shadow(fd);
    if (in < 0 || fstat(in, &found) || ftruncate(out, found.st_size)) abort();
    off_t at = 0;
    for (ssize_t size; (size = pread(in, block, sizeof block, at)) > 0; at += size)
        for (ssize_t done = 0, part; done < size; done += part) {
            REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
            if ((part = real(out, block + done, size - done, at + done)) < 0) abort();
        }
    close(in);
    close(out);
}

static void synced(int fd) {
    char path[PATH_MAX];
    struct stat found;
    if (!path_of(fd, path) || fstat(fd, &found)) return;
    pthread_mutex_lock(&one);
    if (S_ISREG(found.st_mode)) copy(fd);
    note("sync", path);
    pthread_mutex_unlock(&one);
}

static void written(int fd, const void *bytes, ssize_t size, off_t at) {
    char path[PATH_MAX];
    int flags = size > 0 ? fcntl(fd, F_GETFL) : 0;
    if (size <= 0 || flags < 0 || !(flags & (O_DSYNC | O_SYNC)) || !path_of(fd, path)) return;
    pthread_mutex_lock(&one);
    int out = shadow(fd);
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    if (real(out, bytes, size, at) != size) abort();
    close(out);
    note("sync", path);
    pthread_mutex_unlock(&one);
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    int result = real(fd);
    if (!result) synced(fd);
    return result;
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    int result = real(fd);
    if (!result) synced(fd);
    return result;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    ssize_t done = real(fd, bytes, size, at);
    written(fd, bytes, done, at);
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t at) { return pwrite(fd, bytes, size, at); }

/* Forget the durable copy of a file that is deleted: the next file may get its inode. */
static void gone(const char *path) {
    char whole[PATH_MAX], file[PATH_MAX];
    struct stat found;
    if (!realpath(path, whole) || !below_root(whole) || lstat(whole, &found) || !S_ISREG(found.st_mode)) return;
    if (found.st_nlink > 1) return;
    snprintf(file, sizeof file, "%s/%lu", getenv("POWER_DISK"), (unsigned long)found.st_ino);
    REAL(int, "unlink", const char *);
    real(file);
}

static void moved(const char *path) {
    char whole[PATH_MAX];
    if (realpath(path, whole) && below_root(whole)) {
        pthread_mutex_lock(&one);
        note("rename", whole);
        pthread_mutex_unlock(&one);
    }
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    gone(to);
    int result = real(from, to);
    if (!result) moved(to);
    return result;
}

int renameat(int old, const char *from, int new, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    if (new == AT_FDCWD) gone(to);
    int result = real(old, from, new, to);
    if (!result && new == AT_FDCWD) moved(to);
    return result;
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    gone(path);
    return real(path);
}

int unlinkat(int directory, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    if (directory == AT_FDCWD) gone(path);
    return real(directory, path, flags);
}
