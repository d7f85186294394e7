"""The credential for ZooKeeper, and the access lists of the znodes that are made there.

With a credential, every znode belongs to it alone: no other client reads, changes or deletes it.
The directory of all clusters, ``/onyxq``, is the exception.  Other clients may make their clusters in
it, and delete them.  ZooKeeper deletes no directory that is not empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve, field, frozen
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from onyxq.access.credentials import ZookeeperCredentials
from onyxq.core.errors import BadRequest, Incomplete

REFUSED = NoAuthError


@frozen
class Shown:
    """A credential in the forms that kazoo wants."""

    acl: Sequence[Any]
    """Access list of every znode below a cluster's root."""
    root_acl: Sequence[Any]
    """Access list of the directory of all clusters."""
    options: dict[str, Any] = field(repr=False)
    """Options for kazoo's client."""
    owned: bool = False
    """Whether znodes belong to a credential."""


NOTHING = Shown(OPEN_ACL_UNSAFE, OPEN_ACL_UNSAFE, {})
"""Access lists and options without a credential."""


def shown(given: ZookeeperCredentials) -> Shown:
    """Return the forms of a credential; raises `BadRequest` and `Incomplete`."""
    options = _tls(given)
    if not given.auth:
        return evolve(NOTHING, options=options)
    scheme, _, rest = given.auth.partition(":")
    user, colon, password = rest.partition(":")
    if scheme not in ("digest", "sasl") or not (user and colon and password):
        raise BadRequest("zookeeper_auth must be digest:USER:PASSWORD or sasl:USER:PASSWORD", field="zookeeper_auth")
    if scheme == "digest":
        own = make_digest_acl(user, password, all=True)
        options["auth_data"] = [("digest", f"{user}:{password}")]
    else:
        _check_sasl()
        own = make_acl("sasl", user, all=True)
        options["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
    others = make_acl("world", "anyone", read=True, create=True, delete=True)
    return Shown([own], [own, others], {**options, "default_acl": [own]}, owned=True)


def _tls(given: ZookeeperCredentials) -> dict[str, Any]:
    if not given.ca:
        return {}
    certified = {"certfile": given.cert, "keyfile": given.key} if given.cert else {}
    return {"use_ssl": True, "ca": given.ca, "check_hostname": True, **certified}


def _check_sasl() -> None:
    try:
        import puresasl  # noqa: F401  # kazoo uses it
    except ImportError:
        raise Incomplete(
            "SASL with ZooKeeper needs the package pure-sasl, which is not installed",
            hint="Install it with: pip install 'onyxq[sasl]'",
        ) from None
