"""A distributed lock with fencing tokens. State: name -> (owner, token, deadline in log time)."""

from onyxq import Client


class Lock:
    """A lock from the view of one owner; its name is shared by all clients of the cluster."""

    def __init__(self, client: Client, name: str, owner: str, lease_ms: int = 10_000) -> None:
        self._client, self._name = client, name
        self._args = {"name": name, "owner": owner, "lease_ms": lease_ms}

    def acquire(self) -> int | None:
        """Take the lock, or renew its lease; return the token to send with all work, None if another owner has it."""
        done = self._client.submit_entry("lock.acquire", self._args)
        owner, token, _ = self._client.extension("lock", seen=done.position).get(self._name, ("", 0, 0))
        return token if done.applied and owner == self._args["owner"] else None

    def release(self, token: int) -> bool:
        """Release the lock; return False if this token no longer held it."""
        return self._client.submit_entry("lock.release", {"name": self._name, "token": token}).applied
