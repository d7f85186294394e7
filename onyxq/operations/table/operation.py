"""The parts of a row of the table of operations, and how it decodes arguments.

Arguments and results are `msgspec` structs whose field types carry limits and descriptions.  The docstring of
the arguments is the operation's text: its first line in lists, all of it in the reference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
from attrs import field, frozen

from onyxq.core.errors import BadRequest
from onyxq.core.ids import TaskId
from onyxq.core.limits import Member, members
from onyxq.operations.table.access import Access
from onyxq.operations.table.problems import refuse


class Args(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the arguments of operations."""


class Result(msgspec.Struct):
    """Base of the results of operations."""


class Done(Result):
    """An answer without members."""


A = TypeVar("A", bound=Args)
R = TypeVar("R", bound=Result)
S = TypeVar("S", bound=msgspec.Struct)


class Place(Enum):
    """Where an operation runs."""

    ANY_PEER = "any peer"
    LEADER = "the leader of a partition"
    ALL_LEADERS = "all leaders"


@frozen(kw_only=True)
class Items:
    """The argument whose items belong to partitions: an id each, or a list or tuple that begins with one."""

    argument: str
    runs: bool = False
    """Whether they are runs, and an answer lists the refused parts: first id, count and error. Else it may be one."""

    def of(self, args: msgspec.Struct) -> Sequence[Any]:
        """Return the items of a request."""
        found: Sequence[Any] = getattr(args, self.argument)
        return found

    def part(self, args: S, places: Sequence[int]) -> S:
        """Return a request with only the items at these places, which rise."""
        items = self.of(args)
        if len(places) == len(items):
            return args
        return msgspec.structs.replace(args, **{self.argument: [items[place] for place in places]})

    def refused(self, item: Any, error: dict[str, Any]) -> Any:
        """Return the answer to an item that is refused as a whole."""
        return [[item[0], item[1], error]] if self.runs else error


def id_of(item: Any) -> TaskId:
    """Return the id of an item, or of its first task."""
    return TaskId(item if isinstance(item, bytes) else item[0])


@frozen(kw_only=True)
class Http:
    """An operation over HTTP. Arguments that are not in the path are in the query of GET and DELETE, or in the body."""

    verb: str
    path: str
    """Words in braces are arguments."""
    id: str
    """The operation's id in OpenAPI, for generated clients."""
    tag: str
    status: int = 200
    fixed: Mapping[str, Any] = field(factory=dict)
    """Arguments that it always has."""
    whole: str = ""
    """The argument that the whole body is; empty: the body has the arguments as members."""
    shows: Operation[Any, Any] | None = None
    """The operation whose answer follows, with the arguments of the same names."""
    errors: tuple[int, ...] = ()
    """Statuses of its own errors."""
    waits: bool = False
    """Whether the answer may wait for long."""
    pages: str = ""
    """Member of the answer with the items of a page, which may also be streamed as lines."""


@frozen(kw_only=True)
class Verb:
    """An operation on the command line. Needed arguments are positional, the others are options."""

    name: str
    """Noun and verb."""
    about: str
    """What it does, for ``--help``, in lower case."""
    example: str = ""
    """Arguments of an example."""
    fields: tuple[str, ...] | None = None
    """Arguments that it has; None: all but those that are fixed."""
    fixed: Mapping[str, Any] = field(factory=dict)
    positional: tuple[str, ...] = ()
    """Arguments that are positional, and needed only here."""
    pairs: bool = False
    """Whether settings are given as KEY=VALUE."""
    shows: Operation[Any, Any] | None = None
    """The operation whose answer it prints afterwards."""
    columns: tuple[str, ...] = ()
    """Columns of a list: members and properties of an item. Or fields of one thing in their order; none: all."""
    terminal: tuple[str, ...] = ()
    """Columns of a list of tasks on a terminal, where each has one line; the last one is cut. None: as elsewhere."""
    empty: str = ""
    """Text for an empty list; empty: the answer is not a list."""
    says: str = ""
    """Text in place of the fields, with names of arguments in braces; JSON has the fields."""
    remark: Callable[[Any], str] | None = None
    """What to add about an answer on stderr; empty: nothing."""
    done: str = ""
    """Text of an answer that has nothing to show."""
    pages: bool = False
    """Whether it prints page after page, up to a limit or all."""
    run: str = ""
    """``module:function`` that runs it; empty: it makes the call and prints the answer."""
    more: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...] = ()
    """Options that are not arguments, as argparse takes them."""


@frozen(kw_only=True, eq=False, slots=False)
class Operation(Generic[A, R]):
    """One row of the table."""

    name: str
    """The method on the wire."""
    args: type[A]
    result: type[R]
    access: Access
    place: Place = Place.ANY_PEER
    items: Items | None = None
    """The items that it is split into, each for the leader of its partition."""
    reads: bool = False
    """Whether it changes nothing."""
    bounded: bool = False
    """Whether it is refused while too many writes are in progress."""
    large: bool = False
    """Whether its arguments may be large: lists of tasks, or data."""
    http: Http | None = None
    verbs: tuple[Verb, ...] = ()
    defaults: Mapping[str, Any] = field(factory=dict)
    """Default of each argument that null resets, where null is a value."""
    python: str = ""
    """The method of `onyxq.Client`."""
    python_names: Mapping[str, str] = field(factory=dict)
    """Arguments that have another name there."""
    python_needed: tuple[str, ...] = ()
    """Arguments that are needed only there."""
    python_chosen: tuple[str, ...] = ()
    """Arguments that are needed, and that the client chooses if its caller does not."""
    python_left_out: tuple[str, ...] = ()
    """Arguments that other methods of the client have."""
    example: Mapping[str, Any] = field(factory=dict)

    @property
    def summary(self) -> str:
        """What it does, in one line without a full stop."""
        return inspect.getdoc(self.args).splitlines()[0].removesuffix(".")  # type: ignore[union-attr]

    @property
    def description(self) -> str:
        """The rest of its text, in one line."""
        return " ".join((inspect.getdoc(self.args) or "").split("\n")[1:]).strip()

    @property
    def members(self) -> Mapping[str, Member]:
        """Its arguments by name."""
        return members(self.args)

    def reset(self, name: str) -> Any:
        """Return the value that resets an argument: null, or its default where null is a value."""
        return self.defaults.get(name)

    def decode(self, given: Any) -> A:
        """Return the arguments from a map as it came over the wire; raises `BadRequest` naming the field."""
        if isinstance(given, msgspec.Raw):
            try:
                return self._decoder.decode(given)
            except msgspec.ValidationError:
                given = unpacked(given)  # to name the field
            except (ValueError, RecursionError) as error:
                raise _malformed(error) from None
        return converted(self.args, given)

    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[A]:
        return msgspec.msgpack.Decoder(self.args)


T = TypeVar("T")


def unpacked(given: msgspec.Raw) -> Any:
    """Return arguments as they came over the wire as a map; raises `BadRequest`."""
    try:
        return msgspec.msgpack.decode(given)
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> BadRequest:
    return BadRequest(f"the arguments are not MessagePack: {error}")


def converted(kind: type[T], given: Any, *, within: str = "") -> T:
    """Return a value of plain parts as a type; raises `BadRequest` naming the field, which is ``within`` another."""
    try:
        return msgspec.convert(given, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        refuse(kind, given, error, within=within)


def plain(value: Any) -> Any:
    """Return a struct as maps, lists and other parts that msgpack holds; other values as they are."""
    return msgspec.to_builtins(value, builtin_types=(bytes,)) if isinstance(value, msgspec.Struct) else value
