"""Trainer: the record of a training framework, with what writes and what reads its settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.planner.errors import PlanError
from millrace.planner.frameworks.capabilities import Capabilities
from millrace.trainers.job import TrainingJob

if TYPE_CHECKING:
    from millrace.planner.plan import Plan

# First words of the comment with which an exported file says which cluster the plan was made for.
HEADER = "millrace:"


class SettingsError(PlanError):
    """Settings of a trainer that cannot be understood; names the setting and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSettings:
    """Settings of a job as a trainer takes them.

    Attributes
    ----------
    files : mapping
        Text of every file, by its name; `launch.sh` starts the job.
    arguments : tuple of str
        Settings as the trainer's own command line takes them, for `--json`.
    unsaid : tuple of str
        Sentences about what of the job the trainer cannot be told.
    """

    files: Mapping[str, str]
    arguments: tuple[str, ...]
    unsaid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """Job that settings describe.

    Attributes
    ----------
    job : TrainingJob
        The job.
    assumed : tuple of str
        Sentences about what the settings leave to the trainer's defaults and matters for speed.
    ignored : tuple of str
        Settings that have no place in a plan, by name, such as paths of data.
    unplanned : tuple of str
        Sentences about settings that change speed or memory and have no place in a plan.
    unread : tuple of str
        Settings that no release of the trainer has, by name, such as those of a fork.
    """

    job: TrainingJob
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that whoever goes by the job has to know, by weight."""
        unread = f"not read, since no release has them: {' '.join(self.unread)}"
        return (*self.unplanned, *self.assumed, *([unread] if self.unread else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSource:
    """Settings as they were given: texts by file name, and values that the user adds.

    `files` has one text under the empty name where a command line was given. `values` are
    variables of shell scripts that the text leaves open. `nodes` and `devices_per_node` replace
    what the texts say, where they are above 0. `left_out` names settings that are not to be read,
    without dashes.
    """

    files: Mapping[str, str]
    values: Mapping[str, str]
    nodes: int = 0
    devices_per_node: int = 0
    left_out: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """All texts, one after the other."""
        return "\n".join(self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Record of a trainer.

    Attributes
    ----------
    name : str
        As `--to` takes it.
    frameworks : tuple of str
        Records of `frameworks.toml` whose plans it can run; the first is what settings are read as.
    version, source : str
        The version whose settings are written, and where they were read.
    recognizes : callable
        True if a `SettingsSource` looks like settings of this trainer.
    write : callable
        Settings of a job; raises InfeasibleError.
    read : callable
        Job of settings; raises SettingsError.
    runs : Capabilities, optional
        What its settings can say; by default what the record of its first framework lets plans be.
    write_plan : callable, optional
        Settings of a whole plan, where they say more than a job; in place of `write`.
    """

    name: str
    frameworks: tuple[str, ...]
    version: str
    source: str
    recognizes: Callable[[SettingsSource], bool]
    write: Callable[[TrainingJob], WrittenSettings]
    read: Callable[[SettingsSource], ReadSettings]
    runs: Capabilities | None = None
    write_plan: "Callable[[Plan], WrittenSettings] | None" = None
