"""Operations on the cluster: its state, peers that leave, partitions, workers."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from onyxq.core.ids import PARTITIONS_MAX
from onyxq.core.limits import MOMENT, NAME_CHARACTERS_MAX
from onyxq.operations.table.access import LOOKING, anywhere, everywhere
from onyxq.operations.table.operation import Args, Http, Operation, Place, Result, Verb

Position: TypeAlias = Annotated[int, Meta(description="Position of the replica in the log.")]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX - 1, description="Number of the partition.")]


class Leaver(Result):
    """A node that hands its copies over for good."""

    node: str
    peer: str
    partitions_left: int


class ClusterView(Result):
    """The cluster and its condition."""

    name: str | None
    id: str | None
    position: Position
    log_time_ms: int
    settings: dict[str, Any]
    peers: int
    members: list[str]
    under_replicated: int
    not_ready: int
    moving: int
    leaving: list[Leaver]


class Member(Result):
    """A member of the ring, or a peer that joins it."""

    peer: str
    node: str
    watches: list[str]
    state: str


class Ring(Result):
    """The ring: which peer watches which."""

    position: Position
    members: list[Member]
    queue: Annotated[list[str], Meta(description="Peers that wait to join.")]
    closed: bool


class Transfer(Result):
    """A copy that a leader brings up to date."""

    node: str
    rows_done: int
    bytes_done: int
    rows_left: int | None
    seconds_left: int | None


class Partition(Result):
    """A partition: where it is, and what its leader reports."""

    partition: int
    members: list[str]
    target: list[str]
    holders: list[str]
    leader: str | None
    leader_node: str | None
    epoch: int
    ready: bool
    under_replicated: bool
    purged_before_ms: Annotated[
        int | None, Meta(description="Ids before this time are purged, except those that are kept.", extra=MOMENT)
    ]
    kept_stretches: int
    transfers: list[Transfer]
    purge_waits: Annotated[str | None, Meta(description="Why finished tasks stay; null: they do not.")]


class PartitionNow(Partition):
    """A partition, and the position at which it was read."""

    position: Position


class Partitions(Result):
    """All partitions."""

    position: Position
    partitions: list[Partition]


class PeerView(Result):
    """A peer."""

    peer: str
    node: str
    address: str
    http: str
    zone: str
    slots: int
    tags: list[str]
    state: str
    draining: bool
    leaving: bool
    clock_skew_ms: int
    copies: int
    leads: int


class NodeView(Result):
    """A node, with or without a peer."""

    node: str
    peer: str | None
    zone: str
    absent_since_ms: int | None
    draining: bool
    replaced: bool
    leaving: bool
    copies: int
    leads: int


class Peers(Result):
    """All peers and nodes."""

    position: Position
    peers: list[PeerView]
    nodes: list[NodeView]


class Leaving(Result, omit_defaults=True):
    """The consequences of a peer that leaves for good."""

    partitions_left: int | None = None
    warning: str | None = None


class Forced(Result):
    """The members of a partition that was forced."""

    partition: int
    position: Position
    members: list[str]
    given_up: list[str]


class Routes(Result):
    """What a client needs to find leaders."""

    cluster: str | None
    cluster_id: str | None
    partitions: int
    leaders: dict[int, str]
    peers: list[str]
    position: Position
    now_ms: int


class Health(Result):
    """Whether a peer serves."""

    live: bool
    ready: bool
    reasons: list[str]
    log_connected: bool
    log_went_back: bool
    log_lag: int
    position: Position


WAITS_FOR_MAX = 20
"""Most queues that the view of a worker names."""


class WorkerView(Result):
    """A worker that holds claims or waits for some."""

    worker: str
    claimed: Annotated[int, Meta(description="Number of its claims.")]
    newest_token: int | None
    next_deadline_in_ms: Annotated[int | None, Meta(description="Time until the first of its leases ends.")]
    waits: Annotated[int, Meta(description="Number of its claims that wait for a task.")]
    waits_for: Annotated[list[str], Meta(description="Queues from which it waits for tasks.")]
    free: Annotated[int, Meta(description="Number of further tasks that its waiting claims ask for: its free slots.")]


class Workers(Result):
    """The workers with the most claims."""

    position: Position
    all: Annotated[int, Meta(description="Number of all workers.")]
    silent: Annotated[list[str], Meta(description="Nodes that did not answer.")]
    workers: list[WorkerView]


class Rates(Result):
    """Sums over all nodes that answered, since each started."""

    events: Annotated[dict[str, int], Meta(description="Number of tasks by event.")]
    waited: Annotated[list[int], Meta(description="Number of tasks by time until they started.")]
    ran: Annotated[list[int], Meta(description="Number of tasks by time that they ran.")]
    bounds_s: Annotated[list[float], Meta(description="Upper bounds of the times; one more number is beyond them.")]
    nodes: Annotated[list[str], Meta(description="Nodes that answered.")]
    silent: Annotated[list[str], Meta(description="Nodes that did not answer.")]


class Minute(Result):
    """What happened to tasks in one minute."""

    at_ms: Annotated[int, Meta(description="Start of the minute.", extra=MOMENT)]
    events: Annotated[dict[str, int], Meta(description="Number of tasks by event.")]
    wait_p95_s: Annotated[float | None, Meta(description="95 % of the claimed tasks waited at most this time.")]
    run_p95_s: Annotated[float | None, Meta(description="95 % of the finished attempts took at most this time.")]


class RateHistory(Result):
    """Each minute of the last 24 hours, since the nodes that answered have started."""

    minutes: Annotated[list[Minute], Meta(description="Oldest first. The last minute is not over.")]
    silent: Annotated[list[str], Meta(description="Nodes that did not answer.")]


class MetricsText(Result):
    """Metrics in Prometheus' text format."""

    text: str


