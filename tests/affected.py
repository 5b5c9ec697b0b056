"""Affected tests: those whose import closure holds a file that has changed, nearest first.

``python -m tests.affected [REV]`` prints, for each file of tests, by how many imports it lies from
a file that differs from REV (`HEAD` where none is given), how many cases it has and how long they
take by `durations.json`. ``--within 60`` keeps the nearest whose seconds together are not more;
``--run -m fast`` runs what is printed, with options of pytest's.

A name that is imported from a package, or read of `millrace`, counts for the file that defines it.
A module that names another in a text (`"millrace.executor.worker"`) runs it; one with a text that
begins with `millrace`, or with a shell, runs the command line. A file without imports of its own (a
table, a source in C, a page) is read by the modules that name it or its kind.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.durations import recorded
from tests.test_layering import ALLOWED, ROOT, home, nodes

COMMAND_LINE = ROOT / "millrace" / "cli.py"


@cache
def modules() -> tuple[Path, ...]:
    """All files of Python that tests may reach."""
    folders = (*ALLOWED, "benchmarks", "tests", "examples")
    return tuple(path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def place_of(dotted: str) -> Path | None:
    """The file in which a dotted name of ours is defined; None where it is not ours."""
    top, *rest = dotted.split(".")
    if top == "millrace":
        place, names = home(dotted)
    elif top in ("tests", "benchmarks"):
        place, names = ROOT / top, rest
        while names and (place / names[0]).is_dir():
            place /= names.pop(0)
        if names and (place / f"{names[0]}.py").exists():
            place /= f"{names.pop(0)}.py"
    else:
        return None
    if place.is_file():
        return place
    door = place / "__init__.py"
    if not door.exists():
        return None
    for node in nodes(door) if names else ():
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == names[0]:
                    return place_of(f"{node.module}.{alias.name}")
    return door


def reached(path: Path) -> Iterator[Path | None]:
    """The files that a module imports, names in a text, or starts."""
    outside = path.relative_to(ROOT).parts[0] not in ALLOWED
    for node in nodes(path):
        match node:
            case ast.ImportFrom(module=module, names=names):
                yield from (place_of(f"{module}.{alias.name}") for alias in names)
            case ast.Import(names=names):
                yield from (place_of(alias.name) for alias in names if alias.name != "millrace")
            case ast.Attribute(value=ast.Name(id="millrace"), attr=name):
                yield place_of(f"millrace.{name}")
            case ast.Constant(value=str(text)):
                if re.fullmatch(r"(millrace|benchmarks)(\.\w+)+", text):
                    yield place_of(text)
                elif outside and re.match(r"bash$|millrace( |$)", text):
                    yield COMMAND_LINE


@cache
def import_graph() -> nx.DiGraph:
    """An edge from every module to each that it reaches, directly; fixtures are imported too."""
    graph = nx.DiGraph()
    graph.add_nodes_from(modules())
    for path in modules():
        if path == ROOT / "millrace" / "__init__.py":
            continue  # its names count for the files that define them
        graph.add_edges_from((path, target) for target in reached(path) if target)
        fixtures = (folder / "conftest.py" for folder in path.relative_to(ROOT).parents)
        graph.add_edges_from((path, ROOT / name) for name in fixtures if (ROOT / name).exists())
    return graph


def readers(changed: Path) -> Iterator[Path]:
    """Modules that read a file without imports of its own; tests that read all of Python."""
    python = changed.suffix == ".py"
    named = rf"{re.escape(changed.name)}|{re.escape(changed.suffix)}\""
    pattern = r"rglob\(\"\*\.py\"\)" if python else named
    for path in modules():
        if (not python or path.name.startswith("test_")) and re.search(pattern, path.read_text()):
            yield path


def affected(changed: Sequence[Path]) -> dict[str, int]:
    """Files of tests that changed files reach, nearest first, each with the imports between."""
    graph = import_graph().reverse()
    graph.add_nodes_from(changed)
    for path in changed:
        graph.add_edges_from((path, reader) for reader in readers(path))
    distances: dict[str, int] = {}
    for path in changed:
        for place, distance in nx.single_source_shortest_path_length(graph, path).items():
            name = place.relative_to(ROOT).as_posix()
            if place.name.startswith("test_") and place.is_file() and name.startswith("tests/"):
                distances[name] = min(distance, distances.get(name, distance))
    return dict(sorted(distances.items(), key=lambda entry: (entry[1], entry[0])))


def changed_files(revision: str) -> list[Path]:
    """Files that differ from a revision, and those that it does not know."""
    commands = (
        ["git", "diff", "--name-only", "-z", revision],
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
    )
    listed = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in commands
    )
    return [ROOT / name for names in listed for name in names.split("\0") if name]


def main(arguments: Sequence[str]) -> int:
    """Print the affected tests; run them where this is asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.affected", description=__doc__)
    parser.add_argument("revision", nargs="?", default="HEAD", metavar="REV")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="OPTION", help="pytest's")
    options = parser.parse_args(arguments)
    try:
        changed = changed_files(options.revision)
    except subprocess.CalledProcessError:
        parser.error(f"{options.revision}: no revision that git knows")
    durations, seconds, cases, chosen = recorded(), 0.0, 0, list[str]()
    for name, distance in affected(changed).items():
        record = durations.get(name)
        if record and seconds + record.seconds > options.within:
            continue
        seconds += record.seconds if record else 0.0
        cases += record.cases if record else 0
        chosen.append(name)
        size = f"{record.cases:5} cases {record.seconds:7.1f} s" if record else "no duration yet"
        print(f"{distance:2}  {size:>22}  {name}")
    print(f"{len(chosen)} files, {cases} cases, {seconds:.0f} s of one core")
    if options.run is None or not chosen:
        return 0
    return int(pytest.main(["-q", "-n", "2", "--dist", "worksteal", *options.run, *chosen]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
