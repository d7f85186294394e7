"""Functions of the tests' jobs, which workers import by name."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onyxq.jobs.values import pack, unpack


def same(segment: Any) -> Any:
    """The segment itself."""
    return segment


def words(segment: Any) -> list[dict[str, Any]]:
    """The words of a line, each a segment."""
    return [{"word": word, "size": len(word)} for word in segment["value"].split()]


def more(segment: Any, by: int = 1) -> Any:
    """A number and the ``by`` after it."""
    return [segment + add for add in range(by + 1)]


def even(segment: Any) -> Any:
    """Even numbers, halved; nothing for odd ones."""
    return segment // 2 if segment % 2 == 0 else None


def no_fives(segment: Any) -> Any:
    """Raise an error for multiples of five."""
    if segment % 5 == 0:
        raise ValueError(f"{segment} is divided by five")
    return segment + 1


def is_odd(segment: Any) -> bool:
    """Return whether a number is odd; an exception is not."""
    return isinstance(segment, int) and segment % 2 == 1


def above(segment: Any, limit: int = 0) -> bool:
    """Whether a number is above a limit."""
    return isinstance(segment, int) and segment > limit


def is_value_error(error: Any) -> bool:
    """Return whether an exception is a `ValueError`."""
    return isinstance(error, ValueError)


def as_number(segment: Any, error: Exception) -> Any:
    """Return the segment that replaces a refused one."""
    return -segment


def unpackable(segment: Any) -> Any:
    """Return a value of a type that segments cannot have."""
    return {"a": [0, 1j]}


def is_free(segment: Any) -> bool:
    """Return whether a click costs nothing."""
    return bool(segment["n"] == 0)


def fail(segment: Any) -> Any:
    """Raise an error for a line that says so."""
    if "fail" in segment["value"]:
        raise RuntimeError("told to fail")
    return segment


def fail_once(segment: Any, flag: str = "") -> Any:
    """Raise an error at the first call of all processes."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return segment
    raise RuntimeError("the first time it fails")


def note(known: dict[str, Any]) -> None:
    """Append a line about what was called to the file that ``ONYXQ_TEST_NOTES`` names for the job."""
    folder = Path(os.environ["SPARK_TEST_NOTES"])
    said = f"{known.get('task')} {known.get('batch', '-')}\n"
    with open(folder / str(known["job"]), "a") as file:
        file.write(said)


def restart(known: dict[str, Any]) -> str:
    """The policy of a job that tries again."""
    assert isinstance(known["exception"], RuntimeError)
    return "restart"


def spoilt(segment: Any, every: int = 0, until: str = "") -> Any:
    """Raise an error at each row of a number, until a file is there."""
    if segment["id"] % every == 0 and not os.path.exists(until):
        raise ValueError(f"{segment['id']} is spoilt")
    return segment


def hold(segment: Any, until: str = "") -> Any:
    """Returns once a file is there."""
    while not os.path.exists(until):
        time.sleep(0.01)
    return segment


def number(segment: Any) -> Any:
    """Return the number that a segment is or has, as ``n``."""
    if not isinstance(segment, int):
        segment = next(segment[name] for name in ("n", "value", "content") if name in segment)
    return {"n": int(segment)}


