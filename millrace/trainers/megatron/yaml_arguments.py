"""Megatron's arguments in YAML: `--name: value` in a section, or Megatron-LM's own `--yaml-cfg`."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from millrace.trainers.megatron.argument_table import defaults, given_values, is_option, kind_of
from millrace.trainers.trainer import SettingsError, SettingsSource

SUFFIXES = (".yaml", ".yml")
DEPTH_MAX = 20


def yaml_texts(source: SettingsSource) -> list[tuple[str, str]]:
    """Names and texts of a source's YAML files."""
    return [(name, text) for name, text in source.files.items() if name.endswith(SUFFIXES)]


def yaml_values(name: str, text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values that a YAML file gives, by destination, and its keys that are no arguments.

    Keys are options (`--num-layers`) or destinations (`num_layers`), in sections or not.

    Parameters
    ----------
    name : str
        Name of the file, for a refusal.
    text : str
        Its text.

    Raises
    ------
    SettingsError
        It is no YAML, or a value is of another kind than its argument's.

    Examples
    --------
    >>> yaml_values("a.yaml", "{ENV_VARS: {A: 1}, MODEL_ARGS: {--num-layers: 2, --bf16: true}}")
    ({'num_layers': 2, 'bf16': True}, ('A',))
    """
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f", line {line + 1}"
        raise SettingsError(f"`{name}`{where}: no YAML") from None
    if not isinstance(document, dict):
        raise SettingsError(f"`{name}`: expected arguments by name, in YAML")
    values: dict[str, Any] = {}
    others: list[str] = []
    for key, value in _leaves(document, 0):
        dest = key.replace("-", "_")
        option = key if key.startswith("--") else f"--{key.replace('_', '-')}"
        if value is None:
            continue
        if not key.startswith("--") and dest in defaults() and isinstance(value, bool):
            values[dest] = value
        elif is_option(option):
            values |= given_values(_words(option, value))[0]
        elif dest in defaults():
            values[dest] = _checked(key, kind_of(dest), value)
        else:
            others.append(key)
    return values, tuple(others)


def _leaves(document: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield keys with values that are no mappings, of all sections."""
    if depth > DEPTH_MAX:
        raise SettingsError(f"YAML nests more than {DEPTH_MAX} sections")
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _leaves(value, depth + 1)
        else:
            yield str(key), value


def _words(option: str, value: Any) -> list[str]:
    """Words of a command line that says the same."""
    if isinstance(value, bool):
        return [option] if value else []
    if isinstance(value, list):
        return [option, *map(str, value)]
    return [option, str(value)]


def _checked(key: str, kind: str, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in ("int", "float") and not number:
        raise SettingsError(f"{key}: {value}: expected a number")
    return value
