"""Roles, and tokens that give them, each on the queues of a prefix or on all.

A token is known here by the SHA-256 of its text only: whoever reads the configuration or a
memory dump learns no token.  A role is written ``ROLE``, or ``ROLE:PREFIX`` where it holds
for the queues whose names begin with the prefix.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping

from attrs import define, evolve, field, frozen

from onyxq.core.errors import BadRequest, Overloaded, Unauthorized

ROLES: Mapping[str, tuple[str, ...]] = {
    "read": ("read",),
    "produce": ("produce",),
    "consume": ("consume",),
    "operate": ("operate", "read"),
    "admin": ("admin", "operate", "consume", "produce", "read"),
}
"""What each role of a token may be used as."""
ALIASES: Mapping[str, tuple[str, ...]] = {"write": ("consume", "produce", "read")}
"""Words for several roles at a time."""
TOKEN_CHARS_MIN = 16
"""Shorter tokens could be guessed."""

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


@define
class Pace:
    """A bound on requests a second, over all connections of a node; one second's worth may come at once."""

    rate: int
    _left: float = field(init=False, eq=False, repr=False)
    _at: float = field(init=False, eq=False, repr=False, default=0.0)

    @_left.default
    def _whole(self) -> float:
        return float(self.rate)

    def take(self, now_s: float) -> None:
        """Count a request at a monotonic time; raises `Overloaded`."""
        self._left = min(float(self.rate), self._left + (now_s - self._at) * self.rate)
        self._at = now_s
        if self._left < 1:
            raise Overloaded(f"more than {self.rate} requests a second came with this token")
        self._left -= 1


@frozen
class Grants:
    """What a caller may do: for each role the prefixes of the queues on which it has it."""

    name: str = field(eq=False)
    """What its token is called, for logs; no secret."""
    prefixes: Mapping[str, tuple[str, ...]]
    """Role -> prefixes; the empty one means every queue."""
    pace: Pace | None = field(default=None, repr=False)
    """How many requests a second; None: any number."""

    def has(self, role: str) -> bool:
        """Whether it has the role, on whatever queues."""
        return role in self.prefixes

    def everywhere(self, role: str) -> bool:
        """Whether it has the role on every queue."""
        return "" in self.prefixes.get(role, ())

    def on(self, role: str, queue: str) -> bool:
        """Whether it has the role on a queue."""
        return queue.startswith(self.prefixes.get(role, ()))


def grants_of(name: str, roles: Iterable[str]) -> Grants:
    """What a list of ``ROLE`` and ``ROLE:PREFIX`` gives; raises `BadRequest`."""
    found: dict[str, set[str]] = {}
    for one in roles:
        role, colon, prefix = one.partition(":")
        known = {**ROLES, **ALIASES}.get(role)
        if known is None:
            raise BadRequest(f"unknown role {role!r}; roles are {', '.join(ROLES)}", field="tokens")
        if colon and not prefix:
            raise BadRequest(f"{one!r} has no prefix behind the colon", field="tokens")
        for implied in known:
            found.setdefault(implied, set()).add(prefix)
    if not found:
        raise BadRequest(f"token {name!r} has no role; roles are {', '.join(ROLES)}", field="tokens")
    return Grants(name, {role: tuple(sorted(prefixes)) for role, prefixes in sorted(found.items())})


ALL = grants_of("", ("admin",))
"""May do everything."""


@frozen
class Token:
    """A token as it is configured."""

    digest: bytes = field(repr=False)
    grants: Grants

    @classmethod
    def of(cls, text: str, name: str, roles: Iterable[str], *, rate: int | None = None) -> Token:
        """The token of a text, or of its digest as ``sha256:HEX``; ``rate``: requests a second. Raises `BadRequest`."""
        hashed = _DIGEST.fullmatch(text)
        digest = bytes.fromhex(hashed[1]) if hashed else digest_of(text)
        grants = grants_of(name, roles)
        return cls(digest, grants if rate is None else evolve(grants, pace=Pace(rate)))

    def at_pace(self, pace: Pace | None) -> Token:
        """The token, with a pace that was begun if it is of its rate."""
        return evolve(self, grants=evolve(self.grants, pace=pace)) if pace == self.grants.pace else self


def digest_of(text: str) -> bytes:
    """What a token is known by."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@define
class Access:
    """The credentials that a node asks for; without any, none is asked for.  `renew` replaces the tokens."""

    tokens: tuple[Token, ...] = ()
    peer_secret: str | None = field(default=None, repr=False)
    """What peers show each other."""
    _session_key: bytes = field(init=False, repr=False, eq=False, default=b"")

    def session(self, token: str, until_ms: int) -> str:
        """Return a session that does not contain the token, valid until a time at every peer with the same secret."""
        said = f"{until_ms}.{digest_of(token).hex()}"
        return f"{said}.{self._signature(said)}"

    def digest_of_session(self, text: str, now_ms: int) -> bytes | None:
        """Return the digest of a session's token; None if the session has ended or was not made by these peers."""
        said, _, signature = text.rpartition(".")
        if not hmac.compare_digest(self._signature(said).encode(), signature.encode("utf-8", "surrogatepass")):
            return None
        until_ms, _, digest = said.partition(".")
        return bytes.fromhex(digest) if now_ms < int(until_ms) else None

    def _signature(self, said: str) -> str:
        if not self._session_key:
            self._session_key = _session_key(self.peer_secret)
        return hmac.new(self._session_key, said.encode("utf-8", "surrogatepass"), "sha256").hexdigest()

    def __bool__(self) -> bool:
        return bool(self.tokens or self.peer_secret)

    def of_token(self, text: str | None) -> Grants:
        """What a token gives; raises `Unauthorized`.

        Every token is compared, each in constant time: how long it takes tells nothing.
        """
        if not text:
            raise Unauthorized("a token is needed", field="token")
        found = self.of_digest(digest_of(text))
        if found is None:
            raise Unauthorized("the token is not known", field="token")
        return found

    def of_digest(self, digest: bytes) -> Grants | None:
        """What the token of a digest gives; None if there is none."""
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token.grants
        return found

    def renew(self, other: Access) -> None:
        """Ask for the other's tokens from now on; raises `BadRequest` for what is fixed for the life of a peer.

        A token with the same rate as before goes on at its pace.
        """
        again = "Start the peer again."
        if bool(other) != bool(self):
            raise BadRequest("a peer that runs does not begin or cease to ask for tokens", field="tokens", hint=again)
        if other.peer_secret not in (None, self.peer_secret):
            raise BadRequest(
                "a peer that runs keeps its peer_secret", field="peer_secret", hint="Stop all peers first."
            )
        paces = {token.digest: token.grants.pace for token in self.tokens}
        self.tokens = tuple(token.at_pace(paces.get(token.digest)) for token in other.tokens)

    def check_peer(self, credential: str | None) -> None:
        """Raise `Unauthorized` unless it is the secret that the peers share."""
        secret = self.peer_secret or ""
        if not secret or not hmac.compare_digest(digest_of(secret), digest_of(credential or "")):
            raise Unauthorized(
                "the peers' secret is needed", field="credential", hint="Give every peer the same peer_secret."
            )


def _session_key(peer_secret: str | None) -> bytes:
    """The key of sessions, the same at peers with the same secret; slow, so that no signature helps to guess it."""
    if peer_secret is None:
        return secrets.token_bytes(32)
    return hashlib.scrypt(peer_secret.encode("utf-8", "surrogatepass"), salt=b"onyxq sessions", n=1 << 14, r=8, p=1)


OPEN = Access()
"""Asks for no credential."""
