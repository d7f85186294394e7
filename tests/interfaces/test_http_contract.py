"""The HTTP interface does not change unnoticed: its OpenAPI document is stored beside this test for reviews.

After an intended change: ``python -m tests.interfaces.test_http_contract --write``.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

from onyxq import __version__
from onyxq.interfaces.http.app import ENDPOINTS
from onyxq.interfaces.http.openapi import openapi

GOLDEN = Path(__file__).with_name("openapi.json")


def document() -> str:
    """The document as text, without the program's version."""
    found = openapi(ENDPOINTS, with_tokens=True)
    assert found["info"].pop("version") == __version__
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def test_the_document_is_the_one_that_was_agreed_on() -> None:
    """No path, parameter, body, answer or error of the interface changes unnoticed."""
    kept, now = GOLDEN.read_text("utf-8"), document()
    changes = difflib.unified_diff(kept.splitlines(), now.splitlines(), "agreed on", "now", lineterm="", n=2)
    assert now == kept, "\n".join(changes)


if __name__ == "__main__":
    if "--write" in sys.argv:
        GOLDEN.write_text(document(), "utf-8")
