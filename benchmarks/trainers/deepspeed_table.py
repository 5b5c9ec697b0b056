"""The table of DeepSpeed's settings, read off the installed package.

Run `python -m benchmarks.trainers.deepspeed_table` from the root of the repository with DeepSpeed
installed (`DS_BUILD_OPS=0 pip install --no-deps deepspeed==VERSION`, and what its configuration
imports). It writes `millrace/trainers/deepspeed/settings.json`: of every section of its JSON the
names, with type and default where the section is a class, the sections that it has removed, and the
arguments of its launcher.

Names outside of sections are those that DeepSpeed asks a configuration for; of them it ignores what
it does not know.
"""

import argparse
import copy
import inspect
import json
import logging
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import deepspeed
import deepspeed.runtime.config as config
from deepspeed.launcher import runner
from deepspeed.module_inject.auto_ep_config import AutoEPConfig
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.activation_checkpointing.config import ACT_CHKPT_DEFAULT
from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

import millrace

TABLE = Path(millrace.__file__).parent / "trainers" / "deepspeed" / "settings.json"
SECTIONS: dict[str, type[DeepSpeedConfigModel]] = {
    "zero_optimization": DeepSpeedZeroConfig,
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "tensor_parallel": TPTrainingConfig,
}
SCHEDULES = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
BESIDE = ("sequence_parallel_size",)  # read by transformers and by DeepSpeed's own Ulysses


class AskedNames(dict[str, Any]):
    """Configuration that remembers which names it was asked for; copies remember together."""

    asked: set[str] = set()  # noqa: RUF012

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a name, which is remembered."""
        self.asked.add(name)
        return super().get(name, default)

    def keys(self) -> Any:
        """Names that any question is whether they are among."""
        return self

    def __copy__(self) -> "AskedNames":
        return self


def section_rows(model: type[DeepSpeedConfigModel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a section's settings, by the name that a JSON has for each."""
    for name, field in model.model_fields.items():
        row: dict[str, Any] = {"type": _kind(field.annotation), "default": _plain(field.default)}
        inner = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, DeepSpeedConfigModel)
        ]
        enums = [k for k in (field.annotation, *get_args(field.annotation)) if _is_enum(k)]
        if enums:
            row["choices"] = [member.value for member in enums[0]]
        if inner:
            row["section"] = dict(section_rows(inner[0]))
        yield field.alias or name, row
        if field.alias:
            yield name, row


def _is_enum(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _kind(annotation: object) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _plain(value: object) -> object:
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return None


def top_names() -> list[str]:
    """Names that DeepSpeed asks of a configuration, outside of sections."""
    asked = AskedNames({"train_batch_size": 1})
    config.DeepSpeedConfig(asked)
    names = {name for name in asked.asked if not name.startswith("_")}
    return sorted({*names, *BESIDE} - {*config._REMOVED_TOP_LEVEL_CONFIG_KEYS})


def launcher_arguments() -> list[str]:
    """Options of the launcher `deepspeed`."""
    names: list[str] = []
    add = argparse.ArgumentParser.add_argument

    def adding(self: argparse.ArgumentParser, *options: str, **kwargs: Any) -> Any:
        names.extend(options)
        return add(self, *options, **kwargs)

    argparse.ArgumentParser.add_argument = adding  # type: ignore[method-assign]
    runner.parse_args(["train.py"])
    argparse.ArgumentParser.add_argument = add  # type: ignore[method-assign]
    return [name for name in names if name.startswith("-")]


def main() -> None:
    """Write the table of the installed version."""
    logging.disable(logging.WARNING)
    sections: dict[str, Any] = {name: dict(section_rows(m)) for name, m in SECTIONS.items()}
    sections["bfloat16"] = sections["bf16"]
    sections["activation_checkpointing"] = {
        name: {"type": type(default).__name__, "default": default}
        for name, default in ACT_CHKPT_DEFAULT.items()
    }
    sections["pipeline"] = {
        name: {"type": type(default).__name__, "default": default}
        for name, default in config.get_pipeline_config({}).items()
    }
    sections["optimizer"] = {name: {"type": "str"} for name in ("type", "params", "legacy_fusion")}
    sections["scheduler"] = {name: {"type": "str"} for name in ("type", "params")}
    sections["expert_parallel"] = {
        field.name: {
            "type": str(field.type),
            "default": None if field.default is MISSING else _plain(field.default),
        }
        for field in fields(AutoEPConfig)
        if not field.name.startswith("_")
    }
    document = {
        "version": deepspeed.__version__,
        "source": "deepspeed on pypi.org, read 2026-11",
        "names": top_names(),
        "removed": {
            "": sorted(config._REMOVED_TOP_LEVEL_CONFIG_KEYS),
            "zero_optimization": sorted(config._REMOVED_ZERO_CONFIG_KEYS),
        },
        "schedules": {
            name: [
                parameter
                for parameter in inspect.signature(getattr(lr_schedules, name)).parameters
                if parameter not in ("optimizer", "last_batch_iteration")
            ]
            for name in SCHEDULES
        },
        "optimizers": sorted(config.DEEPSPEED_OPTIMIZERS),
        "launcher": launcher_arguments(),
        "sections": sections,
    }
    TABLE.write_text(_text(document), "utf-8")
    rows = sum(map(len, sections.values()))
    print(f"{TABLE}: {len(document['names'])} names, {rows} settings of sections")


def _text(document: dict[str, Any]) -> str:
    """JSON of the table, one line for each setting."""
    parts = [
        f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in document.items()
        if key != "sections"
    ]
    groups = []
    for name, section in copy.copy(document["sections"]).items():
        rows = [f"   {json.dumps(field)}: {json.dumps(row)}" for field, row in section.items()]
        groups.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
    parts.append(' "sections": {\n' + ",\n".join(groups) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
