"""A join of two inputs: the imports in Python's standard library, and the lengths of the imported modules.

    python examples/jobs/join_inputs.py

The job::

    imports -> both -> named -> sources   imports of modules that are sources of the library, with their lines (CSV)
    modules ->               -> others    imports of anything else: built in, or a package (JSON)

``both`` is a join. It pairs each import (JSON) with the module (CSV) of the same name. Because
``how`` is ``left``, an import without such a module is an output too, with None in its place. That
is known once both inputs have ended. Two flow conditions choose the output of each pair.
"""

from __future__ import annotations

import ast
import csv
from pathlib import Path
from typing import Any

import running

from onyxq import Condition, Function, Input, Job, Join, Output


def named(pair: dict[str, Any]) -> dict[str, Any]:
    """Return a joined pair as one row."""
    imported, module = pair["left"], pair["right"]
    return {**imported, "lines": module and module["lines"]}


def is_source(row: dict[str, Any]) -> bool:
    """Return whether the imported module was found."""
    return row["lines"] is not None


def is_other(row: dict[str, Any]) -> bool:
    """Return whether the imported module was not found."""
    return row["lines"] is None


def join_inputs(folder: Path) -> Job:
    """Return the job, from two files to two folders."""
    return Job(
        id="join-inputs",
        workflow=[
            *(("imports", "both"), ("modules", "both")),
            *(("both", "named"), ("named", "sources"), ("named", "others")),
        ],
        catalog=[
            Input("imports", format="json", path=str(folder / "imports"), schema="importer string, module string"),
            Input(
                "modules",
                format="csv",
                path=str(folder / "modules"),
                schema="module string, lines int",
                options={"header": "true"},
            ),
            Join("both", left="imports", right="modules", on="module", how="left"),
            Function("named", named),
            Output(
                "sources",
                format="csv",
                path=str(folder / "sources"),
                options={"header": "true", "schema": "importer string, module string, lines int"},
            ),
            Output("others", format="json", path=str(folder / "others")),
        ],
        flow_conditions=[
            Condition("named", to=["sources"], when=is_source),
            Condition("named", to=["others"], when=is_other, exclude=["lines"]),
        ],
        key_groups=2,
    )


def look() -> tuple[list[dict[str, str]], dict[str, int]]:
    """Return all imports in the library, and the number of lines of each module."""
    imports, lines = [], {}
    for file in running.library():
        text = file.read_text("utf-8")
        lines[file.stem] = text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imports += [{"importer": file.stem, "module": alias.name} for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imports.append({"importer": file.stem, "module": node.module})
    return imports, lines


def write(folder: Path, imports: list[dict[str, str]], lines: dict[str, int]) -> None:
    """Write the two inputs."""
    running.write_json(folder / "imports" / "imports.json", imports)
    (folder / "modules").mkdir()
    with open(folder / "modules" / "modules.csv", "w", newline="") as file:
        csv.writer(file).writerows([("module", "lines"), *lines.items()])


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows that an output of the format ``csv`` has written."""
    return [row for part in path.glob("*.csv") for row in csv.DictReader(part.read_text("utf-8").splitlines())]


def main() -> None:
    """Run the job, and compare its results with those of a plain dictionary."""
    imports, lines = look()
    with running.folder() as folder:
        write(folder, imports, lines)
        with running.local_cluster(folder / "peer") as cluster:
            running.run(join_inputs(folder), cluster)
        sources, others = csv_rows(folder / "sources"), running.json_rows(folder / "others")

    print(f"{len(imports):,} imports, {len(lines)} modules")
    running.check(
        "imports of sources",
        ((row["importer"], row["module"], int(row["lines"])) for row in sources),
        ((one["importer"], one["module"], lines[one["module"]]) for one in imports if one["module"] in lines),
    )
    running.check(
        "imports of others",
        (tuple(sorted(row.items())) for row in others),
        (tuple(sorted(one.items())) for one in imports if one["module"] not in lines),
    )


if __name__ == "__main__":
    running.main(main)
