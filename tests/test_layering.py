"""The layout's own rules: imports follow the arrows, heavy libraries stay behind their doors."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from os.path import commonpath
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parent.parent

ALLOWED = {
    "models": set(),
    "planner": {"models"},
    "simulator": {"models", "planner"},
    "executor": {"models", "planner"},
    "millrace": {"models", "planner", "simulator", "executor"},
}

# Library -> the only paths that may import it.
DOORS = {
    "ortools": ("planner/search/integer_program.py",),
    "mpi4py": ("executor/transport/mpi.py",),
    "simpy": ("simulator/",),
    "typer": ("millrace/",),
    "rich": ("millrace/",),
    "matplotlib": ("millrace/plot.py",),
    "cuda": ("executor/cuda/compiling.py",),
    "cudnn": ("executor/gpu/cudnn/",),
    "cupy": ("executor/gpu/",),
    "torch": ("models/importers/torch_export/",),
    "onnx": ("models/importers/onnx/",),
    "transformers": (),
    "sklearn": ("executor/data/images.py",),
}

BANNED_NAMES = {"utils", "util", "helpers", "common", "misc", "manager", "handler", "engine"}

# Importing these must not bring in any of the heavy libraries.
LIGHT = (
    "millrace.models.graph",
    "millrace.models.zoo.catalogue",
    "millrace.models.importers.huggingface",
    "millrace.models.importers.onnx",
    "millrace.models.importers.torch_export",
    "millrace.planner",
    "millrace.planner.plan",
    "millrace.planner.actors",
    "millrace.planner.actors.graph",
    "millrace.planner.actors.trace",
    "millrace.executor",
    "millrace.executor.gpu.cupy_device",
    "millrace.executor.gpu.nccl",
    "millrace",
)
HEAVY = (
    "ortools",
    "simpy",
    "mpi4py",
    "rich",
    "typer",
    "matplotlib",
    "torch",
    "onnx",
    "sklearn",
    "cudnn",
    "cupy",
)

# A folder at the top is the package of its name inside millrace/, by a link: its files count once.
FILES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))
IDS = [str(path.relative_to(ROOT)) for path in FILES]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported(node: ast.AST) -> Iterator[str]:
    """Yield what an import statement reads: a package of ours, or a library's top-level name."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute, so that the arrows can be read off them"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        top, _, rest = name.partition(".")
        package = rest.partition(".")[0]
        yield package if top == "millrace" and package in ALLOWED else top


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_imports_follow_the_arrows_and_keep_to_the_doors(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    package = place.partition("/")[0]
    for node in ast.walk(tree(path)):
        for name in imported(node):
            where = f"{place}:{getattr(node, 'lineno', 0)} imports {name}"
            if name in ALLOWED and name != package:
                assert name in ALLOWED[package], f"{where}: against the arrows"
            if name in DOORS:
                assert place.startswith(DOORS[name] or ("no file",)), f"{where}: not its door"


def home(dotted: str) -> tuple[Path, list[str]]:
    """The file or folder in which a dotted name of ours lies, and what it is called there."""
    place, rest = ROOT / "millrace", dotted.split(".")[1:]
    if rest and rest[0] in ALLOWED:
        place = ROOT / rest.pop(0)
    while rest and place.is_dir():
        inner = [one for one in (place / rest[0], place / f"{rest[0]}.py") if one.exists()]
        if not inner:
            break
        place = inner[0]
        rest.pop(0)
    return place, rest


def test_neighbours_in_a_folder_import_each_other_one_way() -> None:
    graphs: dict[Path, nx.DiGraph] = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith(
                "millrace."
            ):
                continue
            for target in (home(f"{node.module}.{alias.name}")[0] for alias in node.names):
                above = Path(commonpath((path, target)))
                ends = [one.relative_to(above).parts[:1] for one in (path, target)]
                if ("__init__.py",) not in ends and () not in ends:  # a door is no neighbour
                    graphs.setdefault(above, nx.DiGraph()).add_edge(*(one for (one,) in ends))
    for above, graph in graphs.items():
        if not nx.is_directed_acyclic_graph(graph):
            raise AssertionError(f"in {above.relative_to(ROOT)}: {nx.find_cycle(graph)}")


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_files_and_names_of_ours_that_words_mention_are_there(path: Path) -> None:
    above = [one for one in path.parents if one.is_relative_to(ROOT)]
    for name in re.findall(r"`([\w./]+)`", path.read_text()):
        if name.startswith("millrace."):
            place, rest = home(name)
            text = (place / "__init__.py" if place.is_dir() else place).read_text()
            assert all(re.search(rf"\b{one}\b", text) for one in rest), f"no `{name}`"
        elif re.fullmatch(r"\w[\w/]*(\.(py|cu|cuh)|/)", name) or name.split("/")[0] in ALLOWED:
            known = ((one / name, one / f"{name}.py") for one in above)
            assert any(one.exists() for pair in known for one in pair), f"no `{name}`"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_files_and_functions_stay_short_and_say_what_they_are(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    lines = len(path.read_text().splitlines())
    assert lines <= 500, f"{place} has {lines} lines: split it by noun"
    assert not BANNED_NAMES & set(path.with_suffix("").parts), f"{place}: name the noun"
    module = tree(path)
    assert ast.get_docstring(module), f"{place} has no docstring"
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 70, f"{place}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "__init__.py"], ids=str)
def test_a_package_opens_with_a_docstring_and_at_most_ten_names(path: Path) -> None:
    public = 0
    for node in tree(path).body:
        if isinstance(node, ast.ImportFrom):
            public += len(node.names)
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            assert names in (["__all__"], ["__version__"]), f"{path}: logic in a package's door"
        else:
            assert isinstance(node, ast.Expr), f"{path}:{node.lineno}: logic in a package's door"
    assert public <= 10, f"{path} hands out {public} names"


def test_no_folder_is_empty_and_none_holds_more_than_fifteen_modules() -> None:
    for package in ALLOWED:
        for folder in [ROOT / package, *(p for p in (ROOT / package).rglob("*") if p.is_dir())]:
            if folder.name == "__pycache__":
                continue
            names = [entry.name for entry in folder.iterdir() if entry.name != "__pycache__"]
            assert names, f"{folder.relative_to(ROOT)} is empty"
            modules = [name for name in names if name.endswith(".py") and name != "__init__.py"]
            assert len(modules) <= 15, f"{folder.relative_to(ROOT)} holds {len(modules)} modules"


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_import_no_heavy_library(name: str) -> None:
    code = (
        f"import sys, {name}; "
        f"print([m for m in {HEAVY!r} if m in sys.modules]); "
        f"sys.exit(any(m in sys.modules for m in {HEAVY!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"import {name} brings {done.stdout}{done.stderr}"