def noted_number(segment: Any, folder: str = "", task: str = "") -> Any:
    """Return the number of a segment, and note the call in a file of the process.

    A note has the task, the number, the batch, and the attempt at the batch: Spark's run of the query, and its task.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    found = number(segment)
    batch, run = map(context.getLocalProperty, ("streaming.sql.batchId", "spark.jobGroup.id"))
    with open(Path(folder) / str(os.getpid()), "a") as file:
        file.write(f"{task} {found['n']} {batch} {run}/{context.attemptNumber()}\n")
    return found


def noted_fold(folder: str, task: str, state: int, segment: Any) -> int:
    """Return the number of segments so far, and note the call."""
    noted_number(segment, folder, task)
    return state + 1


def noted_batch(batch: Any, folder: str, task: str) -> Any:
    """Return the numbers of the rows of an Arrow batch, and note each of them."""
    from pyarrow import RecordBatch

    return RecordBatch.from_pydict({"n": [noted_number(row, folder, task)["n"] for row in batch.to_pylist()]})


def noted_frame(rows: Any, folder: str, task: str) -> Any:
    """Return the numbers of the rows of a DataFrame; each is noted when Spark computes it."""

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        return (noted_batch(batch, folder, task) for batch in batches)

    return rows.mapInArrow(work, "n bigint")


def parsed(segment: Any) -> Any:
    """The JSON that a line is."""
    return json.loads(segment["value"])


def hexed(segment: Any) -> str:
    """A segment as a line of text."""
    return pack(segment).hex()


def unhexed(segment: Any) -> Any:
    """The segment of such a line."""
    return unpack(bytes.fromhex(segment["value"]))


def typed(segment: Any, elsewhere: bool = False) -> Any:
    """Return values of types that JSON lacks; the key is equal in every process."""
    when = datetime.datetime(2027, 1, 15, 8, 0, tzinfo=datetime.UTC)
    price = decimal.Decimal("1.50" if elsewhere else "1.5") + segment["n"]
    zone = datetime.timezone(datetime.timedelta(hours=2))
    return {**segment, "key": [price, when.astimezone(zone) if elsewhere else when], "pair": (1, {2, 3})}


def field(segment: Any, name: str = "") -> Any:
    """One field of a segment."""
    return segment[name]


def fields(segment: Any, names: list[str]) -> Any:
    """Return some fields of a segment."""
    return {name: segment[name] for name in names}


class Payments:
    """A service that writes down what it is asked to charge."""

    def __init__(self, file: str) -> None:
        self._file = file

    def charge(self, user: str, amount: decimal.Decimal, idempotency_key: str) -> None:
        """Charge a user."""
        with open(self._file, "a") as file:
            file.write(f"{user} {amount} {idempotency_key}\n")


def is_even_row(segment: Any) -> bool:
    """Return whether the number of a row is even."""
    return bool(segment["n"] % 2 == 0)


def busy(segment: Any, folder: str = "", ms: int = 20) -> Any:
    """Return the segment after a while, which is recorded in a file of the process."""
    began = time.monotonic_ns()
    while time.monotonic_ns() < began + ms * 1_000_000:
        time.sleep(0.001)
    with open(Path(folder) / str(os.getpid()), "a") as file:
        file.write(f"{began} {time.monotonic_ns()}\n")
    return segment


def busy_batch(batch: Any, folder: str, ms: int) -> Any:
    """Return an Arrow batch after a while, which is recorded in a file of the process."""
    return busy(batch, folder, ms)


def nothing() -> int:
    """The sum of no segments."""
    return 0


def added(one: int, other: int) -> int:
    """Return the sum of two sums."""
    return one + other


def sum_or_fail(state: int, segment: Any) -> int:
    """Return the sum of ``n``; fail at the first negative one. The user's name is the name of the flag file."""
    flag = Path(segment["user"])
    if segment["n"] < 0 and not flag.exists():
        flag.touch()
        raise ValueError("the first time it fails")
    return int(state + segment["n"])


def hold_first(segment: Any, started: str = "", until: str = "") -> Any:
    """Let the first segment write the process id to a file and wait for another file."""
    try:
        with open(started + ".new", "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return segment
    os.rename(started + ".new", started)
    open(started + ".new", "x").close()
    return hold(segment, until)


def pool(segment: Any) -> Any:
    """The pool of the fair scheduler that a segment's task is of."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return {"pool": context.getLocalProperty("spark.scheduler.pool")}


def where(segment: Any) -> Any:
    """Return the segment, and whether an executor of a cluster has it."""
    return {**segment, "executor": "SPARK_EXECUTOR_DIRS" in os.environ}


def fewer_columns(batch: Any, most: int) -> Any:
    """Return the rows of an Arrow batch with an amount up to ``most``, with two columns."""
    from pyarrow import compute

    kept = batch.filter(compute.less_equal(batch.column("amount"), most))
    return kept.select(["id", "amount"])


def noted_rows(batch: Any, folder: str) -> Any:
    """Return an Arrow batch, and note the number of its rows in a file of its own."""
    file, _ = tempfile.mkstemp(dir=folder)
    os.write(file, str(batch.num_rows).encode())
    os.close(file)
    return batch


def large_order(segment: Any) -> Any:
    """Return a part of a large order, or nothing."""
    return {"id": segment["id"], "user": segment["user"]} if segment["amount"] > 40 else None


def hold_at(segment: Any, id: int, folder: str) -> Any:
    """Return the segment; at one of them, note it in a file and wait for another file."""
    if segment["id"] == id:
        (Path(folder) / "held").touch()
        hold(segment, f"{folder}/go")
    return segment


def noted(rows: Any, facts: dict[str, Any]) -> None:
    """Write the facts of a call to the files that its rows name."""
    for row in rows.to_pylist():
        with open(row["value"], "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def unless_mended(segment: Any, flag: str) -> Any:
    """Raise an error for a segment that says so, until the file exists."""
    if segment.get("fail") and not Path(flag).exists():
        raise ValueError("not mended yet")
    return segment
