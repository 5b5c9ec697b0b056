"""Trainer: the record of a training framework, with what writes and what reads its settings."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import isclose
from typing import TYPE_CHECKING, Any

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
    settings : mapping
        Values by the trainer's own names, options with their dashes: None where an option is not
        to be given, True for one without a value.
    """

    files: Mapping[str, str]
    arguments: tuple[str, ...]
    unsaid: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


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
    given : mapping
        Values that the settings give, by the names of `WrittenSettings.settings`.
    """

    job: TrainingJob
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)

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
    respelled : callable
        Written settings by the names that given ones have for them.
    optimizers : tuple of str
        Optimizers that its settings can say.
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
    respelled: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = (
        lambda settings, given: settings
    )
    optimizers: tuple[str, ...] = ("adamw", "sgd")


def number_text(value: float) -> str:
    """Number as people write it in settings.

    Parameters
    ----------
    value : float
        Where it is a product's last bit away from a shorter number, the shorter one is written.

    Examples
    --------
    >>> [number_text(x) for x in (3e-4, 1e-8, 0.02, 500000.0, 3e-4 * 0.1)]
    ['3e-4', '1e-8', '0.02', '500000', '3e-5']
    """
    short = float(f"{value:.12g}")
    value = short if abs(short - value) <= 4e-16 * abs(value) else value
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if not abs(value) < 1e-3:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits))
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{'-' * sign}{text[0]}{fraction}e{len(text) - 1 + int(exponent)}"


def share_of(part: float, total: float) -> float:
    """Share of a number, with nine digits where these are enough to have the part again.

    Parameters
    ----------
    part, total : float
        Numbers as settings have them.

    Examples
    --------
    >>> share_of(3e-5, 3e-4), number_text(share_of(1e-5, 3e-4) * 3e-4)
    (0.1, '1e-5')
    """
    short = round(part / total, 9)
    return short if isclose(short * total, part, rel_tol=1e-12) else part / total


def with_plain_numbers(text: str) -> str:
    """Text whose lines end in numbers (of JSON, of a dict), these as `number_text` writes them."""
    number = re.compile(r"(?<=[\s:])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?=[,}]?$)", re.M)
    return number.sub(
        lambda hit: hit[0] if hit[0].lstrip("-").isdigit() else number_text(float(hit[0])), text
    )


def flattened(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings of nested mappings by their dotted names.

    Parameters
    ----------
    document : mapping
        As decoded.
    prefix : str
        Before every name.
    """
    for key, value in document.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
