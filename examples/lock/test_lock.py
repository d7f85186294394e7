"""Tests of the lock on a cluster in memory; run them with pytest where onyxq and onyxq-lock are installed."""

from onyxq_lock import Lock, acquire, expire, release

from onyxq.testing import Cluster, check_extension


def test_a_lock_is_held_by_one_and_freed_when_its_holder_dies(onyxq_cluster: Cluster) -> None:
    """Tokens rise with every holder, also after a peer has died."""
    one, other = (Lock(onyxq_cluster.client(), "db", owner) for owner in ("one", "other"))
    first = one.acquire()
    assert first is not None and one.acquire() == first and other.acquire() is None
    assert one.release(first) and not one.release(first)
    second = other.acquire()
    onyxq_cluster.kill_peer()
    onyxq_cluster.advance(20)
    assert onyxq_cluster.client().extension("lock") == {}
    assert first < second < one.acquire() and not other.release(second)


def test_the_entries_keep_their_promises() -> None:
    """The entries are pure, never raise, and change only the locks."""
    assert check_extension({"lock.acquire": acquire, "lock.release": release, "lock.expire": expire}) == []
