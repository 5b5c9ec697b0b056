"""Names of nanotron's settings, as its dataclasses have them (`settings.json` beside this file)."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from millrace.trainers.trainer import SettingsError

ROOT = "Config"
MODELS = {
    "is_llama_config": "LlamaConfig",
    "is_qwen2_config": "Qwen2Config",
    "is_starcoder2_config": "Starcoder2Config",
}


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a setting: its type as the dataclass has it, its default and its choices."""

    type: str
    default: object = msgspec.UNSET
    choices: tuple[object, ...] = ()


class SettingNames(msgspec.Struct, frozen=True, kw_only=True):
    """Table of settings by class; `older` has those that only older versions know."""

    version: str
    source: str
    classes: dict[str, dict[str, SettingRow]]
    older_versions: tuple[str, ...]
    older: dict[str, dict[str, SettingRow]]


NEAR = 0.65  # ratio from which a name is taken for a slip of another


@cache
def settings_table() -> SettingNames:
    """Table that is committed beside this file."""
    file = resources.files("millrace.trainers.nanotron") / "settings.json"
    return msgspec.json.decode(file.read_bytes(), type=SettingNames)


def unread_names(
    document: Mapping[str, Any], where: str, left_out: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Names of settings that no version has, by their paths; one that is nearly another is refused.

    Parameters
    ----------
    document : mapping
        The settings, as decoded.
    where : str
        Name of the file, for messages.
    left_out : frozenset of str
        Names that are not refused.

    Raises
    ------
    SettingsError
        Names the setting, and the nearest.
    """
    unread: list[str] = []
    for path, name, names in _unknown(document, (ROOT,), ""):
        close = [] if name in left_out else get_close_matches(name, names, n=1, cutoff=NEAR)
        if close:
            raise SettingsError(
                f"{where}: nanotron has no setting `{path}{name}`; did you mean `{close[0]}`? If "
                f"not, go on without it by --ignore {name}"
            )
        unread += [] if name in left_out else [f"{path}{name}"]
    return tuple(unread)


def model_class(settings: Mapping[str, Any]) -> str:
    """Class of a `model_config`: the one that it says it is of, else Llama's, the first tried."""
    return next((name for flag, name in MODELS.items() if flag in settings), "LlamaConfig")


def _unknown(
    section: Mapping[str, Any], classes: tuple[str, ...], path: str
) -> Iterator[tuple[str, str, set[str]]]:
    """Settings that none of a section's classes has, each with its path and the names there are."""
    table = settings_table()
    rows: dict[str, SettingRow] = {}
    for name in classes:
        rows |= table.classes.get(name, {}) | table.older.get(name, {})
    for name, value in section.items():
        if not isinstance(name, str) or name not in rows:
            yield path, str(name), set(rows)
            continue
        inner = tuple(word for word in re.findall(r"\w+", rows[name].type) if word in table.classes)
        if name == "model_config" and isinstance(value, dict):
            inner = (model_class(value),)
        if not inner:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from _unknown(item, inner, f"{path}{name}.")
