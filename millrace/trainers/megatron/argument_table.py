"""Argument table of Megatron-LM's parser, as committed: names, kinds, choices and defaults."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from millrace.trainers.trainer import SettingsError

TABLE = Path(__file__).with_name("arguments.json")
FLAGS: dict[str, bool] = {"flag": True, "off": False}


class Argument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Argument of the parser: its names, what kind of value follows, and its default.

    A `flag` has no value and means True, `off` means False, `either` is True, and False by its
    second name.
    """

    names: tuple[str, ...]
    dest: str
    kind: str
    default: Any
    many: bool = False
    choices: tuple[Any, ...] | None = None


class ArgumentTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table of all arguments of a version.

    `earlier` has those that are gone, with the last year that has them (0: a fork's), `since` the
    first year of newer ones. `today` says in words of today what earlier releases and forks call
    otherwise (`{}` are the words that follow), `values` the same of single values, and `further`
    has arguments of theirs whose meaning none of today has.
    """

    version: str
    source: str
    earlier_source: str
    earlier: dict[str, int]
    since: dict[str, int]
    today: dict[str, str]
    values: dict[str, dict[str, str]]
    further: tuple[Argument, ...]
    arguments: tuple[Argument, ...]


@cache
def argument_table() -> ArgumentTable:
    """The table of the version that plans are exported to."""
    return msgspec.json.decode(TABLE.read_bytes(), type=ArgumentTable)


@cache
def _by_name() -> dict[str, Argument]:
    table = argument_table()
    return {name: row for row in (*table.arguments, *table.further) for name in row.names}


@cache
def _by_dest() -> dict[str, Argument]:
    rows: dict[str, Argument] = {}
    for row in (*argument_table().arguments, *argument_table().further):
        rows.setdefault(row.dest, row)
    return rows


def row_of(name: str) -> Argument | None:
    """Row of an option or a destination, if there is one.

    Parameters
    ----------
    name : str
        As it is typed; some forks have underscores for dashes.
    """
    dashed = name[:2] + name[2:].replace("_", "-")
    return _by_name().get(name) or _by_name().get(dashed) or _by_dest().get(name)


def option_of(dest: str) -> str:
    """Option that sets a destination, as it is typed."""
    return _by_dest()[dest].names[0]


def kind_of(dest: str) -> str:
    """Kind of the value of a destination, as `Argument.kind`."""
    return _by_dest()[dest].kind


@cache
def defaults() -> dict[str, Any]:
    """Values of all arguments where none is given, by destination."""
    return {dest: row.default for dest, row in _by_dest().items()}


def value_of(row: Argument, name: str, words: Sequence[str]) -> Any:
    """Value of an argument that no flag is.

    Parameters
    ----------
    row : Argument
        Its kind and its choices.
    name : str
        As it was typed, for a refusal.
    words : sequence of str
        Those that follow it.

    Raises
    ------
    SettingsError
        The value is missing or of another kind; names both.

    Examples
    --------
    >>> value_of(row_of("--num-layers"), "--num-layers", ["24"])
    24
    """
    words = [word for word in words if word.strip()]
    if not words:
        raise SettingsError(f"{name}: expected a value, found none")
    if row.many:
        return [_read(row, name, word) for word in words]
    if row.kind == "str" and row.choices is None:
        return " ".join(words)
    if any(not word.startswith("$") for word in words[1:]):
        raise SettingsError(f"{name} {' '.join(words)}: expected one value")
    return _read(row, name, words[0])


def _read(row: Argument, name: str, text: str) -> Any:
    if "$" in text and (row.kind != "str" or row.choices):
        variable = text.partition("$")[2].strip("{}")
        raise SettingsError(
            f"{name} {text}: the script leaves this variable open; give it with "
            f"--set {variable}=VALUE"
        )
    try:
        value: Any = text if row.kind == "str" else float(text)
        if row.kind != "str" and (not isfinite(value) or (row.kind == "int" and value % 1)):
            raise ValueError
        value = int(value) if row.kind == "int" else value
    except ValueError:
        kind = {"int": "a whole number", "float": "a number"}[row.kind]
        raise SettingsError(f"{name} {text}: expected {kind}") from None
    if row.choices is not None and value not in row.choices:
        choices = ", ".join(map(str, row.choices))
        raise SettingsError(f"{name} {text}: expected one of {choices}")
    return value


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Words of a command line that gives values; those that are the default are left out.

    Parameters
    ----------
    values : mapping
        By destination.

    Raises
    ------
    KeyError
        The parser has no such destination.

    Examples
    --------
    >>> words_of({"num_layers": 2, "add_bias_linear": False, "layernorm_epsilon": 1e-5})
    ['--num-layers', '2', '--disable-bias-linear']
    """
    words: list[str] = []
    for dest, value in values.items():
        row = _by_dest()[dest]
        if value == row.default:
            continue
        if isinstance(value, bool):
            word = next(
                argument.names[0]
                for argument in argument_table().arguments
                if argument.dest == dest and FLAGS.get(argument.kind) is value
            )
            words.append(word)
        else:
            listed = value if isinstance(value, list) else [value]
            words += [row.names[0], *(_text(item) for item in listed)]
    return words


def _text(value: Any) -> str:
    return f"{value!r}" if isinstance(value, float) else str(value)
