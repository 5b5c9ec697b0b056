"""Cells of a schedule: the passes of microbatches through chunks, as a simulated step ran them.

Of each stage the rank that was simulated first is taken; times count from the begin of the step.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from millrace.planner.plan import Plan
from millrace.planner.schedules import SCHEDULES
from millrace.simulator.simulate import Simulated
from millrace.simulator.simulated_rank import Instance

FORWARD, BACKWARD, WEIGHT = "forward", "backward_input", "backward_weight"
PART = re.compile(r"chunk (\d+): ([A-Z]+)\b")
PART_PASSES = {"F": FORWARD, "W": WEIGHT}  # any other part holds the gradient of the input
SEAM = 5e-4  # of the step; what is nearer is drawn as one


class ScheduleCell(NamedTuple):
    """One pass of a microbatch through a chunk, or work of the step (`chunk` and `microbatch` -1).

    `what` is a key of `PHASES` in `palette.py`.
    """

    start_ns: int
    end_ns: int
    what: str
    chunk: int
    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCells:
    """Cells of a rank of one stage, and the share of the step in which it computes.

    Cells hold waiting inside a pass too; `moves` are times in which meetings move data.
    """

    stage: int
    rank: int
    cells: tuple[ScheduleCell, ...]
    moves: tuple[tuple[int, int], ...]
    busy_fraction: float


def schedule_cells(plan: Plan, simulated: Simulated) -> tuple[StageCells, ...]:
    """Cells of every stage, in the order of the stages.

    Parameters
    ----------
    plan : Plan
        The plan that was simulated.
    simulated : Simulated
        Its prediction, with `detailed=True`.
    """
    instances: dict[int, Instance] = {}
    for run in simulated.runs:
        instances.setdefault(run.instance.program.stage, run.instance)
    chunk_of = {
        choice.block: number for number, chunk in enumerate(plan.chunks) for choice in chunk.blocks
    }
    return tuple(
        _stage_cells(plan, instances[stage], chunk_of, simulated.window_ns, busy)
        for stage, busy in zip(sorted(instances), simulated.busy_by_stage, strict=True)
    )


def splits_backward(plan: Plan) -> bool:
    """True if the plan's schedule moves the gradients of weights away from those of inputs."""
    return SCHEDULES[plan.schedule].defers_weight_gradients


def _stage_cells(
    plan: Plan,
    instance: Instance,
    chunk_of: dict[str, int],
    window_ns: tuple[int, int],
    busy_fraction: float,
) -> StageCells:
    begin_ns, end_ns = window_ns
    joined = {"recompute": BACKWARD} | ({} if splits_backward(plan) else {WEIGHT: BACKWARD})
    firings: list[ScheduleCell] = []
    moves: list[tuple[int, int]] = []
    for actor, starts, ends in zip(
        instance.program.actors, instance.begins, instance.ends, strict=True
    ):
        chunk, what = chunk_of.get(actor.block, -1), actor.phase
        if part := PART.match(actor.name):
            chunk, what = int(part[1]), PART_PASSES.get(part[2], BACKWARD)
        what = joined.get(what, what)
        for firing, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end <= begin_ns or start >= end_ns or end <= start:
                continue
            times = max(start, begin_ns) - begin_ns, min(end, end_ns) - begin_ns
            if actor.meeting is not None:
                moves.append(times)
                continue
            microbatch = firing % actor.firings * plan.microbatches // actor.firings
            place = (chunk, microbatch) if what in (FORWARD, BACKWARD, WEIGHT) else (-1, -1)
            firings.append(ScheduleCell(*times, what, *place))
    seam_ns = int(SEAM * (end_ns - begin_ns))
    return StageCells(
        stage=instance.program.stage,
        rank=instance.rank,
        cells=tuple(_joined(sorted(firings), seam_ns)),
        moves=tuple(_covered(sorted(moves), seam_ns)),
        busy_fraction=busy_fraction,
    )


def _joined(firings: list[ScheduleCell], seam_ns: int) -> Iterator[ScheduleCell]:
    """Yield cells, of which those of one pass that follow one another are one.

    What lies between them is waiting for communication inside the pass; other work of the step is
    one cell where no more than a seam lies between.
    """
    last: ScheduleCell | None = None
    for cell in firings:
        near = cell.chunk >= 0 or (last is not None and cell.start_ns - last.end_ns <= seam_ns)
        if last is not None and cell[2:] == last[2:] and near:
            last = last._replace(end_ns=max(last.end_ns, cell.end_ns))
            continue
        if last is not None:
            yield last
        last = cell
    if last is not None:
        yield last


def _covered(times: list[tuple[int, int]], seam_ns: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches that intervals cover; those nearer than a seam are one."""
    begin, end = -1, -1
    for start, stop in times:
        if begin >= 0 and start - end <= seam_ns:
            end = max(end, stop)
            continue
        if begin >= 0:
            yield begin, end
        begin, end = start, stop
    if begin >= 0:
        yield begin, end
