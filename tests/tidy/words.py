"""Words that make text hard to read for non-native speakers.

Each is a pattern with what to write instead. Text is checked without code: literals, names in
backquotes and blocks of code may contain anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

WORDS = {
    r"who(?:m)?ever": "name the component",
    r"how manieth": "the number of",
    r"so many(?! that)": "a number",
    r"of which": "begin a second sentence",
    r"(?<!lags )(?<!lag )(?<!falls )(?<!fall )(?<!fell )(?<!records )(?<!far )(?<!is )(?<!are )(?<!left )"
    r"behind(?! (?:a|the|one) (?:proxy|firewall|interface))": "after",
    r"(?:can|could|to|may|must) be had": "available",
    r"is told|are told|was told|were told|be told": "is reported, or name who sends it",
    r"stands? for": "means",
    r"goes on|go on|went on|going on": "continues",
    r"by itself": "automatically, or on its own",
    r"nothing of it": "none",
    r"what bec(?:ame|omes) of": "the outcome of",
    r"one that is": "begin a second sentence",
    r"comes? to (?:be|lie)": "is",
    r"with commas between them": "comma-separated",
    r"be it by": "by",
    r"(?:some|no|any|every)body": "name the component, or use the passive",
    r"anew": "again",
    r"in vain": "without effect",
    r"by halves": "partly",
    r"all the same": "nevertheless, or still",
    r"at (?:its|their|the log's)? ?leisure": "later",
    r"(?:is|are|was|were|be|been) handed out": "is granted, or returned",
    r"befalls?": "happens to",
    r"as ever": "as usual",
    r"(?<!there )is no (?!longer|more|limit)[a-z]+": "is not a",
}
"""Pattern -> what to write instead."""

_PATTERNS = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), pattern, instead) for pattern, instead in WORDS.items()]
_LITERALS = re.compile(r"``.+?``|`[^`]+`_{0,2}|\"[^\"\n]{1,80}\"", re.DOTALL)


def found_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield ``(line, complaint)`` for each word of the list in a text."""
    plain = _LITERALS.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), text)
    for pattern, _, instead in _PATTERNS:
        for match in pattern.finditer(plain):
            yield plain.count("\n", 0, match.start()) + 1, f"{match[0]!r}: {instead}"


def prose_of_page(text: str) -> str:
    """Return a page of reStructuredText without its blocks of code; lines keep their numbers."""
    out: list[str] = []
    code_indent: int | None = None
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if code_indent is not None and line.strip() and indent <= code_indent:
            code_indent = None
        out.append("" if code_indent is not None else line)
        stripped = line.rstrip()
        if code_indent is None and (stripped.endswith("::") or stripped.lstrip().startswith(".. code-block")):
            code_indent = indent
    return "\n".join(out)


def texts_of_module(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield ``(first line, text)`` of the docstrings of a module, those of constants included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def strings_of_module(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield ``(line, text)`` of the strings of a module that have a space, except docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if " " in node.value.strip():
                yield node.lineno, node.value


def errors_of_module(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield ``(line, text)`` of the messages and hints of errors: the literals of calls that raise or make one.

    A call makes an error if its name begins with a capital letter and it has a ``field`` or ``hint``, or is raised.
    """
    raised = {id(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        keywords = {keyword.arg for keyword in node.keywords}
        if id(node) in raised or (name[:1].isupper() and keywords & {"field", "hint"}):
            texts = [one for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield node.lineno, " ".join(one.value for one in texts)
