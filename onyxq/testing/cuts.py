"""Cuts in the simulated network of a cluster under test."""

from __future__ import annotations

from attrs import define

from simulation.world.network import SimulatedNetwork


@define(eq=False)
class Cut:
    """A cut: no message passes between ``hosts`` and ``others``."""

    hosts: tuple[str, ...]
    others: tuple[str, ...]
    newcomers: bool = False
    """Whether machines added later join ``others``."""


class Cuts:
    """All current cuts; those around dead workers stay for ever."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        self._cuts: list[Cut] = []
        self._dead: set[str] = set()

    def add(self, hosts: tuple[str, ...], others: tuple[str, ...], *, newcomers: bool = False) -> Cut:
        """Cut ``hosts`` off from ``others``."""
        cut = Cut(hosts, others, newcomers)
        self._cuts.append(cut)
        self._network.part(hosts, others)
        return cut

    def bury(self, host: str, others: tuple[str, ...]) -> None:
        """Cut a dead process off for ever; its messages under way are lost."""
        self._dead.add(host)
        self.add((host,), others)
        self._network.cut(host)

    def welcome(self, host: str) -> None:
        """Apply the cuts to a new machine."""
        for cut in self._cuts:
            if cut.newcomers:
                cut.others += (host,)
                self._network.part(cut.hosts, (host,))

    def heal(self, cut: Cut | None = None) -> None:
        """Undo one cut, or all except those around dead processes."""
        self._cuts = [one for one in self._cuts if (one is not cut if cut else self._dead.issuperset(one.hosts))]
        self._network.heal()
        for one in self._cuts:
            self._network.part(one.hosts, one.others)

    @property
    def any(self) -> bool:
        """Whether a living machine is cut off."""
        return any(not self._dead.issuperset(cut.hosts) for cut in self._cuts)