class GetCluster(Args):
    """Return the cluster and its settings."""


class GetRing(Args):
    """Return the ring: which peer watches which."""


class GetPartitions(Args):
    """Return where partitions are and which peers lead them."""


class GetPartition(Args):
    """Return where one partition is, and what its leader reports."""

    partition: Number


class GetPeers(Args):
    """Return peers and nodes."""


class GetRoutes(Args):
    """Return the leaders of all partitions."""


class GetHealth(Args):
    """Return whether this peer is ready, with its lag behind the log."""


class GetMetrics(Args):
    """Return metrics in Prometheus' text format."""


class GetWorkers(Args):
    """Return the workers that hold claims or wait for tasks, those with the most claims first."""


class GetRates(Args):
    """Return what happened to tasks at all nodes, as sums that grow until a node restarts."""


class GetRateHistory(Args):
    """Return what happened to tasks at all nodes in each minute of the last 24 hours."""


class Leave(Args):
    """Drain a peer; it leaves once others lead its partitions."""

    peer: Annotated[str, Meta(min_length=1, max_length=100, description="Id of the peer.")]
    permanent: Annotated[bool, Meta(description="Move the copies of its node elsewhere first.")] = False


class ForcePartition(Args):
    """Continue without the lost majority of a partition's members.

    Data that no live member has is given up.
    """

    partition: Number
    by: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX, description="Who forces it, for the log.")] = ""


_VIEWS = "onyxq.interfaces.cli.views"
_CHANGES = "onyxq.interfaces.cli.cluster_changes"

