"""Bytes of jobs: canonical msgpack, so that equal jobs have equal bytes and digests.

A job is a map from the names of its fields to their values, without fields that have their default. Entries of the
catalog have a ``type``. Predicates are ``{"fn", "params"}``, ``{"and": [...]}``, ``{"or": [...]}`` or
``{"not": ...}``. Functions are ``{"import": "package.module:name"}`` or ``{"pickled": bytes, "named": name}``. This
module never loads a pickle: decoded jobs hold its bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import msgpack

from onyxq.core.errors import BadRequest, TooLarge
from onyxq.jobs import model
from onyxq.jobs.functions import named_or_pickled
from onyxq.jobs.predicates import And, Not, Or, Pickled, Predicate
from onyxq.system.settings import did_you_mean

BODY_BYTES_MAX = 192 * 1024
DIGEST_BYTES = 16
DEPTH_MAX = 32
"""Largest depth of maps and lists inside each other."""

TASKS: dict[str, type[Any]] = {
    "input": model.Input,
    "function": model.Function,
    "reduce": model.Reduce,
    "join": model.Join,
    "frame": model.Frame,
    "sql": model.Sql,
    "batch_function": model.BatchFunction,
    "output": model.Output,
}
REFS = frozenset(
    "fn on key time init fold merge result transform before_job after_job before_batch after_batch on_exception "
    "foreach_batch".split()
)
"""Fields that hold or may hold a function."""


def encode(job: model.Job) -> bytes:
    """Return the job's bytes; raise `BadRequest` if it cannot be encoded, `TooLarge` above 192 KiB."""
    return encode_map(to_map(job))


def encode_map(said: Mapping[str, Any]) -> bytes:
    """Return the bytes of a job's map, as made by `to_map` or from a request's checked JSON."""
    try:
        data: bytes = msgpack.packb(canonical(said, ""))
    except (OverflowError, UnicodeEncodeError, ValueError) as error:
        raise BadRequest(f"the job cannot be encoded: {error}", field="job") from None
    if len(data) > BODY_BYTES_MAX:
        raise TooLarge(f"a job of {len(data)} bytes; at most {BODY_BYTES_MAX}", field="job")
    return data


