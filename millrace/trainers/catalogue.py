"""The catalogue of trainers, and the trainer that settings are of."""

from difflib import get_close_matches

from millrace.planner.errors import PlanError
from millrace.planner.formatting import one_of
from millrace.trainers.deepspeed import DEEPSPEED, TRANSFORMERS
from millrace.trainers.dtensor import DTENSOR
from millrace.trainers.megatron import MEGATRON_BRIDGE, MEGATRON_CORE
from millrace.trainers.nanotron import NANOTRON
from millrace.trainers.torchtitan import TORCHTITAN
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource, Trainer

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        *(MEGATRON_BRIDGE, MEGATRON_CORE, TORCHTITAN, DEEPSPEED, TRANSFORMERS, NANOTRON),
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
    raise SettingsError(
        f"these are no settings of {one_of(list(TRAINERS))}: give the file or the command line "
        f"that the job is started with, or name the trainer with --from"
    )


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
    return trainer, trainer.read(source)
