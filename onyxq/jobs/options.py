"""Options of each format of inputs and outputs. An unknown option would have no effect, so it is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from onyxq.jobs.fields import Problem
from onyxq.jobs.model import Input, Output
from onyxq.system.settings import did_you_mean

COMPRESSIONS = ("snappy", "gzip", "zstd", "lz4", "brotli", "none")
OTHER_FIELDS = ("refuse", "drop", "add")
CALL = "foreach_batch"
"""Name that outputs with a function of the user have in place of a format."""
FRAME = "frame"
"""Value of the option ``rows`` with which a function of the user gets a DataFrame."""
TABLES = ("delta", "kafka", "postgres", CALL)
"""Outputs that are not folders of files: tables and topics of other systems, and functions of the user."""
GROWING = ("parquet", "delta")
"""Formats of outputs that can add columns: ``other_fields`` as ``add``."""
_OF_COLUMNS = ("csv", "delta", "json", "parquet", "text")
"""Formats that can hold any value of a column of their schema."""
_NEEDED = {"kafka": ("brokers", "topic"), "postgres": ("url", "table")}
_SIZES = ("file_rows_max", "file_bytes_max")
_COMMON = ("schema", "other_fields")
_COLUMNS = (*_COMMON, "partition_by", *_SIZES)
PRODUCER = "kafka."
"""Prefix of options that are settings of a producer of Kafka, as librdkafka names them."""
_PRODUCER = (
    "batch.size client.id compression.level compression.type linger.ms message.max.bytes partitioner sasl.mechanism "
    "sasl.username security.protocol ssl.ca.location transaction.timeout.ms"
)
OUTPUTS: dict[str, tuple[str, ...]] = {
    "csv": (*_COLUMNS, "header", "sep"),
    "delta": (*_COMMON, "partition_by"),
    "kafka": (
        *(*_COMMON, "brokers", "topic", "key", "value", "headers", "properties"),
        *(f"{PRODUCER}{name}" for name in _PRODUCER.split()),
    ),
    "postgres": (*_COMMON, "url", "table", "key"),
    CALL: (*_COMMON, "rows"),
    "json": _COLUMNS,
    "parquet": (*_COLUMNS, "compression"),
    "text": _SIZES,
}
"""Options of outputs by format; `onyxq.spark.files.formats` writes them."""

CORRUPT = "_corrupt_record"
"""Column of a schema that gets rows which do not fit it; so its name is of no use for other columns."""
BAD_BYTES = "bad_bytes"
"""Option of CSV inputs, our own: whether a string with `REPLACEMENT` is refused, or read as it is."""
BAD_BYTES_VALUES = ("refuse", "replace")
REPLACEMENT = "\ufffd"
"""The character that Spark reads from CSV for bytes that are not text in the encoding of the file."""
FILES = frozenset({"text", "json", "csv", "parquet", "orc", "avro", "xml", "binaryfile"})
"""Formats of inputs that are files."""
STARTING = ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp", "startingoffsetsbytimestampstrategy")
"""Options of Kafka, in lower case, that decide where an input begins."""
_FILES = (
    "basePath cleanSource discardCachedInputRatio fileNameOnly ignoreCorruptFiles ignoreInvalidPartitionPaths "
    "ignoreMissingFiles latestFirst maxBytesPerTrigger maxCachedFiles maxFileAge maxFilesPerTrigger modifiedAfter "
    "modifiedBefore path pathGlobFilter recursiveFileLookup sourceArchiveDir"
)
_TEXTS = (
    "charset columnNameOfCorruptRecord compression dateFormat enableDateTimeParsingFallback encoding lineSep locale "
    "mode multiLine samplingRatio singleVariantColumn timeFormat timeZone timestampFormat timestampNTZFormat"
)
INPUTS: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        "text": f"{_FILES} compression encoding lineSep wholetext",
        "parquet": f"{_FILES} compression datetimeRebaseMode int96RebaseMode mergeSchema parquet.compression",
        "orc": f"{_FILES} compression mergeSchema orc.compress orc.proleptic.gregorian.default",
        "json": f"{_FILES} {_TEXTS} allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers "
        "allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames "
        "dropFieldIfAllNull explodeEmbeddedArray ignoreNullFields inferTimestamp prefersDecimal pretty "
        "primitivesAsString sortKeys useUnsafeRow writeNonAsciiCharacterAsCodePoint",
        "csv": f"{_FILES} {_TEXTS} {BAD_BYTES} charToEscapeQuoteEscaping codec columnPruning comment delimiter "
        "emptyValue enforceSchema escape escapeQuotes extension header ignoreLeadingWhiteSpace "
        "ignoreTrailingWhiteSpace inferSchema inputBufferSize maxCharsPerColumn maxColumns nanValue negativeInf "
        "nullValue positiveInf preferDate quote quoteAll sep unescapedQuoteHandling",
        "xml": f"{_FILES} arrayElementName attributePrefix charset columnNameOfCorruptRecord compression dateFormat "
        "declaration encoding excludeAttribute ignoreNamespace ignoreSurroundingSpaces indent inferSchema locale mode "
        "multiLine nullValue preferDate prefersDecimal rootTag rowTag rowValidationXSDPath samplingRatio "
        "singleVariantColumn timeFormat timeZone timestampFormat timestampNTZFormat useLegacyXMLParser validateName "
        "valueTag wildcardColName",
        "binaryfile": _FILES,
        "rate": "numPartitions rampUpTime rowsPerSecond",
        "rate-micro-batch": "advanceMillisPerBatch numPartitions rowsPerBatch startTimestamp",
    }.items()
}
"""Options of inputs by format, for formats that Spark itself reads. Spark ignores the case of an option."""


def format_of(task: Input | Output) -> str:
    """Return the format of an input or output, the key of `INPUTS` or `OUTPUTS`."""
    return CALL if isinstance(task, Output) and task.foreach_batch is not None else str(task.format).lower()


def starting_in(task: Input) -> list[str]:
    """Return the options of an input of Kafka that decide where it begins; none for other formats."""
    return [name for name in task.options if name.lower() in STARTING] if format_of(task) == "kafka" else []


def takes_columns(task: Output) -> bool:
    """Return whether an output takes columns as they are: none of its options needs a look at each row."""
    by_row = {"partition_by", *_SIZES} & task.options.keys()
    looks = task.errors is not None or task.options.get("other_fields") == "add" or by_row
    return format_of(task) in _OF_COLUMNS and not looks


def takes_frame(task: Output) -> bool:
    """Return whether an output is a function that gets a DataFrame."""
    return format_of(task) == CALL and task.options.get("rows") == FRAME


def _is_count(said: str) -> bool:
    return said.isascii() and said.isdigit() and 1 <= int(said) <= COUNT_MAX


def names_in(said: str) -> tuple[str, ...]:
    """Return the names in an option with comma-separated names."""
    return tuple(name.strip() for name in said.split(","))


def _are_names(said: str) -> bool:
    names = names_in(said)
    return all(names) and len(set(names)) == len(names)


COUNT_MAX = (1 << 63) - 1
_PASSWORD = re.compile(r"password|secret|^[^?=]*:(?!//)[^?@]*@", re.IGNORECASE)
"""What an address of PostgreSQL with a password contains, also one that PostgreSQL cannot read."""
_COUNT = (_is_count, "a whole number from 1")
_NAME = (lambda said: bool(said.strip()) and "," not in said, "the name of one column")
_NAMES = (_are_names, "names of different columns, comma-separated")
_BROKERS = re.compile(r"[^\s,:@/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_NO_SEPARATORS = '"\\\r\n'
_SEPARATOR = "one character up to U+FFFF, which Spark can read: no quote, backslash or line break"
_VALUES: dict[str, tuple[Callable[[str], bool], str]] = {
    "compression": (COMPRESSIONS.__contains__, f"one of {', '.join(COMPRESSIONS)}"),
    "file_bytes_max": _COUNT,
    "file_rows_max": _COUNT,
    "key": _NAMES,
    "header": (("true", "false").__contains__, "true or false"),
    "other_fields": (OTHER_FIELDS.__contains__, f"one of {', '.join(OTHER_FIELDS)}"),
    "partition_by": _NAMES,
    "rows": (("arrow", FRAME).__contains__, f"arrow or {FRAME}"),
    "schema": (lambda said: bool(said.strip()), "names and types of columns, such as 'word string, n bigint'"),
    "table": (lambda said: all(said.split(".")) and said.count(".") < 2, "a table, or schema.table"),
    "url": (lambda said: not _PASSWORD.search(said), "without a password: everyone who sees the job would see it"),
    "sep": (lambda said: len(said) == 1 and said not in _NO_SEPARATORS and said <= "\uffff", _SEPARATOR),
}
_OF_KAFKA: dict[str, tuple[Callable[[str], bool], str]] = {
    "brokers": (lambda said: all(map(_BROKERS.fullmatch, names_in(said))), "HOST:PORT of brokers, comma-separated"),
    "topic": (lambda said: bool(_TOPIC.fullmatch(said)), "a topic: letters, digits, '.', '_' and '-'"),
    "key": _NAME,
    "value": _NAME,
    "headers": _NAMES,
    "properties": (lambda said: said.startswith("/"), "the absolute path of a file"),
    "kafka.message.max.bytes": _COUNT,
}
"""Values of options of Kafka; the client itself checks the other settings of a producer when the job starts."""
_ELSEWHERE = {"kafka": "; all other settings of the client, and passwords, belong in the file that properties names"}
"""Format -> what an unknown option may need instead."""


def _value_of(kind: str, name: str) -> tuple[Callable[[str], bool], str]:
    """Return the check of an output's option, and the expected value in words."""
    if kind != "kafka" or name in _COMMON:
        return _VALUES[name]
    return _OF_KAFKA.get(name, (bool, "a setting of librdkafka"))


