"""SettingsTable: torchtitan's own settings, flavours and configurations, of two releases."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from millrace.planner.formatting import one_of
from millrace.trainers.trainer import SettingsError

NEWEST, TOML = "0.3.0", "0.2.2"  # the release that is written, and the last that read TOML
TABLE = Path(__file__).with_name("settings.json")

# Words of torch.distributed.pipelining.schedules.get_schedule_class (PyTorch 2.13, read 2026-11).
SCHEDULES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
SINGLE = ("GPipe", "1F1B")  # one chunk a rank: PipelineScheduleSingle there


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsTable:
    """Settings of a release: `rows` by dotted name; flavours and configurations by `model.name`."""

    version: str
    rows: Mapping[str, Mapping[str, Any]]
    flavors: Mapping[str, Mapping[str, Any]]
    configs: Mapping[str, Mapping[str, Any]]

    def default(self, name: str) -> Any:
        """Value of a setting that is not set; None also where the release has no such setting."""
        return self.rows[name]["default"] if name in self.rows else None

    def check(self, name: str, value: Any) -> None:
        """Refuse a setting that the release does not have, and a value that it does not take.

        Raises
        ------
        SettingsError
            Names the nearest setting, or the choices.
        """
        if name not in self.rows:
            close = get_close_matches(name, self.rows, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SettingsError(f"{name}: torchtitan {self.version} has no such setting{hint}")
        row = self.rows[name]
        choices = row.get("choices")
        if choices and value not in choices:
            raise SettingsError(f"{name} is {value!r}: choose {one_of(choices)}")
        if not any(_fits(value, kind) for kind in row["type"].split(" | ")):
            raise SettingsError(f"{name} is {value!r}: expected {row['type']}")


def _fits(value: Any, kind: str) -> bool:
    """True if a value is of a kind; True of kinds that no job is read from."""
    if kind == "list[str]":
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    if kind == "list[list[str]]":
        return isinstance(value, list) and all(_fits(entry, "list[str]") for entry in value)
    kinds: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "str": (str,)}
    kinds |= {"float": (int, float), "None": (type(None),)}
    return kind not in kinds or type(value) in kinds[kind]


@cache
def table_of(version: str) -> SettingsTable:
    """Table of a release.

    Parameters
    ----------
    version : str
        `NEWEST` or `TOML`; flavours are those of the newest, whose sizes did not change.
    """
    document = json.loads(TABLE.read_text("utf-8"))
    return SettingsTable(
        version=version,
        rows=document[version]["settings"],
        flavors=document[NEWEST]["flavors"],
        configs=document[NEWEST]["configs"],
    )
