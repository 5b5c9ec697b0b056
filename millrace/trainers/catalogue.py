"""The catalogue of trainers, and the trainer that settings are of."""

import re
from difflib import get_close_matches
from pathlib import PurePosixPath

from millrace.planner.errors import PlanError
from millrace.planner.formatting import one_of
from millrace.trainers.deepspeed import DEEPSPEED, TRANSFORMERS
from millrace.trainers.dtensor import DTENSOR
from millrace.trainers.megatron import MEGATRON_BRIDGE, MEGATRON_CORE
from millrace.trainers.name_lists import listed
from millrace.trainers.nanotron import NANOTRON
from millrace.trainers.scripts.unknowns import read_scripts
from millrace.trainers.torchtitan import TORCHTITAN
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource, Trainer

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    # nanotron's YAML has names of Megatron's too, and Megatron's none of its sections.
    for trainer in (
        *(NANOTRON, MEGATRON_BRIDGE, MEGATRON_CORE, TORCHTITAN, DEEPSPEED, TRANSFORMERS),
        DTENSOR,
    )
}


def trainer_named(name: str, option: str = "--to") -> Trainer:
    """Trainer of the catalogue.

    Parameters
    ----------
    name : str
        As `--to` takes it.
    option : str
        The option that names it, for the refusal.

    Raises
    ------
    PlanError
        There is no such trainer.
    """
    if name not in TRAINERS:
        close = get_close_matches(name, TRAINERS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose {one_of(list(TRAINERS))}"
        raise PlanError(f"{option} {name}: there is no such trainer; {hint}")
    return TRAINERS[name]


def trainer_of(source: SettingsSource) -> Trainer:
    """Trainer that settings are of.

    Parameters
    ----------
    source : SettingsSource
        The settings.

    Raises
    ------
    SettingsError
        No trainer knows them.
    """
    for trainer in TRAINERS.values():
        if trainer.recognizes(source):
            return trainer
    raise SettingsError(_nothing_fits(source))


# What settings are known by, for whoever wonders why theirs are not.
_LOOKED_FOR = (
    "Megatron-LM's --num-layers or --tensor-model-parallel-size, sections [training] and "
    "[parallelism] of torchtitan's TOML, train_micro_batch_size_per_gpu of DeepSpeed's JSON, "
    "--per_device_train_batch_size of transformers' Trainer, accelerate's distributed_type, "
    "Axolotl's base_model, nanotron's sections parallelism and tokens"
)
# Trainers that people have and that are not read: a word of theirs, and the name.
_OTHERS = {
    "colossalai": "ColossalAI",
    "verl.": "verl",
    "openrlhf": "OpenRLHF",
    "lightning": "Lightning",
    "composer ": "Composer",
    "maxtext": "MaxText",
    "nemo_run": "NeMo",
    "exp_manager:": "NeMo",
    "fairseq": "fairseq",
    "paddle.distributed": "PaddlePaddle",
    "mindspeed": "MindSpeed",
}


def _nothing_fits(source: SettingsSource) -> str:
    """Sentence for settings that no trainer knows: what they name, or what was looked for."""
    named = re.findall(r"[\w./${}-]+\.(?:ya?ml|toml|json|sh)\b", source.text)
    missing = [
        name for name in dict.fromkeys(named) if PurePosixPath(name).name not in source.files
    ]
    other = next((name for word, name in _OTHERS.items() if word in source.text.lower()), "")
    instead = (
        "give the file or the command line that the job is started with, name the trainer with "
        "--from, or say the job to `millrace plan` with --model, --cluster and its degrees (--tp 4)"
    )
    if other:
        return f"these are settings of {other}, which is not read here: {instead}"
    if missing:
        return (
            f"nothing here is known as a trainer's, and it names {listed(missing)}: give these too "
            f"where the job is in them; else {instead}"
        )
    return f"nothing here is known as a trainer's: looked for were {_LOOKED_FOR}; {instead}"


def read_settings(
    source: SettingsSource, name: str | None, option: str
) -> tuple[Trainer, ReadSettings]:
    """Trainer of settings, and the job that it reads in them.

    Parameters
    ----------
    source : SettingsSource
        The settings.
    name : str or None
        Whose they are; None: told from the settings.
    option : str
        What names it, for a refusal.

    Raises
    ------
    PlanError, SettingsError
        There is no such trainer, or it cannot understand the settings.
    """
    trainer = trainer_of(source) if name is None else trainer_named(name, option)
    return trainer, read_scripts(trainer.read, source)
