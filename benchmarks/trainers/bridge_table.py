"""The table of Megatron-Bridge's pretraining recipes, read off their text.

Run `python -m benchmarks.trainers.bridge_table MEGATRON_BRIDGE VERSION` from the root of the
repository, with a checkout of that version. Recipes whose model is in the catalogue are written to
`millrace/trainers/megatron/bridge_recipes.json`, with what they assign to their configuration.
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import millrace
from millrace.models.errors import ModelError
from millrace.models.zoo.catalogue import canonical_name, model_spec
from millrace.trainers.megatron.bridge_overrides import PATHS

TABLE = Path(millrace.__file__).parent / "trainers" / "megatron" / "bridge_recipes.json"
SUFFIXES = ("-hf", "-instruct", "meta-")


def recipes(root: Path) -> dict[str, dict[str, Any]]:
    """Recipes of a checkout, by name, aliases included."""
    by_name: dict[str, dict[str, Any]] = {}
    aliases: dict[str, str] = {}
    for path in sorted((root / "src/megatron/bridge/recipes").rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "pretrain" in node.name:
                row = _recipe(node)
                if row is not None:
                    by_name[node.name] = row
            elif isinstance(node, ast.ImportFrom):
                aliases |= {name.asname: name.name for name in node.names if name.asname}
    named = {alias: by_name[name] for alias, name in aliases.items() if name in by_name}
    return dict(sorted((by_name | named).items()))


def _recipe(function: ast.FunctionDef) -> dict[str, Any] | None:
    """Model and assigned values of a recipe; None where its model is not in the catalogue."""
    model, values = None, {}
    for statement in function.body:
        if not (
            isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)
        ):
            continue
        path = ast.unparse(statement.targets[0]).removeprefix("cfg.")
        if path == "model":
            hub = re.search(r"from_hf_pretrained\(\s*['\"]([^'\"]+)", ast.unparse(statement.value))
            model = None if hub is None else catalogue_name(hub[1])
        elif path in PATHS:
            try:
                values[path] = ast.literal_eval(statement.value)
            except ValueError:
                continue
    return None if model is None else {"model": model, "values": values}


def catalogue_name(hub: str) -> str | None:
    """Name of the catalogue for a name of the Hugging Face hub; None where there is none."""
    name = hub.partition("/")[2].lower()
    for suffix in SUFFIXES:
        name = name.replace(suffix, "")
    try:
        model_spec(name)
    except ModelError:
        return None
    return canonical_name(name)


def main(root: Path, version: str) -> None:
    """Write the table of a version."""
    rows = recipes(root)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    source = "github.com/NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/recipes, read 2026-11"
    head = f' "version": "{version}",\n "source": "{source}",\n "recipes": {{\n'
    TABLE.write_text("{\n" + head + lines + "\n }\n}\n", "utf-8")
    print(f"{TABLE}: {len(rows)} recipes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
