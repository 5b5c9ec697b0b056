"""Comparison: the document that holding a measured trace against a prediction comes to."""

from typing import NamedTuple

import msgspec

OP_COST, OVERLAP, STRAGGLERS = "op cost", "overlap", "stragglers"
COLLECTIVE_COST, WAITING = "collective cost", "waiting for a core"
HOST_OVERHEAD, VARIATION, LEFT_OVER = "host overhead", "variation", "left over"
OTHERS = "others"  # the item for all that have none of their own
BROAD = (WAITING, HOST_OVERHEAD, VARIATION, LEFT_OVER)


class FiringTimes(msgspec.Struct, frozen=True, array_like=True):
    """Seconds that one firing of an actor takes on a rank that has it; None: not in that trace."""

    predicted_s: float | None
    measured_s: float | None


class ActorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One actor in both traces; None where a trace does not have it.

    Seconds are those of all its firings in a step; `firings` has each of them, by microbatch, of
    an actor that fires more than once a step.
    """

    name: str
    kind: str
    phase: str
    predicted_s: float | None
    measured_s: float | None
    firings: tuple[FiringTimes, ...] = ()


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """Time per step and average rank that goes to one cause."""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Predicted minus measured time, in seconds."""
        return self.predicted_s - self.measured_s


class ErrorItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a cause, such as a kind of op, a rank or a link, and its share in seconds."""

    name: str
    seconds: float


class ErrorCause(msgspec.Struct, frozen=True, kw_only=True):
    """Share of one cause in the error: by how many seconds it makes the measured step longer.

    Shares of all causes add up to the measured less the predicted step time, shares of a cause's
    items to the cause's.
    """

    name: str
    seconds: float
    items: tuple[ErrorItem, ...] = ()


class Blame(NamedTuple):
    """Cause and item that have the largest share in an error; a cause may count without items."""

    cause: str
    item: str
    seconds: float


class PathSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One firing on a critical path: when in the step it begins, and what it adds to the path.

    `firing` counts from the step's begin. `seconds` is the firing's part of the path, `idle_s` the
    time before it in which the path waits for nothing but the firing's begin.
    """

    actor: str
    rank: int
    firing: int
    start_s: float
    seconds: float
    idle_s: float


class PathRow(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that an actor's firings have on either critical path.

    `rank` is the one that most of them are on: ranks that run alike take turns on a path.
    """

    actor: str
    rank: int
    predicted_s: float
    measured_s: float


class CriticalPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Critical paths of the predicted and of a typical measured step, in order of time.

    `rows` has both side by side, largest difference first.
    """

    predicted: tuple[PathSegment, ...]
    measured: tuple[PathSegment, ...]
    rows: tuple[PathRow, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The join of two traces; `step_time_error` is predicted / measured - 1.

    `error_causes`, largest first, and `critical_paths` need the plan; without it they are empty.
    """

    plan_digest: str
    predicted_step_time_s: float
    measured_step_time_s: float
    step_time_error: float
    actors: tuple[ActorRow, ...]
    causes: tuple[CauseRow, ...]
    phases: tuple[CauseRow, ...]
    error_causes: tuple[ErrorCause, ...] = ()
    critical_paths: CriticalPaths | None = None

    @property
    def blamed(self) -> Blame | None:
        """Largest share that makes the error what it is; None without causes.

        Items count by themselves, but for those of causes that are `BROAD`: there an item says
        which rank the cause shows on, not what is wrong.
        """
        sign = 1 if self.measured_step_time_s >= self.predicted_step_time_s else -1
        shares = [
            Blame(cause.name, "", cause.seconds)
            for cause in self.error_causes
            if cause.name in BROAD
        ]
        shares += [
            Blame(cause.name, item.name, item.seconds)
            for cause in self.error_causes
            if cause.name not in BROAD
            for item in cause.items
            if item.name != OTHERS
        ]
        return max(shares, key=lambda share: sign * share.seconds, default=None)
