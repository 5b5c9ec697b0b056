"""The table of Megatron-LM's arguments, read off its own parser.

Run `PYTHONPATH=MEGATRON_LM python -m benchmarks.trainers.megatron_table VERSION` from the root of
the repository, with a checkout of Megatron-LM of that version on the path and torch installed. It
writes `millrace/trainers/megatron/arguments.json`, one line for each argument.
"""

import argparse
import json
import sys
import typing
from pathlib import Path

import millrace

TABLE = Path(millrace.__file__).parent / "trainers" / "megatron" / "arguments.json"


def rows(parser: argparse.ArgumentParser) -> list[dict[str, object]]:
    """Rows of a parser's arguments, in its order: names, kind, choices and default."""
    table = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        kind = getattr(action.type, "__name__", None) or "str"
        if isinstance(action, argparse._StoreTrueAction):
            kind = "flag"
        elif isinstance(action, argparse._StoreFalseAction):
            kind = "off"
        elif action.nargs == 0:
            kind = "either"
        row: dict[str, object] = {"names": action.option_strings, "dest": action.dest}
        row |= {"kind": kind if kind in KINDS else "str", "default": action.default}
        if action.nargs not in (None, 0):
            row["many"] = True
        if action.choices is not None and kind != "enum_type_handler":
            row["choices"] = list(action.choices)
        if kind == "enum_type_handler":
            row["choices"] = [choice.name for choice in action.choices or ()]
            row["default"] = getattr(action.default, "name", action.default)
        table.append(row)
    return table


KINDS = ("int", "float", "str", "flag", "off", "either")


def main(version: str) -> None:
    """Write the table of a version."""
    if not hasattr(typing, "override"):  # Megatron-LM asks for Python 3.12
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    lines = ",\n".join("  " + json.dumps(row, default=str) for row in rows(parser))
    source = "github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py, read 2026-11"
    before = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    head = f' "version": "{version}",\n "source": "{source}",\n'
    # Of versions and forks whose parsers are not asked.
    for name in ("earlier_source", "earlier", "since", "today", "values", "further"):
        head += f' "{name}": {json.dumps(before.get(name))},\n'
    head += ' "arguments": [\n'
    TABLE.write_text("{\n" + head + lines + "\n ]\n}\n", "utf-8")
    print(f"{TABLE}: {lines.count(chr(10)) + 1} arguments")


if __name__ == "__main__":
    main(sys.argv[1])
