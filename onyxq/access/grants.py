"""Roles, and bearer tokens that give them, each on the queues of a prefix or on all.

A bearer token is kept only as the SHA-256 of its text, so the configuration or a memory dump
reveals no token.  A role is written ``ROLE``, or ``ROLE:PREFIX`` if it is limited to the queues
whose names begin with the prefix.
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
"""Role of a token -> roles that it includes."""
ALIASES: Mapping[str, tuple[str, ...]] = {"write": ("consume", "produce", "read")}
"""Words for several roles at a time."""
TOKEN_CHARS_MIN = 16
"""Fewest characters of a token; shorter ones could be guessed."""

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


@define
class Pace:
    """A limit on requests per second over all connections of a node, with bursts of one second's worth."""

    rate: int
    _left: float = field(init=False, eq=False, repr=False)
    _at: float = field(init=False, eq=False, repr=False, default=0.0)

    @_left.default
    def _whole(self) -> float:
        return float(self.rate)

    def take(self, now_s: float) -> None:
        """Count a request at a monotonic time in seconds; raises `Overloaded`."""
        self._left = min(float(self.rate), self._left + (now_s - self._at) * self.rate)
        self._at = now_s
        if self._left < 1:
            raise Overloaded(f"more than {self.rate} requests a second came with this token")
        self._left -= 1


@frozen
class Grants:
    """Permissions of a caller: for each role the prefixes of the queues on which it has the role."""

    name: str = field(eq=False)
    """Name of the bearer token, for logs; not secret."""
    prefixes: Mapping[str, tuple[str, ...]]
    """Role -> prefixes; the empty one means every queue."""
    pace: Pace | None = field(default=None, repr=False)
    """Limit on requests per second; None: unlimited."""

    def has(self, role: str) -> bool:
        """Return whether the caller has the role on any queue."""
        return role in self.prefixes

    def everywhere(self, role: str) -> bool:
        """Return whether the caller has the role on every queue."""
        return "" in self.prefixes.get(role, ())

    def on(self, role: str, queue: str) -> bool:
        """Return whether the caller has the role on a queue."""
        return queue.startswith(self.prefixes.get(role, ()))


def grants_of(name: str, roles: Iterable[str]) -> Grants:
    """Return the grants of a list of ``ROLE`` and ``ROLE:PREFIX``; raises `BadRequest`."""
    found: dict[str, set[str]] = {}
    for one in roles:
        role, colon, prefix = one.partition(":")
        known = {**ROLES, **ALIASES}.get(role)
        if known is None:
            raise BadRequest(f"unknown role {role!r}; roles are {', '.join(ROLES)}", field="tokens")
        if colon and not prefix:
            raise BadRequest(f"{one!r} has no prefix after the colon", field="tokens")
        for implied in known:
            found.setdefault(implied, set()).add(prefix)
    if not found:
        raise BadRequest(f"token {name!r} has no role; roles are {', '.join(ROLES)}", field="tokens")
    return Grants(name, {role: tuple(sorted(prefixes)) for role, prefixes in sorted(found.items())})


ALL = grants_of("", ("admin",))
"""All permissions."""


@frozen
class Token:
    """A bearer token as configured."""

    digest: bytes = field(repr=False)
    grants: Grants

    @classmethod
    def of(cls, text: str, name: str, roles: Iterable[str], *, rate: int | None = None) -> Token:
        """Return the token of a text, or of its digest as ``sha256:HEX``; raises `BadRequest`.

        ``rate``: requests per second.
        """
        hashed = _DIGEST.fullmatch(text)
        digest = bytes.fromhex(hashed[1]) if hashed else digest_of(text)
        grants = grants_of(name, roles)
        return cls(digest, grants if rate is None else evolve(grants, pace=Pace(rate)))

    def at_pace(self, pace: Pace | None) -> Token:
        """Return the token with this pace, which has counted already, if its rate is the same."""
        return evolve(self, grants=evolve(self.grants, pace=pace)) if pace == self.grants.pace else self


def digest_of(text: str) -> bytes:
    """Return the digest that identifies a bearer token."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@define
class Access:
    """Credentials that a node requires; if there are none, it requires none.  `renew` replaces the tokens."""

    tokens: tuple[Token, ...] = ()
    peer_secret: str | None = field(default=None, repr=False)
    """Secret that peers present to each other."""
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
        """Return the grants of a bearer token; raises `Unauthorized`.

        Every token is compared, each in constant time, so the duration reveals nothing.
        """
        if not text:
            raise Unauthorized("a token is needed", field="token")
        found = self.of_digest(digest_of(text))
        if found is None:
            raise Unauthorized("the token is not known", field="token")
        return found

    def of_digest(self, digest: bytes) -> Grants | None:
        """Return the grants of the token with a digest, or None."""
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token.grants
        return found

    def renew(self, other: Access) -> None:
        """Require the other's tokens from now on.

        Raises `BadRequest` for changes that need a restart of the peer. A token with an unchanged
        rate keeps its pace.
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
    """Return the key of sessions, equal at peers with the same secret."""
    return secrets.token_bytes(32) if peer_secret is None else derived_key(peer_secret, b"onyxq sessions")


def derived_key(peer_secret: str, purpose: bytes) -> bytes:
    """Return a key of 64 bytes for a purpose, equal at peers with the same secret.

    The derivation is slow, so that what is made with the key does not help to guess the secret.
    """
    return hashlib.scrypt(peer_secret.encode("utf-8", "surrogatepass"), salt=purpose, n=1 << 14, r=8, p=1)


OPEN = Access()
"""No required credentials."""
