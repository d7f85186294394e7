"""Access control of one connection to the TCP port.

The credential is in the client's hello. It is checked once, and again after tokens were read again.  Each
request is checked before it is dispatched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from onyxq.access.grants import ALL, Access, Grants, digest_of
from onyxq.core.errors import OnyxqError, Unauthorized
from onyxq.operations.checks.access import Ask, check_role, judged, look_up
from onyxq.operations.table.access import Need
from onyxq.wire.bounds import OWNER
from onyxq.wire.protocol import Hello
from onyxq.wire.server import Dispatch, Request, Welcome


class Caller:
    """The client of one connection; ``certified``: it has a certificate, or none is asked for."""

    def __init__(
        self,
        access: Access,
        *,
        certified: bool,
        welcome: Welcome,
        dispatch: Dispatch,
        screen: Callable[[str, int], None],
        ask: Ask,
        start_soon: Callable[..., Any],
    ) -> None:
        self._access = access
        self._certified = certified
        self._welcome = welcome
        self._dispatch = dispatch
        self._screen = screen
        self._ask = ask
        self._start_soon = start_soon
        self._grants: Grants | None = None
        self._token: bytes | None = None
        """Digest of its token, if it sent one."""
        self.scope = anyio.CancelScope()
        """Scope of the connection. It is cancelled if the token was removed or changed."""

    def judge_again(self) -> None:
        """End the connection and its waiting requests if the token was removed or changed."""
        if self._token is None:
            return
        found = self._access.of_digest(self._token)
        if found == self._grants:
            self._grants = found
        else:
            self.scope.cancel()

    def welcome(self, theirs: Hello) -> Hello:
        """Return the hello of this side; raises `Unauthorized`, or another error to refuse the connection."""
        if theirs.role == "peer" and not self._certified:
            raise Unauthorized(
                "a peer must show a certificate", field="tls_cert", hint="Start the peer with tls_cert and tls_key."
            )
        if not self._access:
            self._grants = ALL
        elif theirs.role == "peer":
            self._access.check_peer(theirs.credential)
            self._grants = ALL
        else:
            self._grants = self._access.of_token(theirs.credential)
            self._token = digest_of(theirs.credential or "")
            OWNER.set(self._token.hex())  # In the context of the connection's task, which serves all its requests.
        return self._welcome(theirs)

    def admit(self, operation: str, size: int) -> None:
        """Check the role and size of a request; raises `Forbidden`, `TooLarge` or `Overloaded`."""
        assert self._grants is not None
        if self._grants.pace is not None:
            self._grants.pace.take(anyio.current_time())
        check_role(self._grants, operation)
        self._screen(operation, size)

    def dispatch(self, request: Request) -> None:
        """Dispatch a request if the client may make it; raises `Forbidden`, or an error of the dispatch."""
        assert self._grants is not None
        if self._grants is ALL:
            self._dispatch(request)
            return
        request.args, needs = judged(self._grants, request.method, request.args)
        if needs:
            self._start_soon(self._look_up, self._grants, needs, request)
        else:
            self._dispatch(request)

    async def _look_up(self, grants: Grants, needs: Sequence[Need], request: Request) -> None:
        try:
            await look_up(grants, request.method, needs, self._ask)
            if request.open:
                self._dispatch(request)
        except OnyxqError as error:
            request.fail(error)
