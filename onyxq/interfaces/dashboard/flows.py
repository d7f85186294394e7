"""All flows, one flow as a graph of its tasks, and the flow of one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from attrs import define, field, frozen
from starlette.responses import Response

from onyxq.core.errors import OnyxqError
from onyxq.interfaces.dashboard.page import ROWS, After, Filter, PageArgs, filtered, shows
from onyxq.interfaces.dashboard.rendering import Tab, link, page
from onyxq.interfaces.dashboard.tasks import UNFINISHED
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.table.flow import FLOW_TASKS_MAX, FlowId, FlowState

TASKS_SHOWN_MAX = 200
"""Most tasks in the table of a flow."""
ALONE_MAX = 8
"""Most tasks of one queue and with the same tasks before them that have a node each; more share one."""
NODES_MAX = 150
WIDTH, HEIGHT, GAP_X, GAP_Y = 180, 40, 60, 14
"""Size of a node and the gaps between nodes, in pixels."""
COLOURS: Mapping[str, tuple[str, str]] = {
    "completed": ("var(--good-ground)", "var(--good)"),
    "purged": ("var(--good-ground)", "var(--good)"),
    "failed": ("var(--bad-ground)", "var(--bad)"),
    "claimed": ("var(--accent)", "var(--on-accent)"),
    "waiting": ("var(--warn-ground)", "var(--warn)"),
}
"""Ground and text of a node by state; the others are plain."""
PLAIN = ("var(--raised)", "var(--text)")
URGENCY = ("failed", "claimed", "ready", "scheduled", "waiting", "cancelled", "completed", "purged")
"""A node has the first of these states that one of its tasks has."""


GRAPH_TASKS_MAX = 1_000
"""Most tasks of a flow whose graph is on the page of each task."""
FOLLOWERS_SHOWN = 20


@frozen
class FlowOfTask:
    """The flow of a task, as the task's page shows it."""

    flow: Mapping[str, Any]
    graph: Graph | None
    followers: list[bytes]
    """The first tasks that start after the task."""


@define(eq=False)
class Node:
    """Tasks that are drawn together."""

    queue: str
    depth: int
    """Number of tasks in the longest row of tasks before it."""
    ids: list[bytes] = field(factory=list)
    states: Counter[str] = field(factory=Counter)
    x: int = 0
    y: int = 0

    @property
    def state(self) -> str:
        """The state of its tasks that matters most."""
        return next(one for one in URGENCY if self.states[one])

    @property
    def about(self) -> str:
        """Its states in words."""
        if len(self.ids) == 1:
            return self.state
        return ", ".join(f"{self.states[one]} {one}" for one in URGENCY if self.states[one])

    @property
    def ground(self) -> str:
        """Colour of its box."""
        return COLOURS.get(self.state, PLAIN)[0]

    @property
    def text(self) -> str:
        """Colour of its text."""
        return COLOURS.get(self.state, PLAIN)[1]


@define
class Graph:
    """Nodes with their places, and the lines between them."""

    nodes: list[Node]
    lines: list[tuple[Node, Node]]
    width: int
    height: int
    size: tuple[int, int] = (WIDTH, HEIGHT)
    """Width and height of a node."""


def graph_of(tasks: Sequence[Mapping[str, Any]], on_done: bytes | None) -> Graph | None:
    """Return the graph of a flow's tasks; None if it is too large to be read."""
    alike = Counter((task["queue"], tuple(task["after"])) for task in tasks)
    nodes: dict[Any, Node] = {}
    of_task: list[Node] = []
    lines: dict[tuple[int, int], tuple[Node, Node]] = {}
    for place, task in enumerate(tasks):
        key = (task["queue"], tuple(task["after"]))
        is_last = task["id"] == on_done
        before = list({id(one): one for one in (of_task[at] for at in task["after"])}.values())
        if is_last:
            ended = {id(start) for start, _ in lines.values()}
            before = [one for one in nodes.values() if id(one) not in ended]
        depth = 1 + max((one.depth for one in before), default=-1)
        node = nodes.setdefault(place if is_last or alike[key] <= ALONE_MAX else key, Node(task["queue"], depth))
        node.ids.append(task["id"])
        node.states[task["state"]] += 1
        of_task.append(node)
        lines |= {(id(one), id(node)): (one, node) for one in before}
        if len(nodes) > NODES_MAX:
            return None
    rows: Counter[int] = Counter()
    for node in nodes.values():
        node.x, node.y = node.depth * (WIDTH + GAP_X) + 1, rows[node.depth] * (HEIGHT + GAP_Y) + 1
        rows[node.depth] += 1
    width = (max(rows, default=0) + 1) * (WIDTH + GAP_X) - GAP_X + 2
    return Graph([*nodes.values()], [*lines.values()], width, max(rows.values(), default=1) * (HEIGHT + GAP_Y))


async def flow_of(call: Call, task: Mapping[str, Any]) -> FlowOfTask | None:
    """Return the flow of a task; None if it has none, or if the flow is gone or cannot be read.

    The states of a flow need the leaders of all its partitions. The page of one task needs that of the task only.
    """
    if task["flow"] is None:
        return None
    try:
        flow: dict[str, Any] = await call.ask("flow.get", id=task["flow"], limit=GRAPH_TASKS_MAX)
    except OnyxqError:
        return None
    tasks = flow["tasks"]
    if sum(flow["counts"].values()) > len(tasks):
        return FlowOfTask(flow, None, [])
    place = next((place for place, one in enumerate(tasks) if one["id"] == task["id"]), None)
    followers = [one["id"] for one in tasks if place in one["after"]]
    return FlowOfTask(flow, graph_of(tasks, flow["on_done"]), followers[:FOLLOWERS_SHOWN])


class FlowsPage(PageArgs):
    """Flows of a state, the newest first."""

    state: Filter = ""
    after: After = None


async def get_flows(call: Call) -> Response:
    """Answer with a page of flows."""
    args: FlowsPage = call.args
    state = filtered(args.state, FlowState)
    found = await call.ask("flow.list", state=state, after=args.after, limit=ROWS, newest_first=True)
    return page(
        call,
        "flows.html",
        title="Flows",
        here="/ui/flows",
        flows=found["flows"],
        after=found["after"],
        is_first=args.after is None,
        state=state or "",
        tabs=[
            Tab(name or "all", link("/ui/flows", state=name), is_current=name == (state or ""))
            for name in ("", *get_args(FlowState))
        ],
    )


class OneFlow(PageArgs, kw_only=True):
    """One flow."""

    id: FlowId


async def get_flow(call: Call) -> Response:
    """Answer with one flow."""
    flow: dict[str, Any] = await call.ask("flow.get", id=call.args.id, limit=FLOW_TASKS_MAX)
    tasks = flow["tasks"]
    return page(
        call,
        "flow.html",
        title=f"Flow {flow['name'] or flow['id'].hex()}",
        here="/ui/flows",
        flow=flow,
        has_ended=flow["state"] in ("completed", "failed", "cancelled"),
        unfinished=sum(flow["counts"].get(name, 0) for name in UNFINISHED),
        graph=graph_of(tasks, flow["on_done"]),
        tasks=tasks[:TASKS_SHOWN_MAX],
        left=max(0, len(tasks) - TASKS_SHOWN_MAX),
    )


ENDPOINTS = (
    shows("/ui/flows", "flows_page", get_flows, args=FlowsPage),
    shows("/ui/flow", "flow_page", get_flow, args=OneFlow),
)
