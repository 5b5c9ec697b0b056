"""Block times: what each kind of block of a plan adds to a chunk, from the times of its chunks.

A block of a run is measured by one more of it; what is left of a chunk is shared by blocks that no
run repeats (an embedding, a head), or is what a chunk takes besides its blocks.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from millrace.planner.block_times import (
    ALONE,
    BEGIN,
    GATHER,
    LAUNCHES,
    NORM,
    PASSES,
    REDUCE,
    TIMES,
    UPDATE,
    BlockTimes,
)
from millrace.planner.plan import Plan
from millrace.simulator.chunks.coarse import CoarseGraph
from millrace.simulator.chunks.part_times import PartTimes
from millrace.simulator.chunks.wiring import Run, Wiring

Floats = NDArray[np.float64]
Kind = tuple[str, int]  # template and variant

REPEATED = 3  # blocks of a run, of which one can be left out of a piece
SLOTS = {"F": 0, "B": 1, "BW": 1, "W": 2}


class Measured(Protocol):
    """Measures one more block of a chunk's run."""

    wiring: Wiring

    def one_more(self, number: int, index: int) -> PartTimes:
        """What one more block of a run of a chunk adds."""


def block_times(
    plan: Plan, measured: Measured, times: Sequence[PartTimes], coarse: CoarseGraph
) -> BlockTimes:
    """The times of a plan's blocks.

    Parameters
    ----------
    plan
        The plan.
    measured
        Measures one more block of a run.
    times
        The times of every chunk, in model order.
    coarse
        The plan's graph of chunks, whose transfers are timed.
    """
    runs = [measured.wiring.runs(chunk) for chunk in plan.chunks]
    blocks: dict[Kind, Floats] = {}
    for number, row in enumerate(runs):
        for index, run in enumerate(row):
            if len(run.blocks) >= REPEATED and _kind(run) not in blocks:
                blocks[_kind(run)] = _array(measured.one_more(number, index))
    left = np.array([_left(_array(one), row, blocks) for one, row in zip(times, runs, strict=True)])
    alone = list(
        dict.fromkeys(_kind(run) for row in runs for run in row if _kind(run) not in blocks)
    )
    counts = np.array(
        [
            [sum(len(run.blocks) for run in row if _kind(run) == kind) for kind in alone]
            for row in runs
        ]
    ).reshape(len(runs), len(alone))
    whole = ~counts.any(axis=1)
    chunk = left[whole].mean(axis=0) if whole.any() else np.zeros(TIMES)
    # Where several kinds always share a chunk, the least numbers that explain its time.
    shares, *_ = np.linalg.lstsq(counts[~whole], left[~whole] - chunk, rcond=None)
    blocks |= dict(zip(alone, shares, strict=True))
    software = plan.cluster.software
    held_back = coarse.pacing is not None
    return BlockTimes(
        blocks=blocks,
        chunk=chunk,
        totals_ns=max(one.totals_ns for one in times),
        hops_ns=_hops_ns(plan, coarse),
        host_ns=software.host_ns if held_back else 0,
        overlap=software.overlap if held_back else 1.0,
    )


def _kind(run: Run) -> Kind:
    return run.template, run.variant


def _left(times: Floats, runs: Sequence[Run], blocks: dict[Kind, Floats]) -> Floats:
    """What is left of a chunk's times without the blocks that are known."""
    known = [len(run.blocks) * blocks[_kind(run)] for run in runs if _kind(run) in blocks]
    return np.asarray(times - sum(known))


def _array(times: PartTimes) -> Floats:
    found = np.zeros(TIMES)
    for part, ns in times.slots_ns.items():
        found[PASSES][SLOTS[part]] = ns
        pace = times.paces.get(part)
        found[ALONE][SLOTS[part]] = ns if pace is None else pace.alone_ns
        found[LAUNCHES][SLOTS[part]] = 0 if pace is None else pace.launches
    found[BEGIN], found[GATHER], found[REDUCE] = times.begin_ns, times.gather_ns, times.reduce_ns
    found[NORM], found[UPDATE] = times.norm_ns, times.update_ns
    return found


def _hops_ns(plan: Plan, coarse: CoarseGraph) -> Floats:
    """What each position sends to the next and to the one before, per microbatch."""
    hops = np.zeros((2, len(plan.chunks)))
    sizes = {f"chunk {number}": number for number in range(len(plan.chunks))}
    for program, durations_ns in zip(coarse.graph.programs, coarse.durations_ns, strict=True):
        for actor, ns in zip(program.actors, durations_ns, strict=True):
            if actor.meeting is not None and actor.meeting.kind == "send" and actor.firings > 1:
                _, number, part, *_ = actor.name.split()
                hops[int(part != "F"), sizes[f"chunk {number}"]] += ns
    return hops
