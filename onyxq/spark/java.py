"""The Java objects of a PySpark session: the only module that reads private attributes of pyspark.

PySpark has no public way to them. `tests/tidy/test_private_names.py` names the versions that have these attributes.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import Any

from onyxq.core.errors import BadRequest

_OTHER_CODE = re.compile(
    r"'(?:[\w`.]+\.)?(?P<call>reflect|try_reflect|java_method)\(|"
    r"(?P<node>ScriptTransformation|ExecuteImmediate|\w+WithUnresolvedIdentifier)",
    re.IGNORECASE,
)
"""What a parsed query contains that calls methods of Java, starts programs, or computes the name of what it calls."""
_COMMANDS = ("Command", "ParsedStatement", "ExecutableDuringAnalysis", "InsertIntoDir")
"""Kinds of nodes that Spark executes as soon as it reads them, also below ``WITH`` and in a union of inserts."""
_STATELESS = frozenset(
    (
        "CTERelationDef CTERelationRef CollectMetrics EventTimeWatermark Filter Generate Join MapInArrow MapInPandas "
        "Project PythonMapInArrow RebalancePartitions Repartition RepartitionByExpression ResolvedHint "
        "StreamingRelation StreamingRelationV2 SubqueryAlias Union View WithCTE"
    ).split()
)
"""Kinds of nodes that treat each row of a stream alone, or each row of a stream with tables."""
_FIELDS = "spark.sql.debug.maxToStringFields"
"""Spark's setting for how many parts of a node are in its text; further ones are left out."""


def classic(session: Any) -> Any:
    """Return the session if it has a virtual machine; raises `BadRequest` for one of Spark Connect."""
    if type(session).__module__.startswith("pyspark.sql.connect."):
        raise BadRequest(
            "a session of Spark Connect gives no access to Spark's virtual machine (py4j), which jobs and checks need",
            field="session",
            hint="Use a session of the driver itself. Over Spark Connect, use the format onyxq.",
        )
    return session


def process(session: Any) -> Any:
    """Return the process of the session's virtual machine, a `subprocess.Popen`."""
    return classic(session).sparkContext._gateway.proc


def packages(session: Any) -> Any:
    """Return the root of Java's packages: ``packages(session).java.lang.System``."""
    return classic(session)._jvm


def hadoop_configuration(session: Any) -> Any:
    """Return the configuration with which the session opens file systems."""
    return classic(session).sparkContext._jsc.hadoopConfiguration()


def root_pool(session: Any) -> Any:
    """Return the pool of the scheduler that holds all others."""
    return classic(session).sparkContext._jsc.sc().taskScheduler().rootPool()


def make_active(session: Any) -> None:
    """Make a session this thread's active one in the virtual machine."""
    packages(session).org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def plan(frame: Any) -> Any:
    """Return the analyzed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()


def leaves(frame: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield the leaves of a frame's analyzed plan, each with the aliases above it, outermost first."""
    waiting: list[tuple[Any, tuple[str, ...]]] = [(plan(frame), ())]
    while waiting:
        node, aliases = waiting.pop()
        if node.nodeName() == "SubqueryAlias":
            aliases = (*aliases, str(node.alias()))
        parts = _children(node)
        if parts:
            waiting += [(part, aliases) for part in reversed(parts)]
        else:
            yield node, aliases


def frame_of(writer: Any) -> Any:
    """Return the frame that a writer writes."""
    return writer._df


def reports(query: Any, *, after: int = -1, most: int | None = None) -> list[str]:
    """Return Spark's reports of a query's batches after ``after`` as JSON, oldest first; ``most``: the latest only.

    The public ``recentProgress`` asks the virtual machine for each field of each report.
    """
    known = query._jsq.recentProgress()
    found: list[str] = []
    for place in reversed(range(len(known))):
        if known[place].batchId() <= after or len(found) == most:
            break
        found.append(known[place].json())
    return found[::-1]


def unread_files(query: Any) -> list[int | None]:
    """Return for each source of a query how many files it has listed and not read, in Spark's order.

    None for sources that are not files; empty if Spark has no such figure. Spark reports it nowhere, so this reads
    private fields of the source.
    """
    from py4j.protocol import Py4JError

    try:
        sources = query._jsq.streamingQuery().sources().distinct()
        return [_unread(sources.apply(place)) for place in range(sources.size())]
    except Py4JError:
        return []


def _unread(source: Any) -> int | None:
    """Return the unread files of a source.

    A stream keeps a list of unread files while there are some. A query with the trigger ``availableNow`` keeps the list
    of all its files, the oldest first, and the source knows the time of the newest file that was read.
    """
    if source.getClass().getSimpleName() != "FileStreamSource":
        return None
    listed = _private(source, "allFilesForTriggerAvailableNow")
    if listed is None:
        unread = _private(source, "unreadFiles")
        return 0 if unread is None else int(unread.size())
    newest_ms, count = _private(source.seenFiles(), "latestTimestamp"), int(listed.size())
    return count - bisect.bisect_right(range(count), newest_ms, key=lambda place: listed.apply(place).timestamp())


def _private(found: Any, name: str) -> Any:
    field = found.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(found)


def check_append(session: Any, frame: Any) -> None:
    """Raise `AnalysisException` unless a stream can append the rows of a frame to a sink."""
    root = packages(session).org.apache.spark.sql
    root.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
        plan(frame), root.streaming.OutputMode.Append()
    )


def keeps_state(frame: Any) -> bool:
    """Return whether Spark may keep state from batch to batch for the rows of a streaming frame: in doubt, True."""
    waiting = [plan(frame)]
    while waiting:
        node = waiting.pop()
        streams = [part for part in _children(node) if part.isStreaming()]
        if node.nodeName() not in _STATELESS or (node.nodeName() == "Join" and len(streams) > 1):
            return True
        waiting += streams
    return False


def sql_problem(session: Any, text: str) -> str:
    """Return why a text is not a query that only reads; empty if it is such a query. Raises `ParseException`."""
    found = classic(session)._jsparkSession.sessionState().sqlParser().parsePlan(text)
    logical = "org.apache.spark.sql.catalyst.plans.logical"
    kinds = [packages(session).java.lang.Class.forName(f"{logical}.{kind}") for kind in _COMMANDS]
    waiting = [found]
    while waiting:
        node = waiting.pop()
        if any(kind.isInstance(node) for kind in kinds):
            return f"is a command ({node.nodeName()}), not a query"
        waiting += _children(node)
    calls = _OTHER_CODE.search(_whole_text(session, found))
    return f"runs other code ({calls['call'] or calls['node']}), which is not allowed in a query" if calls else ""


def _whole_text(session: Any, plan: Any) -> str:
    """Return a plan with all parts of its nodes as text."""
    make_active(session)  # Spark reads the setting of the thread's session.
    before = session.conf.get(_FIELDS)
    session.conf.set(_FIELDS, str((1 << 31) - 1))
    try:
        return str(plan.treeString())
    finally:
        session.conf.set(_FIELDS, before)


def _children(node: Any) -> list[Any]:
    inside = node.children()
    return [inside.apply(place) for place in range(inside.size())]