def digest(body: bytes) -> bytes:
    """Return a digest of 16 bytes that identifies the job's bytes."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def decode(body: bytes) -> model.Job:
    """Return the job of such bytes; raise `BadRequest` naming the field if they do not encode a job.

    `onyxq.jobs.job_check.check` then checks the values of the fields.
    """
    if len(body) > BODY_BYTES_MAX:
        raise TooLarge(f"a job of {len(body)} bytes; at most {BODY_BYTES_MAX}", field="job")
    try:
        said = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise BadRequest("the job is not msgpack", field="job") from None
    return from_map(said)


def canonical(value: Any, path: str, depth: int = 0) -> Any:
    """Return plain values, with maps sorted by key; raise `BadRequest` for a value that msgpack cannot hold."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if depth > DEPTH_MAX:
        raise BadRequest(f"{path or 'job'} is more than {DEPTH_MAX} levels deep", field=path or "job")
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise BadRequest(f"{path or 'job'} must have strings as its keys", field=path or "job")
        return {key: canonical(value[key], _inside(path, key), depth + 1) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [canonical(one, f"{path}[{place}]", depth + 1) for place, one in enumerate(value)]
    raise BadRequest(f"{path or 'job'} holds a {type(value).__name__}, which msgpack cannot", field=path or "job")


def _inside(path: str, key: str) -> str:
    """Return the path of a map's key as errors show it."""
    return f"{path}.{key[:80] or repr(key)}".removeprefix(".")


def to_map(value: Any) -> Any:
    """Return the map of a job or of a part of it; functions without an importable name are pickled."""
    if isinstance(value, tuple):
        return [to_map(one) for one in value]
    if isinstance(value, Pickled):
        return {"named": value.named, "pickled": value.pickled}
    for kind, word in ((And, "and"), (Or, "or")):
        if isinstance(value, kind):
            return {word: [to_map(one) for one in getattr(value, "all" if kind is And else "any")]}
    if isinstance(value, Not):
        return {"not": to_map(value.negated)}
    if not attrs.has(type(value)):
        return value
    said = {} if type(value) not in TASKS.values() else {"type": _type_of(value)}
    for part in attrs.fields(type(value)):
        inside = getattr(value, part.name)
        if inside != _default(part, value):
            name = part.name.rstrip("_")
            said[name] = to_map(_reference(inside) if part.name in REFS else inside)
    return said


def _type_of(task: Any) -> str:
    return next(word for word, kind in TASKS.items() if type(task) is kind)


def _default(part: attrs.Attribute[Any], value: Any) -> Any:
    default: Any = part.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return default.factory(value) if default.takes_self else default.factory()
    return None if part.name == "id" and isinstance(value, model.Job) else default


def _reference(value: Any) -> Any:
    if callable(value):
        value = named_or_pickled(value)
    return {"import": value} if isinstance(value, str) and ":" in value else value


# --- the way back ---------------------------------------------------------------


def from_map(said: Any) -> model.Job:
    """Return the job that a map describes: from `to_map`, or a request's JSON (with ``pickled`` as base64)."""
    job = _object(model.Job, canonical(said, ""), "")
    assert isinstance(job, model.Job)
    return job


def _object(cls: type[Any], said: Any, path: str, ignoring: tuple[str, ...] = ()) -> Any:
    """Return a value of ``cls`` from the map of its fields."""
    said = _map(said, path)
    parts = {part.name.rstrip("_"): part for part in attrs.fields(cls)}
    values: dict[str, Any] = {}
    for key, value in said.items():
        place = _inside(path, key)
        if key in ignoring:
            continue
        if key not in parts:
            raise BadRequest(f"{place}: a {cls.__name__} has no such key{did_you_mean(key, list(parts))}", field=place)
        values[parts[key].name] = _value(cls, key, value, place)
    for key, part in parts.items():
        if part.default is attrs.NOTHING and part.name not in values:
            place = _inside(path, key)
            raise BadRequest(f"{place} is missing: a {cls.__name__} has one", field=place)
    return cls(**values)


def _value(cls: type[Any], key: str, value: Any, path: str) -> Any:
    if value is None:
        return None
    if (cls, key) in _NESTED:
        return _NESTED[cls, key](value, path)
    if key in REFS:
        return _ref(value, path)
    return value


def _ref(said: Any, path: str) -> Any:
    if not isinstance(said, Mapping):
        return said
    if set(said) == {"import"}:
        return said["import"]
    if set(said) == {"pickled", "named"}:
        return Pickled(str(said["named"]), _bytes(said["pickled"], f"{path}.pickled"))
    raise BadRequest(
        f'{path} must be {{"import": "package.module:name"}} or {{"pickled": ..., "named": ...}}', field=path
    )


def _bytes(value: Any, path: str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise BadRequest(f"{path} must be bytes, or base64 in JSON", field=path) from None


def _map(said: Any, path: str) -> Mapping[str, Any]:
    if isinstance(said, Mapping) and all(type(key) is str for key in said):
        return said
    raise BadRequest(f"{path or 'job'} must be a map, not {type(said).__name__}", field=path or "job")


def _list(said: Any, path: str, one: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    if not isinstance(said, (list, tuple)):
        raise BadRequest(f"{path} must be a list, not {type(said).__name__}", field=path)
    return tuple(one(value, f"{path}[{place}]") for place, value in enumerate(said))


def _task(said: Any, path: str) -> Any:
    word = _map(said, path).get("type")
    kind = TASKS.get(word) if isinstance(word, str) else None
    if kind is None:
        near = did_you_mean(word, list(TASKS)) if isinstance(word, str) else ""
        place = f"{path}.type"
        raise BadRequest(f"{place} must be one of {', '.join(TASKS)}, not {word!r:.80}{near}", field=place)
    return _object(kind, said, path, ignoring=("type",))


def _predicate(said: Any, path: str) -> Any:
    if isinstance(said, str):
        return Predicate(said)
    said = _map(said, path)
    if set(said) in ({"import"}, {"pickled", "named"}):
        return Predicate(_ref(said, path))
    for word, kind in (("and", And), ("or", Or)):
        if set(said) == {word}:
            return kind(_list(said[word], f"{path}.{word}", _predicate))
    if set(said) == {"not"}:
        return Not(_predicate(said["not"], f"{path}.not"))
    return _object(Predicate, said, path)


def _aggregation(said: Any, path: str) -> Any:
    return said if isinstance(said, str) else _object(model.Aggregation, said, path)


def _each(cls: type[Any]) -> Callable[[Any, str], Any]:
    return lambda said, path: _list(said, path, lambda one, at: _object(cls, one, at))


_NESTED: dict[tuple[type[Any], str], Callable[[Any, str], Any]] = {
    (model.Job, "catalog"): lambda said, path: _list(said, path, _task),
    (model.Job, "flow_conditions"): _each(model.Condition),
    (model.Job, "windows"): _each(model.Window),
    (model.Job, "triggers"): _each(model.Trigger),
    (model.Job, "lifecycles"): _each(model.Lifecycle),
    (model.Job, "host"): lambda said, path: _object(model.HostSettings, said, path),
    (model.Condition, "when"): _predicate,
    (model.Trigger, "predicate"): _predicate,
    (model.Window, "aggregation"): _aggregation,
}


def pickles_in(value: Any, path: str = "") -> Iterator[str]:
    """Yield the places of pickled functions in a job's map."""
    if isinstance(value, Mapping):
        if "pickled" in value:
            yield f"{path}.pickled".lstrip(".")
        for key, item in value.items():
            yield from pickles_in(item, f"{path}.{key[:80]}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from pickles_in(item, f"{path}[{place}]")
