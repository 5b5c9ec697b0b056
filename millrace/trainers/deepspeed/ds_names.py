"""Names of DeepSpeed's settings, as its package has them (`settings.json` beside this file)."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from millrace.trainers.name_lists import listed
from millrace.trainers.trainer import SettingsError

SLIP = 0.8  # likeness of a name that is ignored to one that is read, from which it is a slip


class SectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a section's setting: type, default, choices, and the settings of a section in it."""

    type: str
    default: object = None
    choices: tuple[object, ...] = ()
    section: "dict[str, SectionRow]" = {}


class NamesTable(msgspec.Struct, frozen=True, kw_only=True):
    """Table of DeepSpeed's settings; `removed` are those of older versions, by section."""

    version: str
    source: str
    names: tuple[str, ...]
    removed: dict[str, tuple[str, ...]]
    schedules: dict[str, tuple[str, ...]]
    optimizers: tuple[str, ...]
    launcher: tuple[str, ...]
    sections: dict[str, dict[str, SectionRow]]


@cache
def names_table() -> NamesTable:
    """Table that is committed beside this file."""
    file = resources.files("millrace.trainers.deepspeed") / "settings.json"
    return msgspec.json.decode(file.read_bytes(), type=NamesTable)


def check_names(document: Mapping[str, Any], where: str) -> list[str]:
    """Names that DeepSpeed ignores; refuses those that it does, and slips of the pen.

    Parameters
    ----------
    document : mapping
        The configuration, as decoded.
    where : str
        Name of the file, for messages.

    Raises
    ------
    SettingsError
        A section has no such setting, or a name is nearly one that is read.
    """
    table, ignored = names_table(), list[str]()
    for name, value in document.items():
        if name in table.sections and isinstance(value, dict):
            _check_section(value, table.sections[name], where, name)
        if name in table.names or name in table.removed.get("", ()):
            continue
        if close := get_close_matches(name, table.names, n=1, cutoff=SLIP):
            raise SettingsError(
                f"{where}: DeepSpeed reads no `{name}` and ignores it; did you mean `{close[0]}`?"
            )
        ignored.append(name)
    schedule = document.get("scheduler")
    if isinstance(schedule, dict) and isinstance(schedule.get("params"), dict):
        parameters = table.schedules.get(str(schedule.get("type")))
        if parameters is not None:
            _refuse(schedule["params"], parameters, (), where, "scheduler.params")
    return ignored


def _check_section(
    section: Mapping[str, Any], rows: Mapping[str, SectionRow], where: str, path: str
) -> None:
    _refuse(section, rows, names_table().removed.get(path, ()), where, path)
    for name, value in section.items():
        if name in rows and rows[name].section and isinstance(value, dict):
            _check_section(value, rows[name].section, where, f"{path}.{name}")


def _refuse(
    names: Iterable[str], allowed: Iterable[str], removed: Iterable[str], where: str, path: str
) -> None:
    rows = list(allowed)
    for name in names:
        if name not in rows and name not in removed:
            close = get_close_matches(name, rows, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"there are {listed(rows)}"
            raise SettingsError(f"{where}: DeepSpeed has no setting `{path}.{name}`; {hint}")
