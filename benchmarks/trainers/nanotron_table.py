"""The table of nanotron's settings, read off its dataclasses without importing them.

Run `python -m benchmarks.trainers.nanotron_table VERSION=FOLDER [VERSION=FOLDER…]` from the root of
the repository, the newest version first; a folder holds that version's package `nanotron`. It
writes `millrace/trainers/nanotron/settings.json`: of every class of the newest version its fields,
and under `older` the fields that only the other versions have.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import millrace

TABLE = Path(millrace.__file__).parent / "trainers" / "nanotron" / "settings.json"
FILES = ("config", "models_config", "parallelism_config")
ENUMS = {
    "TensorParallelLinearMode": "parallel/tensor_parallel/enum.py",
    "InitScalingMethod": "config/utils_config.py",
}
LEFT_OUT = ("BenchArgs",)

Fields = dict[str, dict[str, object]]


def classes(folder: Path) -> dict[str, Fields]:
    """Fields of every dataclass of a package's settings, by the class's name."""
    table = {}
    choices = dict(_enums(folder))
    for file in FILES:
        for node in ast.parse((folder / "config" / f"{file}.py").read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name not in LEFT_OUT:
                table[node.name] = dict(_fields(node, choices))
    return table


def _fields(node: ast.ClassDef, enums: dict[str, list[str]]) -> Iterator[tuple[str, dict]]:  # type: ignore[type-arg]
    checked = dict(_checked(node))
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, kind = statement.target.id, ast.unparse(statement.annotation)
        row: dict[str, object] = {"type": kind}
        if statement.value is not None:
            row["default"] = _default(statement.value)
        for enum, words in enums.items():
            if enum in kind:
                row["choices"] = words
        if name in checked:
            row["choices"] = checked[name]
        yield name, row


def _default(value: ast.expr) -> object:
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value)


def _checked(node: ast.ClassDef) -> Iterator[tuple[str, list[object]]]:
    """Fields that a class compares with a list of values, each with the list."""
    for part in ast.walk(node):
        match part:
            case ast.Compare(
                left=ast.Attribute(attr=name), ops=[ast.NotIn()], comparators=[ast.List() as words]
            ):
                yield name, ast.literal_eval(words)


def _enums(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Words that fields of an enumeration, of a pipeline's engine and of a dtype may hold."""
    for enum, place in ENUMS.items():
        if (folder / place).exists():
            for node in ast.walk(ast.parse((folder / place).read_text("utf-8"))):
                if isinstance(node, ast.ClassDef) and node.name == enum:
                    yield enum, [t.id for s in node.body for t in getattr(s, "targets", ())]
    for node in ast.walk(ast.parse((folder / "config" / "utils_config.py").read_text("utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Name(id="str_to_dtype")], value=ast.Dict(keys=keys)):
                yield "torch.dtype", [ast.literal_eval(key) for key in keys if key is not None]
            case ast.FunctionDef(name="cast_str_to_pipeline_engine"):
                compared = (part for part in ast.walk(node) if isinstance(part, ast.Compare))
                yield "PipelineEngine", [ast.literal_eval(c.comparators[0]) for c in compared]


def main(arguments: list[str]) -> None:
    """Write the table of the versions that the arguments name."""
    versions = dict(argument.split("=", 1) for argument in arguments)
    newest, *others = versions
    table = classes(Path(versions[newest]))
    older: dict[str, Fields] = {}
    for version in others:
        for name, fields in classes(Path(versions[version])).items():
            only = {field: row for field, row in fields.items() if field not in table.get(name, {})}
            if only:
                older.setdefault(name, {}).update(only)
    document = {
        "version": newest,
        "source": "github.com/huggingface/nanotron, src/nanotron/config, read 2026-11",
        "classes": table,
        "older_versions": others,
        "older": older,
    }
    TABLE.write_text(_text(document), "utf-8")
    print(f"{TABLE}: {sum(map(len, table.values()))} settings of {len(table)} classes")


def _text(document: dict[str, object]) -> str:
    """JSON of the table, one line for each setting."""
    parts = []
    for key, value in document.items():
        if key not in ("classes", "older") or not isinstance(value, dict):
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
            continue
        groups = []
        for name, fields in value.items():
            rows = [f"   {json.dumps(field)}: {json.dumps(row)}" for field, row in fields.items()]
            groups.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
        parts.append(f" {json.dumps(key)}: {{\n" + ",\n".join(groups) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
