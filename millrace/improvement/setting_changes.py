"""Setting changes: the trainer's settings by which two jobs differ, in the user's own words."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.trainers.catalogue import TRAINERS
from millrace.trainers.job import TrainingJob
from millrace.trainers.job_of_plan import job_of
from millrace.trainers.trainer import ReadSettings, Trainer, number_text

# What says recomputation, in any trainer's words.
AUTO = "auto"  # taken from another setting
LEARNING = re.compile(
    r"(?:^|[-_.])(?:lr|learning[-_]rate|decay|warmup|warm-up|adam|sgd|betas?|eps|momentum|clip"
    r"|max_norm|gradient_clipping|scheduler|optim|optimizer\.(?:type|name)|train_steps)(?:[-_.]|$)"
)
SHORT = 60  # characters of a value that are shown; lists of modules have thousands
PADDED = "vocab"  # in names of sizes that a trainer pads as its degrees want it
RECOMPUTING = ("recompute", "activation_checkpoint", "gradient-checkpointing")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """Change of one setting.

    Attributes
    ----------
    name : str
        As the trainer has it, an option with its dashes.
    before, after : any
        Values; None where it is not given, True for an option without a value.
    """

    name: str
    before: Any
    after: Any

    @property
    def text(self) -> str:
        """The change in words: `--tensor-model-parallel-size 4 → 8`, `without --bf16`."""
        if self.after is None:
            return f"without {self.name}"
        if self.before is None:
            bare = self.after is True and self.name.startswith("--")
            return f"add {self.name}" if bare else f"add {self.name} {_short(self.after)}"
        return f"{self.name} {_short(self.before)} → {_short(self.after)}"

    @property
    def document(self) -> dict[str, Any]:
        """Fields of `--json`."""
        return {"name": self.name, "from": self.before, "to": self.after}


def shown(value: Any) -> str:
    """Value of a setting as it is typed on a command line."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return number_text(value)
    if not isinstance(value, list | tuple):
        return str(value)
    nested = any(isinstance(item, list | tuple) for item in value)
    return (" | " if nested else " ").join(map(shown, value))


def _short(value: Any) -> str:
    """Value of a setting, the middle of a long one left out."""
    words = shown(value)
    return words if len(words) <= SHORT else f"{words[: SHORT // 2]} … {words[-SHORT // 2 :]}"


def written_words(
    job: TrainingJob, trainer: Trainer, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Settings of a job by the names that the user's files have for them.

    Parameters
    ----------
    job : TrainingJob
        One that the trainer can be told.
    trainer : Trainer
        Whose settings they are.
    given : mapping
        As `ReadSettings` has them; empty: by the trainer's newest names.

    Raises
    ------
    InfeasibleError
        The trainer has no setting for a choice.

    Notes
    -----
    Some read how many layers are recomputed and write all or none: nothing is said of it then.
    """
    try:
        settings = trainer.write(job).settings
        return trainer.respelled(settings, given) if given else settings
    except InfeasibleError:
        if not job.recompute_layers:
            raise
        words = written_words(replace(job, recompute_layers=0), trainer, given)
        named = (name for name in words if not any(word in name for word in RECOMPUTING))
        return {name: words[name] for name in named}


def setting_changes(
    before: TrainingJob, after: TrainingJob, trainer: Trainer, given: Mapping[str, Any]
) -> tuple[SettingChange, ...]:
    """Changes that make a job another one.

    Parameters
    ----------
    before, after : TrainingJob
        The two jobs.
    trainer : Trainer
        Whose settings they are.
    given : mapping
        Settings that are given for the first; empty where none are, and it counts as written.

    Raises
    ------
    InfeasibleError
        The trainer has no setting for a choice of the second.
    """
    wanted = written_words(after, trainer, given)
    now = written_words(before, trainer, given)
    changes = []
    for name in (name for name in {**now, **wanted} if PADDED not in name):
        value, usual = wanted.get(name), now.get(name)
        stated = given.get(name, None if given else usual)
        stated = True if stated == "" else stated
        new = name in wanted and name not in now
        if _same(value, stated) or (_same(value, usual) and not (new and stated is not None)):
            continue
        changes.append(SettingChange(name=name, before=stated, after=value))
    return tuple(changes)


def plan_changes(before: Plan, after: Plan) -> tuple[SettingChange, ...] | None:
    """Changes of settings between plans of one framework; None where no trainer says both.

    Parameters
    ----------
    before, after : Plan
        The two plans.
    """
    name = before.cluster.software.name
    if name != after.cluster.software.name:
        return None
    trainers = [trainer for trainer in TRAINERS.values() if name in trainer.frameworks]
    for trainer in sorted(trainers, key=lambda trainer: trainer.name != name):
        with suppress(InfeasibleError):
            return setting_changes(job_of(before, trainer), job_of(after, trainer), trainer, {})
    return None


def left_out(read: ReadSettings, trainer: Trainer) -> tuple[str, ...]:
    """Settings of the optimizer and its schedule that a plan, and so an export, does not have.

    Parameters
    ----------
    read : ReadSettings
        Settings as they were read.
    trainer : Trainer
        Whose they are.
    """
    try:
        words = written_words(read.job, trainer, read.given)
    except InfeasibleError:
        return ()
    return tuple(
        f"{name} {_short(value)}"
        for name, value in read.given.items()
        if LEARNING.search(name)
        and value not in (None, False, 0, AUTO)
        and not _same(value, words.get(name))
    )


def _same(left: Any, right: Any) -> bool:
    """True if two values are typed alike."""
    return shown(left) == shown(right)
