"""Trainer arguments: what trainers of Hugging Face's kind are told, in transformers' own names.

LLaMA-Factory, Axolotl, ms-swift and whoever extends transformers' Trainer take the same arguments,
of a command line or of YAML, some by other names and with other defaults: a row of
`trainer_arguments.json` each. accelerate's YAML says how devices share the work.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from millrace.trainers.deepspeed.partial_training import is_remarked
from millrace.trainers.deepspeed.script_options import AUTO, READ

ACCELERATE = "distributed_type"  # the key that its YAML must have
# Sections of YAML that are told as they are, not as text.
SECTIONS = ("fsdp-config", "deepspeed", "deepspeed-config", "parallelism-config")


class TrainerFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Format of a trainer: names that it alone has, transformers' names for its own, defaults."""

    marks: tuple[str, ...]
    names: dict[str, str]
    defaults: dict[str, str]


class TrainerTable(msgspec.Struct, frozen=True, kw_only=True):
    """Table of formats, and of the names that their trainers have."""

    source: str
    formats: dict[str, TrainerFormat]
    names: frozenset[str]


@cache
def argument_table() -> TrainerTable:
    """Table that is committed beside this file."""
    file = resources.files("millrace.trainers.deepspeed") / "trainer_arguments.json"
    return msgspec.json.decode(file.read_bytes(), type=TrainerTable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArguments:
    """Arguments by transformers' names, with hyphens; `sections` are those of YAML that are nested.

    `ignored` are names that trainers have and nobody reads here, `unread` those that none has.
    """

    options: Mapping[str, str]
    sections: Mapping[str, Any]
    ignored: tuple[str, ...]
    unread: tuple[str, ...]
    assumed: tuple[str, ...]


def looks_familiar(document: Mapping[str, Any]) -> bool:
    """True if a mapping of YAML has a name by which one of the formats is known.

    Parameters
    ----------
    document : mapping
        As decoded.
    """
    names = {name.replace("_", "-") for name in document}
    return any(not names.isdisjoint(row.marks) for row in argument_table().formats.values())


def trainer_arguments(
    documents: Mapping[str, Any], options: Mapping[str, str], left_out: frozenset[str]
) -> TrainerArguments:
    """Arguments of a job, those of its command line before those of its YAML.

    Parameters
    ----------
    documents : mapping
        Keys of YAML, as decoded.
    options : mapping
        Of the command line, by name with hyphens.
    left_out : set of str
        Names that are not to be read.
    """
    sections: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key, value in documents.items():
        name = key.replace("_", "-")
        if name in SECTIONS and isinstance(value, dict):
            sections[name] = value
        elif (text := _text(value)) is not None:
            given[name] = text
    given |= options
    dropped = {name.replace("_", "-") for name in left_out}
    given = {name: text for name, text in given.items() if name not in dropped}
    formats = argument_table().formats
    trainer = next(
        (name for name, row in formats.items() if not given.keys().isdisjoint(row.marks)),
        "transformers",
    )
    row = formats[trainer]
    told = dict(_renamed(given, row.names))
    assumed = tuple(
        f"--{name} is {value}, {trainer}'s default"
        for name, value in row.defaults.items()
        if name not in told
    )
    others = [name for name in given if not _is_read(row.names.get(name, name))]
    return TrainerArguments(
        options=row.defaults | told,
        sections=sections,
        ignored=tuple(name for name in others if name in argument_table().names),
        unread=tuple(name for name in others if name not in argument_table().names),
        assumed=assumed,
    )


def _is_read(name: str) -> bool:
    return name in READ or name in SECTIONS or name.startswith("fsdp-") or is_remarked(name)


def _renamed(given: Mapping[str, str], names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield arguments by transformers' names; those that are `auto` are left to the GPU or on."""
    for name, text in given.items():
        if name == "disable-gradient-checkpointing":
            yield "gradient-checkpointing", "false" if text.lower() in ("true", "1", "") else "true"
        else:
            told = names.get(name, name)
            yield told, "true" if text == AUTO and told in ("bf16", "tf32") else text


def _text(value: Any) -> str | None:
    """Value of YAML as a word of a command line; None for what is none."""
    if value is None or isinstance(value, dict):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(str(entry) for entry in value if not isinstance(entry, dict | list))
    return str(value)
