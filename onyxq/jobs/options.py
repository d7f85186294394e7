"""Options of each format of inputs and outputs. An unknown option would have no effect, so it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onyxq.jobs.fields import Problem
from onyxq.jobs.model import Input, Output
from onyxq.system.settings import did_you_mean

COMPRESSIONS = ("snappy", "gzip", "zstd", "lz4", "brotli", "none")
OTHER_FIELDS = ("refuse", "drop")
_COLUMNS = ("schema", "other_fields")
OUTPUTS: dict[str, tuple[str, ...]] = {
    "csv": (*_COLUMNS, "header", "sep"),
    "json": _COLUMNS,
    "parquet": (*_COLUMNS, "compression"),
    "text": (),
}
"""Options of outputs by format; `onyxq.spark.files.formats` writes them."""

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
        "orc": f"{_FILES} compression mergeSchema orc.compress",
        "json": f"{_FILES} {_TEXTS} allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers "
        "allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames "
        "dropFieldIfAllNull explodeEmbeddedArray ignoreNullFields inferTimestamp prefersDecimal pretty "
        "primitivesAsString sortKeys useUnsafeRow writeNonAsciiCharacterAsCodePoint",
        "csv": f"{_FILES} {_TEXTS} charToEscapeQuoteEscaping codec columnPruning comment delimiter emptyValue "
        "enforceSchema escape escapeQuotes extension header ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace "
        "inferSchema inputBufferSize maxCharsPerColumn maxColumns nanValue negativeInf nullValue positiveInf "
        "preferDate quote quoteAll sep unescapedQuoteHandling",
        "rate": "numPartitions rampUpTime rowsPerSecond",
        "rate-micro-batch": "advanceMillisPerBatch numPartitions rowsPerBatch startTimestamp",
    }.items()
}
"""Options of inputs by format, for formats that Spark itself reads. Spark ignores the case of an option."""

_VALUES: dict[str, tuple[Callable[[str], bool], str]] = {
    "compression": (COMPRESSIONS.__contains__, f"one of {', '.join(COMPRESSIONS)}"),
    "header": (("true", "false").__contains__, "true or false"),
    "other_fields": (OTHER_FIELDS.__contains__, " or ".join(OTHER_FIELDS)),
    "schema": (lambda said: bool(said.strip()), "names and types of columns, such as 'word string, n bigint'"),
    "sep": (lambda said: len(said) == 1 and said not in '"\r\n', "one character, no quote and no line break"),
}


def problems(job: str, task: Input | Output, path: str) -> Iterator[Problem]:
    """Yield problems with the options of an input or output of a job; ``path`` is its place in the catalog."""
    kind = str(task.format).lower()
    word = "input" if isinstance(task, Input) else "output"
    known = (INPUTS if isinstance(task, Input) else OUTPUTS).get(kind)
    if known is None:
        return  # a format of another package, or one that is refused elsewhere
    said = f"of {word} {task.name!r} ({kind}) of job {job!r}"
    lowered = {name.lower() for name in known}
    for name in task.options:
        if name not in known and (isinstance(task, Output) or name.lower() not in lowered):
            near = did_you_mean(name, list(known)) or f"; there are {', '.join(known) or 'none'}"
            yield f"{path}.options.{name}", f"is not an option {said}{near}"
        elif isinstance(task, Output) and not _VALUES[name][0](task.options[name]):
            yield f"{path}.options.{name}", f"{said} must be {_VALUES[name][1]}, not {task.options[name]!r:.80}"
    if isinstance(task, Output) and "schema" not in task.options:
        if kind == "csv":
            what = f"{said} is missing: CSV has neither names nor types; give them, such as 'word string, n bigint'"
            yield f"{path}.options.schema", what
        elif "other_fields" in task.options:
            yield f"{path}.options.other_fields", f"{said} needs the option schema, which says what the columns are"
