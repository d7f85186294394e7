"""Functions as tasks: `App` and the classes that its methods return, importable from here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from attrs import evolve

from onyxq.access.certificates import Certificates
from onyxq.client.connection_settings import ConnectionSettings
from onyxq.core.errors import BadRequest
from onyxq.system.durations import Timeout
from onyxq.wire.network import Network
from onyxq.worker import app as _app
from onyxq.worker.app import AppWorker, TaskFunction, TaskHandle
from onyxq.worker.handles import Application

if TYPE_CHECKING:
    from onyxq.interfaces.embedded import Embedded

__all__ = ["App", "AppWorker", "TaskFunction", "TaskHandle"]

log = logging.getLogger(__name__)


class App(_app.App):
    """An application: a cluster, and the functions that its workers run.

    What is not given here comes from ``ONYXQ_CONNECT`` and the other variables, from ``onyxq.toml``, or is the default,
    as for the command line. It is read when it is first needed.

    ``address``: ``HOST:PORT`` of any peer, or several of the same cluster. ``token``: the credential. ``tls``: the
    trusted authorities, if peers speak TLS. ``timeout_ms``: longest time for a request. ``connect_timeout_ms``: a
    request fails after this time if no peer can be reached; default: 1,000. ``network`` is for simulations.

    ``data``: a directory, in place of an address. The first process that uses the application then runs a cluster of
    one peer in it, which listens at the settings ``listen`` and ``http``; other processes use that one.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        data: str | PathLike[str] | None = None,
        token: str | None = None,
        tls: Certificates | None = None,
        timeout_ms: Timeout = None,
        connect_timeout_ms: Timeout = None,
        network: Network | None = None,
    ) -> None:
        if data is not None and address is not None:
            raise BadRequest("an App has an address or a data directory, not both", field="data")
        super().__init__(
            address,
            token=token,
            tls=tls,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            network=network,
        )
        self.data = data
        """Directory of the cluster that the application brings along, if any."""
        self._cluster: Embedded | None = None
        self._found: str | None = None
        """Address of the cluster in the directory, in this process or in another one."""
        self._opening = threading.Lock()

    def _worker_settings(self) -> ConnectionSettings:
        found = super()._worker_settings()
        if self.data is None or "address" in self._given:
            return found
        return evolve(found, address=self._address_in(self.data), tls=Certificates())

    def _address_in(self, data: str | PathLike[str]) -> str:
        """Return the address of the cluster in a directory; start it unless another process runs it."""
        with self._opening:
            if self._found is None:
                self._refuse_tested()
                from onyxq.interfaces.embedded import open_or_find  # most applications need no cluster of their own

                setting = self._config().setting
                listen, http = (str(setting(name).value) for name in ("listen", "http"))
                self._cluster, self._found = open_or_find(data, listen=listen, http=None if http == "off" else http)
                if self._cluster is not None:
                    self._close_at_exit()
                    log.info("cluster in %s at %s, HTTP at %s", data, self._found, self._cluster.http_address or "off")
            return self._found

    def is_elsewhere(self, running: Application, address: str | Sequence[str]) -> bool:
        if self.data is None or "address" in self._given:
            return super().is_elsewhere(running, address)
        return not isinstance(running, App) or running.data is None or str(running.data) != str(self.data)

    def close(self) -> None:
        """Close the client, and the cluster if this process runs it; the next use opens them again."""
        super().close()
        with self._opening:
            cluster, self._cluster, self._found = self._cluster, None, None
        if cluster is not None:
            cluster.close()