def problems(job: str, task: Input | Output, path: str) -> Iterator[Problem]:
    """Yield problems with the options of an input or output of a job; ``path`` is its place in the catalog."""
    kind = format_of(task)
    word = "input" if isinstance(task, Input) else "output"
    known = (INPUTS if isinstance(task, Input) else OUTPUTS).get(kind)
    if known is None:
        return  # a format of another package, or one that is refused elsewhere
    said = f"of {word} {task.name!r} ({kind}) of job {job!r}"
    lowered = {name.lower() for name in known}
    for name in task.options:
        if name not in known and (isinstance(task, Output) or name.lower() not in lowered):
            near = did_you_mean(name, list(known)) or f"; there are {', '.join(known) or 'none'}"
            yield f"{path}.options.{name}", f"is not an option {said}{near}{_ELSEWHERE.get(kind, '')}"
        elif isinstance(task, Output) and not _value_of(kind, name)[0](task.options[name]):
            shown = "" if name == "url" else f", not {task.options[name]!r:.80}"
            yield f"{path}.options.{name}", f"{said} must be {_value_of(kind, name)[1]}{shown}"
        elif name.lower() == BAD_BYTES and task.options[name] not in BAD_BYTES_VALUES:
            known_values = " or ".join(BAD_BYTES_VALUES)
            yield f"{path}.options.{name}", f"{said} must be {known_values}, not {task.options[name]!r:.80}"
    if isinstance(task, Output):
        yield from _of_columns(task, kind, path, said)


