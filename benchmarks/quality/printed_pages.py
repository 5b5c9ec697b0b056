"""Files of docs/ that are made from the code: the commands' reference, schemas and the picture.

`python -m benchmarks.quality.printed` writes them; `tests/test_printed.py` holds that they are up
to date.
"""

import json
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click
import msgspec
import typer
from typer.cli import get_docs_for_click

from benchmarks.quality.printed_picture import picture
from millrace import cli
from millrace.models.graph import Graph
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Device
from millrace.planner.clusters.assumed_shares import SHARES
from millrace.planner.clusters.cluster_files import ClusterFile
from millrace.planner.plan import Plan

DOCS = Path(__file__).resolve().parents[2] / "docs"

# File name -> type, what it is, and which command writes or reads it.
DOCUMENTS: dict[str, tuple[type, str, str]] = {
    "graph": (Graph, "what is computed: ops and tensors, no devices", "lies inside a Plan"),
    "plan": (Plan, "who computes what", "`millrace plan -o FILE`"),
    "actor_graph": (ActorGraph, "the plan compiled", "`PlanResult.compile` from Python"),
    "trace": (Trace, "what every actor did, and when", "`--trace FILE` of `simulate` and `run`"),
    "profile": (Device, "a device as it was measured", "`millrace profile -o FILE`"),
    "cluster": (ClusterFile, "a cluster of one's own, in TOML", "`--cluster FILE`"),
}

CLI_INTRODUCTION = """\
# The command line

This page is generated from the commands themselves (`python -m benchmarks.quality.printed`);
`millrace COMMAND --help` prints the same.

Every command takes `--json` and then prints one JSON document on stdout and nothing else; progress
and warnings go to stderr. `millrace --install-completion` teaches your shell to complete commands,
options, models, devices and frameworks.

| exit code | meaning |
|--:|---|
| 0 | done |
| 1 | the answer is no: nothing fits, the pins leave no plan, a comparison is off |
| 2 | the question cannot be understood: an unknown name, a malformed file, a bad value |
| 3 | it failed while running: a rank died, a disk is full |
| 130, 143, 129 | ended by Ctrl-C (after which `plan` gives its best so far), SIGTERM, SIGHUP |

"""

SCHEMAS_INTRODUCTION = """\
# Schemas of the documents

JSON Schema (2020-12) of every document that Millrace reads or writes, generated from the types by
`python -m benchmarks.quality.printed`. An unknown key is refused with its path, and so is another
`schema_version`. An editor that knows the schema of a cluster file completes and checks it as you
type; for most editors the first line `#:schema docs/schemas/cluster.schema.json` names it.

Files that Millrace writes name their schema first (`"$schema": "docs/schemas/plan.schema.json"`),
as it lies in this repository. A file may name another place or none: the key is for editors, is
left out when a file is read, and belongs to no digest.

| schema | document | where it comes from |
|---|---|---|
"""


def generated_pages() -> Iterator[tuple[Path, str]]:
    """Yield path and text of every page that is made from the code."""
    yield DOCS / "cli.md", cli_reference()
    for name, dark in (("light", False), ("dark", True)):
        yield DOCS / "images" / f"overview-{name}.svg", picture(dark)
    rows = []
    for name, (document, meaning, origin) in DOCUMENTS.items():
        file = f"{name}.schema.json"
        rows.append(f"| [{file}]({file}) | {document.__name__}: {meaning} | {origin} |\n")
        yield DOCS / "schemas" / file, json.dumps(schema(document), indent=1) + "\n"
    yield DOCS / "schemas" / "README.md", SCHEMAS_INTRODUCTION + "".join(rows)


def schema(document: type) -> dict[str, Any]:
    """JSON Schema of a document's type; a file may name it, what lies inside another may not."""
    generated = msgspec.json.schema(document)
    kinds = generated["$defs"]
    for kind in kinds.values():
        if "description" in kind:  # docstrings, which some versions of msgspec give as indented
            kind["description"] = cleandoc(kind["description"])
    if document is ClusterFile:  # whose devices may leave out what is assumed then
        device = kinds["Device"]
        device["required"] = [field for field in device["required"] if field not in SHARES]
    name = generated["$ref"].rpartition("/")[2]
    root = kinds[name]
    within = json.dumps([root, *(kind for other, kind in kinds.items() if other != name)])
    if f'"#/$defs/{name}"' not in within:
        del kinds[name]
    properties = {"$schema": {"type": "string"}} | root["properties"]
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return dialect | root | {"properties": properties, "$defs": kinds}


def cli_reference() -> str:
    """Markdown of every command with its arguments and options."""
    command = typer.main.get_command(cli.filled_app())
    for child in command.commands.values():  # type: ignore[attr-defined]
        child.short_help = (child.help or "").split("\n\n")[0].replace("\n", " ")
    with click.Context(command, info_name="millrace") as context:  # type: ignore[arg-type]
        text = get_docs_for_click(obj=command, ctx=context, name="millrace")
    start = text.index("**Commands**")
    lines = (line.rstrip() for line in text[start:].splitlines())
    return CLI_INTRODUCTION + "\n".join(lines).rstrip() + "\n"
