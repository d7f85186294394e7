"""Reads credentials from settings, and from files that other users may not read.

The file is TOML::

    peer_secret = "..."

    [[tokens]]
    name = "mailers"
    sha256 = "..."                      # or token = "..."
    roles = ["consume:mail.", "read"]
    rate = 100                          # requests per second at each peer; without it, unlimited

The setting ``tokens`` has the same in one line: ``TOKEN=ROLE+ROLE:PREFIX``, with spaces between tokens.
TOKEN may be ``sha256:HEX``.
"""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Any

from onyxq.access.grants import TOKEN_CHARS_MIN, Access, Token
from onyxq.core.errors import BadRequest

_KNOWN = ("name", "token", "sha256", "roles", "rate")
RATE_MAX = 1_000_000


def load_access(file: str = "", *, tokens: str = "", peer_secret: str = "") -> Access:
    """Return the credentials of a file and of the settings ``tokens`` and ``peer_secret``; raises `BadRequest`."""
    found = list(_said(tokens))
    if file:
        content = _read(file)
        for name in content:
            if name not in ("tokens", "peer_secret"):
                raise BadRequest(f"{file}: there is no setting {name!r}", field="access")
        listed = content.get("tokens", [])
        if not isinstance(listed, list):
            raise BadRequest(f"{file}: write each token as [[tokens]]", field="access")
        found += [_listed(file, place, one) for place, one in enumerate(listed)]
        peer_secret = peer_secret or _text(file, content.get("peer_secret", ""), "peer_secret")
    if peer_secret and len(peer_secret) < TOKEN_CHARS_MIN:
        raise BadRequest(f"peer_secret must have {TOKEN_CHARS_MIN} characters or more", field="peer_secret")
    if peer_secret and not found:
        raise BadRequest("peer_secret is set, but there is no token, so no client could use this peer", field="tokens")
    digests = [token.digest for token in found]
    if len(set(digests)) < len(digests):
        raise BadRequest("the same token is given twice", field="tokens")
    return Access(tuple(found), peer_secret or None)


def check_private(path: str, *, field: str) -> None:
    """Raise `BadRequest` if users other than a file's owner and group may read or write it."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}", field=field) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise BadRequest(
            f"{path} holds secrets, and all users of this machine may read or write it",
            field=field,
            hint=f"chmod 640 {path}",
        )


def _read(file: str) -> dict[str, Any]:
    check_private(file, field="access")
    try:
        return tomllib.loads(Path(file).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{file}: {error}", field="access") from None
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{file} is not TOML: {error}", field="access") from None


def _listed(file: str, place: int, one: Any) -> Token:
    where = f"{file}: tokens[{place}]"
    if not isinstance(one, dict):
        raise BadRequest(f"{where} must be a table", field="access")
    for name in one:
        if name not in _KNOWN:
            raise BadRequest(f"{where} has no setting {name!r}; it has {', '.join(_KNOWN)}", field="access")
    text, digest = _text(where, one.get("token", ""), "token"), _text(where, one.get("sha256", ""), "sha256")
    if bool(text) == bool(digest):
        raise BadRequest(f"{where} needs token or sha256, and not both", field="access")
    roles = one.get("roles")
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise BadRequest(f"{where} needs roles, a list of ROLE and ROLE:PREFIX", field="access")
    rate = one.get("rate")
    if rate is not None and (type(rate) is not int or not 1 <= rate <= RATE_MAX):
        raise BadRequest(f"{where}: rate must be 1 to {RATE_MAX} requests a second", field="access")
    name = _text(where, one.get("name", f"token {place + 1}"), "name")
    return _token(f"sha256:{digest}" if digest else text, name, roles, where, rate)


def _said(tokens: str) -> list[Token]:
    found = []
    for place, one in enumerate(tokens.split()):
        where = f"tokens: the {place + 1}. one"
        text, equals, roles = one.partition("=")
        if not equals or not text:
            raise BadRequest(f"{where} is not TOKEN=ROLE+ROLE:PREFIX", field="tokens")
        found.append(_token(text, f"token {place + 1}", roles.split("+"), where))
    return found


def _token(text: str, name: str, roles: list[str], where: str, rate: int | None = None) -> Token:
    if text.startswith("sha256:") and len(text) != len("sha256:") + 64:
        raise BadRequest(f"{where}: a SHA-256 has 64 hex digits", field="tokens")
    if len(text) < TOKEN_CHARS_MIN:
        raise BadRequest(f"{where}: a token must have {TOKEN_CHARS_MIN} characters or more", field="tokens")
    try:
        return Token.of(text, name, roles, rate=rate)
    except BadRequest as error:
        raise BadRequest(f"{where}: {error.message}", field="tokens") from None


def _text(where: str, value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{where}: {name} must be text", field="access")
    return value
