"""The notebook in ``examples/notebooks`` runs, and shows what its text says."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "preview_job.ipynb"
CELL_S_MAX = 300

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # those of Jupyter


def value_of(cell: Any) -> Any:
    """Return the value that a cell shows."""
    (shown,) = [one for one in cell.outputs if one.output_type == "execute_result"]
    return ast.literal_eval(shown.data["text/plain"])


def test_the_notebook_previews_a_job(tmp_path: Path) -> None:
    """It shows outputs, broken lines and late ones, and is stored without outputs."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells)
    client = nbclient.NotebookClient(notebook, timeout=CELL_S_MAX, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    parsed, _, outputs, minutes = cells
    assert value_of(parsed) == {"at_ms": 1000, "path": "/cart", "status": 503}
    found = value_of(outputs)
    counted = sorted((one["key"], one["start_ms"], one["value"]) for one in found["minutes"])
    assert counted == [("/cart", 0, 3), ("/home", 60_000, 1), ("/home", 120_000, 1)]
    assert [one["status"] for one in found["alerts"]] == [503]
    assert [one["value"] for one in found["broken"]] == ["no request"]
    assert "late: 1" in minutes.outputs[0].text
    assert sorted((one["key"], one["value"]) for one in value_of(minutes)) == [("/cart", 2), ("/home", 1)]
