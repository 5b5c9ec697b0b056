"""SettingsTable: torchtitan's own settings, flavours and configurations, and older names."""

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
OLDER = Path(__file__).with_name("older_settings.json")
SLIP = 0.94  # likeness of a name that no release has to a planned one, from which it is a slip

# Words of torch.distributed.pipelining.schedules.get_schedule_class (PyTorch 2.13, read 2026-11).
SCHEDULES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
SINGLE = ("GPipe", "1F1B")  # one chunk a rank: PipelineScheduleSingle there
# Sections and settings that a job holds, or that a remark speaks of: others are not checked.
PLANNED = (
    *("activation_checkpoint", "activation_checkpoint.mode"),
    "activation_checkpoint.selective_ac_option",
    *("compile.enable", "compile.components", "compile.enable_async_tensor_parallel"),
    *("lr_scheduler.warmup_steps", "lr_scheduler.min_lr_factor", "lr_scheduler.decay_ratio"),
    *("model.name", "model.flavor", "model.converters", "model.norm_type"),
    *("optimizer.name", "optimizer.lr", "optimizer.betas", "optimizer.beta1", "optimizer.beta2"),
    *("optimizer.eps", "optimizer.weight_decay", "optimizer.implementation"),
    "optimizer.early_step_in_backward",
    *("parallelism.", "training.dtype", "training.enable_cpu_offload"),
    *("training.local_batch_size", "training.global_batch_size", "training.seq_len"),
    *("training.max_norm", "training.mixed_precision_", "training.disable_cuda_graphs"),
    *("training.steps", "lr_scheduler.total_steps", "quantize."),
    *("training.data_parallel_", "experimental.pipeline_parallel_"),
)


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

    def has(self, name: str) -> bool:
        """True if a release has a setting of this name.

        Raises
        ------
        SettingsError
            None has, and the name is nearly one that a plan depends on.
        """
        if name in self.rows:
            return True
        planned = [row for row in self.rows if row.startswith(PLANNED)]
        if close := get_close_matches(name, planned, n=1, cutoff=SLIP):
            raise SettingsError(
                f"{name}: torchtitan {self.version} has no such setting; did you mean {close[0]}? "
                f"--ignore {name} goes on without it"
            )
        return False

    def check(self, name: str, value: Any) -> None:
        """Refuse a value that a setting does not take, where a plan depends on it.

        Raises
        ------
        SettingsError
            Names the choices.
        """
        if not name.startswith(PLANNED):
            return
        row = self.rows[name]
        choices = row.get("choices")
        if choices and value not in choices:
            raise SettingsError(
                f"{name} is {value!r}: choose {one_of(choices)}; --ignore {name} takes its default"
            )
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
        `NEWEST`, or `TOML` with the names of earlier releases; flavours are those of the newest,
        whose sizes did not change.
    """
    document = json.loads(TABLE.read_text("utf-8"))
    older = json.loads(OLDER.read_text("utf-8"))["rows"] if version == TOML else {}
    return SettingsTable(
        version=version,
        rows=document[version]["settings"] | older,
        flavors=document[NEWEST]["flavors"],
        configs=document[NEWEST]["configs"],
    )
