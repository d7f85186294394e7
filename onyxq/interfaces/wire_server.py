"""One connection of the TCP port as its caller may use it.

The credential is in the caller's hello, and judged once and whenever tokens were read again; each
request is checked before it is dispatched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from onyxq.access.grants import ALL, Access, Grants, digest_of
from onyxq.core.errors import OnyxqError, Unauthorized
from onyxq.operations.access.check import Ask, check_role, judged, look_up
from onyxq.operations.table.access import Need
from onyxq.wire.bounds import OWNER
from onyxq.wire.protocol import Hello
from onyxq.wire.server import Dispatch, Request, Welcome


class Caller:
    """Whoever is at the other end of a connection; ``certified``: with a certificate, or none is asked for."""

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
        """Digest of the token that he showed, if it was one."""
        self.scope = anyio.CancelScope()
        """Of his connection: ended once his token is no longer what it was."""

    def judge_again(self) -> None:
        """End the connection if its token is gone, or gives something else now: requests that wait end with it."""
        if self._token is None:
            return
        found = self._access.of_digest(self._token)
        if found == self._grants:
            self._grants = found
        else:
            self.scope.cancel()

    def welcome(self, theirs: Hello) -> Hello:
        """This side's hello; raises `Unauthorized`, or another reason to refuse."""
        if theirs.role == "peer" and not self._certified:
            raise Unauthorized("a peer must show a certificate", field="tls_cert", hint="Give it tls_cert and tls_key.")
        if not self._access:
            self._grants = ALL
        elif theirs.role == "peer":
            self._access.check_peer(theirs.credential)
            self._grants = ALL
        else:
            self._grants = self._access.of_token(theirs.credential)
            self._token = digest_of(theirs.credential or "")
            OWNER.set(self._token.hex())  # of the connection's task, which takes all its requests
        return self._welcome(theirs)

    def admit(self, operation: str, size: int) -> None:
        """Judge a request by its operation and its bytes; raises `Forbidden`, `TooLarge`, `Overloaded`."""
        assert self._grants is not None
        if self._grants.pace is not None:
            self._grants.pace.take(anyio.current_time())
        check_role(self._grants, operation)
        self._screen(operation, size)

    def dispatch(self, request: Request) -> None:
        """Serve a request if the caller may make it; raises `Forbidden`, or as its dispatching does."""
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
            await look_up(grants, needs, self._ask)
            if request.open:
                self._dispatch(request)
        except OnyxqError as error:
            request.fail(error)
