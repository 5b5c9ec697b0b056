"""Trace: what each actor did and when, from the simulator or from a real run alike."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Annotated

import msgspec

from millrace.planner.errors import PlanError

SCHEMA_VERSION = 1


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One firing: `start_ns` when it was fired, `end_ns` when it completed.

    `cpu_ns` is its duration less the time in which its thread had no core (of a simulated firing:
    the work that was asked of a core). 0: not known, as on GPUs and of older files. `queued_ns` is
    the time before it in which its thread had been woken and had no core.
    """

    rank: int
    actor: int
    firing: int
    start_ns: int
    end_ns: int
    cpu_ns: int = 0
    queued_ns: int = 0


class Lane(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names behind a rank's spans; `represents` counts the ranks this one stands for."""

    rank: int
    stage: int
    actors: tuple[str, ...]
    kinds: tuple[str, ...]
    phases: tuple[str, ...]
    blocks: tuple[str, ...]
    queues: tuple[str, ...]  # the lane that each actor's span is drawn in
    firings: tuple[int, ...]  # per step
    represents: int = 1

    def check(self, place: str) -> None:
        """Raise PlanError unless every actor has all its columns."""
        columns = (self.kinds, self.phases, self.blocks, self.queues, self.firings)
        if any(len(column) != len(self.actors) for column in columns):
            raise PlanError(f"not all its columns have {len(self.actors)} entries - at `{place}`")
        if self.represents < 1 or min(self.firings, default=1) < 1:
            raise PlanError(f"`represents` and `firings` are at least 1 - at `{place}`")


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spans of `steps` steps on every traced rank, in nanoseconds from a common origin.

    `step_end_ns[r][s]` is when the r-th lane finished step s. `source` is `simulated` or
    `measured`; `plan_digest` ties the trace to its plan.
    """

    schema_version: Annotated[int, msgspec.Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = (
        SCHEMA_VERSION
    )
    source: str
    plan_digest: str
    device: str
    steps: int
    lanes: tuple[Lane, ...]
    step_end_ns: tuple[tuple[int, ...], ...]
    spans: tuple[Span, ...] = ()

    def validate(self) -> "Trace":
        """The trace itself, once every span has its lane, its actor and its step.

        Raises
        ------
        PlanError
            Something has no counterpart; names its place.
        """
        if len(self.step_end_ns) != len(self.lanes):
            raise PlanError(
                f"it has {len(self.lanes)} lanes - at `$.lanes` - and ends of steps of "
                f"{len(self.step_end_ns)} - at `$.step_end_ns`"
            )
        for lane_index, (lane, ends) in enumerate(zip(self.lanes, self.step_end_ns, strict=True)):
            lane.check(f"$.lanes[{lane_index}]")
            if len(ends) != self.steps:
                raise PlanError(
                    f"of {self.steps} steps {len(ends)} have an end "
                    f"- at `$.step_end_ns[{lane_index}]`"
                )
            if not all(before < after for before, after in pairwise((0, *ends))):
                raise PlanError(f"a step ends before it begins - at `$.step_end_ns[{lane_index}]`")
        firings = {
            lane.rank: [self.steps * per_step for per_step in lane.firings] for lane in self.lanes
        }
        if len(firings) != len(self.lanes):
            raise PlanError("two lanes are of one rank - at `$.lanes`")
        for span_index, span in enumerate(self.spans):
            firing_counts = firings.get(span.rank, ())
            if (
                not 0 <= span.actor < len(firing_counts)
                or not 0 <= span.firing < firing_counts[span.actor]
            ):
                raise PlanError(
                    f"there is no firing {span.firing} of actor {span.actor} on rank {span.rank} "
                    f"- at `$.spans[{span_index}]`"
                )
            if span.end_ns < span.start_ns:
                raise PlanError(f"it ends before it begins - at `$.spans[{span_index}]`")
        return self

    def step_times_ns(self) -> tuple[int, ...]:
        """Duration of each step: from the slowest rank's end of one step to its end of the next."""
        ends = [max(column) for column in zip(*self.step_end_ns, strict=True)]
        return tuple(end - start for start, end in zip([0, *ends[:-1]], ends, strict=True))

    def steady_step(self) -> int:
        """Step that a simulation's figures are of, see `steady_step`."""
        return steady_step(self.step_times_ns())

    def step_time_ns(self, warm_up: int = 5) -> int:
        """Median step time after `warm_up` steps (of all steps where there are no more)."""
        times = self.step_times_ns()
        return round(median(times[warm_up:] or times))


def steady_step(step_times_ns: Sequence[int]) -> int:
    """Step of a simulation that shows its steady state.

    Of those with one before and one behind it is the one of median time, the last of equals; runs
    of one or two steps have none, and their last step serves.

    Parameters
    ----------
    step_times_ns : sequence of int
        Durations of all steps in nanoseconds.

    Examples
    --------
    >>> steady_step([9, 5, 7, 6, 4])
    3
    """
    steps = len(step_times_ns)
    if steps < 3:
        return steps - 1
    inner = sorted(range(1, steps - 1), key=lambda step: (step_times_ns[step], step))
    middle = step_times_ns[inner[len(inner) // 2]]
    return max(step for step in inner if step_times_ns[step] == middle)