def problems_of_start(task: Input, path: str) -> Iterator[Problem]:
    """Yield the problem with the time at which an input begins, if there is one."""
    if task.since_ms is None:
        return
    kind, where = format_of(task), f"{path}.since_ms"
    if task.queue is not None:
        yield where, f"is for files and Kafka: input {task.name!r} is a queue, whose tasks are read once"
    elif task.static:
        yield where, f"is for streams: each batch reads input {task.name!r} as a whole"
    elif kind not in FILES and kind != "kafka":
        yield where, f"is for files and Kafka: input {task.name!r} is {kind}"
    elif starting_in(task):
        yield where, f"of input {task.name!r} excludes its option {starting_in(task)[0]}: both say where it begins"


def _of_columns(task: Output, kind: str, path: str, said: str) -> Iterator[Problem]:
    """Yield the problems of an output's options with each other: missing ones, and ones that need another."""
    grows = task.options.get("other_fields") == "add"
    if grows and kind not in GROWING:
        what = f"{said} cannot be add: only {' and '.join(GROWING)} can add columns"
        yield f"{path}.options.other_fields", what
    for name in _NEEDED.get(kind, ()):
        if name not in task.options:
            yield f"{path}.options.{name}", f"{said} is missing"
    if "schema" in task.options:
        return
    if takes_frame(task):
        what = f"{said} is missing: a DataFrame has columns; name them and their types, such as 'n bigint'"
        yield f"{path}.options.schema", what
    if kind == "postgres":
        yield f"{path}.options.schema", f"{said} is missing: name the columns and their types, such as 'n bigint'"
    if kind == "csv":
        what = f"{said} is missing: CSV has neither names nor types; give them, such as 'word string, n bigint'"
        yield f"{path}.options.schema", what
    elif "other_fields" in task.options and not grows:
        yield f"{path}.options.other_fields", f"{said} needs the option schema, which names the columns"
    if "partition_by" in task.options:
        yield f"{path}.options.partition_by", f"{said} needs the option schema, which has the types of the columns"
