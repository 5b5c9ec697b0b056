"""Docstrings: their examples run, and the classes of ours that they name as types are there."""

import ast
import builtins
import doctest
import importlib
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extras import optional
from tests.test_layering import FILES, ROOT, imported, nodes

# Words that begin with a capital in a type, and are no class: `None`, `Any`, the arrays' dims.
NO_CLASSES = {"None", "Any", "True", "False"}
# Types of PyTorch's, which is imported where it is asked for alone.
OF_TORCH = {"Module", "ExportedProgram", "Node"}
SECTION = re.compile(
    r"^(Parameters|Attributes|Returns|Yields|Raises)\n-+\n((?:.*\n?)*?)(?=^\S.*\n-+$|\Z)", re.M
)

EXAMPLES = [path for path in FILES if ">>> " in path.read_text()]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "millrace" else ("millrace", *parts))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_run(path: Path) -> None:
    if any(name == "torch" for node in nodes(path) for name in imported(node)):
        optional("torch")
    module = importlib.import_module(module_of(path))
    assert doctest.testmod(module).failed == 0


def test_types_that_docstrings_name_are_there() -> None:
    names = {name for path in FILES for node in nodes(path) for name in defined(node)}
    names |= {name for name in (*dir(builtins), *dir(typing)) if name[0].isupper()}
    names |= NO_CLASSES | OF_TORCH
    assert [said for path in FILES for said in unknown_types(path, names)] == []


def defined(node: ast.AST) -> Iterator[str]:
    """Names that a statement gives to classes and types."""
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)


def unknown_types(path: Path, names: set[str]) -> Iterator[str]:
    """Types of parameters and attributes that are neither ours nor imported."""
    for node in nodes(path):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        for _, body in SECTION.findall(ast.get_docstring(node) or ""):
            for line in body.splitlines():
                if match := re.match(r"(\w[\w, ]*) : (.+)$|([A-Z]\w+)( or None)?$", line):
                    said = re.sub(r"\[[^\]]*\]|\([^)]*\)|`[^`]*`", "", match[2] or match[3] or "")
                    unknown = set(re.findall(r"\b[A-Z]\w+\b", said)) - names
                    if unknown:
                        where = f"{path.relative_to(ROOT)}:{node.lineno}"
                        yield f"{where}: {node.name} names {', '.join(sorted(unknown))}"
