"""Trace: what each actor did and when, from the simulator or from a real run alike."""

from statistics import median
from typing import Annotated

import msgspec

SCHEMA_VERSION = 1


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One firing: `start_ns` when it was fired, `end_ns` when it completed."""

    rank: int
    actor: int
    firing: int
    start_ns: int
    end_ns: int


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

    def step_times_ns(self) -> tuple[int, ...]:
        """Duration of each step: from the slowest rank's end of one step to its end of the next."""
        ends = [max(column) for column in zip(*self.step_end_ns, strict=True)]
        return tuple(end - start for start, end in zip([0, *ends[:-1]], ends, strict=True))

    def step_time_ns(self, warm_up: int = 5) -> int:
        """Median step time after `warm_up` steps (of all steps where there are no more)."""
        times = self.step_times_ns()
        return round(median(times[warm_up:] or times))
