"""Argument table of Megatron-LM's parser, as committed, and command lines read by it."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from millrace.trainers.trainer import SettingsError, number_text

TABLE = Path(__file__).with_name("arguments.json")
READERS: dict[str, type[int] | type[float] | type[str]] = {"int": int, "float": float, "str": str}
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
    """Table of all arguments of a version; `earlier` ones are gone, and may have a value."""

    version: str
    source: str
    earlier_source: str
    earlier: dict[str, bool]
    arguments: tuple[Argument, ...]


@cache
def argument_table() -> ArgumentTable:
    """The table of the version that plans are exported to."""
    return msgspec.json.decode(TABLE.read_bytes(), type=ArgumentTable)


@cache
def _by_name() -> dict[str, Argument]:
    return {name: row for row in argument_table().arguments for name in row.names}


@cache
def _by_dest() -> dict[str, Argument]:
    rows: dict[str, Argument] = {}
    for row in argument_table().arguments:
        rows.setdefault(row.dest, row)
    return rows


def is_option(name: str) -> bool:
    """True if the parser has an option of this name."""
    return name in _by_name()


def option_of(dest: str) -> str:
    """Option that sets a destination, as it is typed."""
    return _by_dest()[dest].names[0]


def kind_of(dest: str) -> str:
    """Kind of the value of a destination, as `Argument.kind`."""
    return _by_dest()[dest].kind


def defaults() -> dict[str, Any]:
    """Values of all arguments where none is given, by destination."""
    return {dest: row.default for dest, row in _by_dest().items()}


def given_values(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values that a command line gives, by destination, and those of arguments that are gone.

    Parameters
    ----------
    words : sequence of str
        After the program's name.

    Raises
    ------
    SettingsError
        There is no such argument, or its value is missing or of another kind; names both.

    Examples
    --------
    >>> given_values(["--num-layers", "2", "--bf16", "--layernorm-epsilon", "1e-6"])
    ({'num_layers': 2, 'bf16': True}, {'--layernorm-epsilon': '1e-6'})
    """
    values: dict[str, Any] = {}
    gone: dict[str, str] = {}
    position = 0
    while position < len(words):
        name, equals, attached = words[position].partition("=")
        position += 1
        following = [attached] if equals else list(_following(words, position))
        row = _by_name().get(name)
        if row is None:
            taken = _gone(name, following)
            gone[name] = " ".join(following[:taken])
        elif row.kind in FLAGS or row.kind == "either":
            taken = 0
            values[row.dest] = FLAGS.get(row.kind, name == row.names[0])
        else:
            taken = len(following) if row.many else 1
            if row.kind == "str" and row.choices is None and not row.many and following:
                taken, following = len(following), [" ".join(following)]
            read = [_value(row, name, text) for text in following[: taken if row.many else 1]]
            if not read:
                raise SettingsError(f"{name}: expected a value, found none")
            values[row.dest] = read if row.many else read[0]
        position += 0 if equals else taken
    return values, gone


def _following(words: Sequence[str], position: int) -> Iterable[str]:
    """Yield words up to the next argument; a negative number is no argument."""
    for word in words[position:]:
        if word.startswith("--") or (word.startswith("-") and not word[1:2].isdigit()):
            return
        yield word


def _gone(name: str, following: Sequence[str]) -> int:
    """Number of values of an argument that is gone; SettingsError where it never was one."""
    earlier = argument_table().earlier
    if name in earlier:
        return min(int(earlier[name]), len(following))
    close = get_close_matches(name, (*_by_name(), *earlier), n=1, cutoff=0.75)
    hint = f"did you mean {close[0]}?" if close else "see pretrain_gpt.py --help"
    raise SettingsError(
        f"{name}: Megatron-LM {argument_table().version} has no such argument; {hint}"
    )


def _value(row: Argument, name: str, text: str) -> Any:
    if text.startswith("$") and (row.kind != "str" or row.choices):
        variable = text.strip("${}")
        raise SettingsError(
            f"{name} {text}: the script leaves this variable open; give it with "
            f"--set {variable}=VALUE"
        )
    try:
        value: Any = READERS[row.kind](text)
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
    return number_text(value) if isinstance(value, float) else str(value)


def options_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by option, as `WrittenSettings.settings` has them: flags that are off have None.

    Parameters
    ----------
    values : mapping
        By destination.
    """
    options: dict[str, Any] = {}
    for dest, value in values.items():
        row = _by_dest()[dest]
        if isinstance(value, bool):
            for argument in argument_table().arguments:
                if argument.dest == dest and argument.kind in FLAGS:
                    options[argument.names[0]] = True if FLAGS[argument.kind] is value else None
        else:
            options[row.names[0]] = value
    return options
