"""A distributed lock with fencing tokens. State: name -> (owner, token, deadline in log time)."""

from onyxq import Client


class Lock:
    """A lock as one owner sees it; names are shared by all who use the cluster."""

    def __init__(self, client: Client, name: str, owner: str, lease_ms: int = 10_000) -> None:
        self._client, self._name = client, name
        self._args = {"name": name, "owner": owner, "lease_ms": lease_ms}

    def acquire(self) -> int | None:
        """The token, to go with all that the lock protects; None while another has it. Again: renews the lease."""
        done = self._client.submit_entry("lock.acquire", self._args)
        owner, token, _ = self._client.extension("lock", seen=done.position).get(self._name, ("", 0, 0))
        return token if done.applied and owner == self._args["owner"] else None

    def release(self, token: int) -> bool:
        """Let others have it; False if it was not held under this token any more."""
        return self._client.submit_entry("lock.release", {"name": self._name, "token": token}).applied