GET_CLUSTER = Operation(
    name="cluster",
    args=GetCluster,
    result=ClusterView,
    access=anywhere(*LOOKING),
    reads=True,
    http=Http(verb="GET", path="/v1/cluster", id="get_cluster", tag="cluster"),
    verbs=(
        Verb(name="cluster show", about="show name, settings and health of the cluster", run=f"{_VIEWS}:cluster_show"),
    ),
    python="cluster",
)
GET_RING = Operation(
    name="ring",
    args=GetRing,
    result=Ring,
    access=anywhere(*LOOKING),
    reads=True,
    http=Http(verb="GET", path="/v1/ring", id="get_ring", tag="cluster"),
    verbs=(
        Verb(
            name="ring show",
            about="show the members of the ring, the peer that each watches, and the peers that join",
            run=f"{_VIEWS}:ring_show",
        ),
    ),
    python="ring",
)
GET_PARTITIONS = Operation(
    name="partitions",
    args=GetPartitions,
    result=Partitions,
    access=anywhere(*LOOKING),
    reads=True,
    http=Http(verb="GET", path="/v1/partitions", id="get_partitions", tag="cluster"),
    verbs=(
        Verb(
            name="partition list",
            about="show the nodes, leader and epoch of every partition",
            run=f"{_VIEWS}:partition_list",
        ),
    ),
    python="partitions",
)
GET_PARTITION = Operation(
    name="partition",
    args=GetPartition,
    result=PartitionNow,
    access=anywhere(*LOOKING),
    reads=True,
    verbs=(Verb(name="partition show", about="show one partition and what its leader reports", example="7"),),
    example={"partition": 7},
)
GET_PEERS = Operation(
    name="peers",
    args=GetPeers,
    result=Peers,
    access=anywhere(*LOOKING),
    reads=True,
    http=Http(verb="GET", path="/v1/peers", id="get_peers", tag="cluster"),
    verbs=(Verb(name="peer list", about="list the peers and nodes of the cluster", run=f"{_VIEWS}:peer_list"),),
    python="peers",
)
GET_ROUTES = Operation(name="routes", args=GetRoutes, result=Routes, access=anywhere(*LOOKING), reads=True)
GET_HEALTH = Operation(
    name="health", args=GetHealth, result=Health, access=anywhere(*LOOKING), reads=True, python="health"
)
GET_METRICS = Operation(name="metrics", args=GetMetrics, result=MetricsText, access=everywhere("read"), reads=True)
GET_WORKERS = Operation(
    name="workers",
    args=GetWorkers,
    result=Workers,
    access=everywhere("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    http=Http(verb="GET", path="/v1/workers", id="list_workers", tag="cluster"),
    verbs=(
        Verb(
            name="worker list",
            about="list the workers that hold claims or wait for tasks",
            run=f"{_VIEWS}:worker_list",
            empty="no workers",
        ),
    ),
)
GET_RATES = Operation(
    name="rates", args=GetRates, result=Rates, access=everywhere("read"), place=Place.ALL_LEADERS, reads=True
)
GET_RATE_HISTORY = Operation(
    name="rates.history",
    args=GetRateHistory,
    result=RateHistory,
    access=everywhere("read"),
    place=Place.ALL_LEADERS,
    reads=True,
)
LEAVE = Operation(
    name="leave",
    args=Leave,
    result=Leaving,
    access=everywhere("admin"),
    http=Http(verb="POST", path="/v1/peers/{peer}/leave", id="leave_peer", tag="cluster", errors=(404, 409)),
    verbs=(
        Verb(
            name="peer leave",
            about="drain a peer: it hands its partitions over and leaves",
            example="3fb1c0de --permanent",
            run=f"{_CHANGES}:peer_leave",
            more=((("--no-wait",), {"action": "store_true", "help": "do not wait"}),),
        ),
    ),
    python="leave",
    example={"peer": "3fb1c0de", "permanent": True},
)
FORCE_PARTITION = Operation(
    name="partition.force",
    args=ForcePartition,
    result=Forced,
    access=everywhere("admin"),
    http=Http(
        verb="POST",
        path="/v1/partitions/{partition}/force",
        id="force_partition",
        tag="cluster",
        fixed={"by": "HTTP"},
        errors=(404, 409),
    ),
    verbs=(
        Verb(
            name="partition force",
            about="continue without the lost majority of a partition's members; data that no live one has is given up",
            example="7 --yes",
            fields=("partition",),
            run=f"{_CHANGES}:partition_force",
            more=((("--yes",), {"action": "store_true", "help": "accept the loss"}),),
        ),
    ),
    python="force_partition",
    example={"partition": 7},
)
CLUSTER = (
    GET_CLUSTER,
    GET_RING,
    GET_PARTITIONS,
    GET_PARTITION,
    GET_PEERS,
    GET_ROUTES,
    GET_HEALTH,
    GET_METRICS,
    GET_WORKERS,
    GET_RATES,
    GET_RATE_HISTORY,
    LEAVE,
    FORCE_PARTITION,
)
