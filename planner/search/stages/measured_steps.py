"""Measured steps: a division's step in the order of its schedule, from the times of its blocks.

They were measured on a plan, or are those of the tables.

Shapes: T times of a block (`millrace.planner.block_times`), K positions, P = 3 passes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from millrace.models.arrays import Floats
from millrace.planner.block_times import (
    ALONE,
    BEGIN,
    GATHER,
    LAUNCHES,
    NORM,
    PAIRED,
    PASSES,
    REDUCE,
    TIMES,
    UPDATE,
    BlockTimes,
)
from millrace.planner.search.stages.critical_path import PassTimes, critical_path
from millrace.planner.search.stages.shape import BlockRun, Division, Pipeline, VariantFigures

Kinds = Sequence[Sequence[tuple[str, int]]]
"""Per position, template and variant of every block."""


def measured_step_ns(kinds: Kinds, pipeline: Pipeline, times: BlockTimes) -> float:
    """Step time of a division whose blocks take these times, nanoseconds.

    Parameters
    ----------
    kinds : sequence
        Per position, template and variant of every block: all among `times.blocks`.
    pipeline : Pipeline
        Schedule, stages and microbatches; `sent_ns` is not read, as `times` has the transfers.
    times : BlockTimes
        Transfers are those of as many positions.

    Raises
    ------
    ProtocolError
        The orders of the stages wait for one another in a cycle.
    """
    chunks = np.array([times.chunk + sum(times.blocks[kind] for kind in row) for row in kinds])
    stage_of = np.array([pipeline.stage_of(position) for position in range(len(chunks))])
    on_stage = stage_of[:, None] == np.arange(pipeline.stages)  # [K, stages]
    gathered = np.array(  # of a stage's chunks one after the other
        [
            chunks[: k + 1, GATHER][stage_of[: k + 1] == stage_of[k]].sum()
            for k in range(len(chunks))
        ]
    )
    once = chunks.T @ on_stage  # [T, stages]
    passes = slowed_passes_ns(chunks, times)
    path = critical_path(
        pipeline.schedule,
        pipeline.stages,
        pipeline.interleave,
        pipeline.microbatches,
        PassTimes(
            passes=passes,
            paired=chunks[:, PAIRED].T + passes - chunks[:, PASSES].T,
            hops=np.maximum(times.hops_ns[0], np.append(times.hops_ns[1, 1:], 0)),
            begins=once[BEGIN][stage_of] + gathered,
            ends=chunks[:, REDUCE] + once[NORM][stage_of],
        ),
    )
    # No stage is done before its host has launched every microbatch.
    launched_ns = pipeline.microbatches * times.host_ns * float(once[LAUNCHES].sum(axis=0).max())
    return max(path.length_ns, launched_ns) + times.totals_ns + float(once[UPDATE].max())


def slowed_passes_ns(chunks: Floats, times: BlockTimes) -> Floats:
    """Nanoseconds of every pass beside what is sent and received [P, K].

    What is sent slows what a pass computes, but for the time in which meetings of its own do so
    already.
    """
    alone, passes = chunks[:, ALONE].T, chunks[:, PASSES].T
    moving = moving_ns(passes.sum(axis=0), times.hops_ns)
    share = np.divide(alone, passes, out=np.zeros_like(passes), where=passes > 0)
    slower = (1 - times.overlap) * moving * np.clip(share, 0, 1)
    slower[2] = 0  # what is sent beside a backward slows one of its passes
    return np.asarray(passes + slower)


def moving_ns(total_ns: Floats, hops_ns: Floats) -> Floats:
    """Nanoseconds [K] in which something is sent or received beside a forward, or a backward.

    The four transfers of a microbatch run beside both, at times that have nothing to do with one
    another. The longer a chunk takes, the longer that is, and never more than half of all four.

    Parameters
    ----------
    total_ns : array [K]
        Time of a microbatch of every chunk.
    hops_ns : array [2, K]
        Time of its transfer to the next chunk, and of its gradient's to the one before.
    """
    received = np.append(0, hops_ns[0, :-1]), np.append(hops_ns[1, 1:], 0)
    total = np.maximum(total_ns, 1)
    still = np.prod([1 - np.minimum(hop / total, 1) for hop in (*hops_ns, *received)], axis=0)
    return np.asarray((1 - still) * total / 2)


def table_hops_ns(pipeline: Pipeline) -> Floats:
    """Nanoseconds [2, K] from every chunk to the next and back to the one before, by tables."""
    stage_of = np.array([pipeline.stage_of(k) for k in range(pipeline.positions)])
    crossing = stage_of[:-1] != stage_of[1:]
    hops_ns = np.zeros((2, pipeline.positions))
    hops_ns[0, :-1] = hops_ns[1, 1:] = crossing * (pipeline.sent_ns / 2 / max(crossing.sum(), 1))
    return hops_ns


def in_order(
    division: Division, runs: tuple[BlockRun, ...], pipeline: Pipeline, overlap: float | None
) -> Division:
    """Division with the step that its order takes on one kind of device, by tables.

    The objective of dividing is shorter where sends, or unlike passes, hold an order up.

    Parameters
    ----------
    division : Division
    runs : tuple of BlockRun
        Runs whose variants the division numbers, on one kind of device.
    pipeline : Pipeline
    overlap : float or None
        Speed of what is computed beside moving data; None: the division stays as it is.
    """
    if overlap is None or pipeline.stages == 1 or len(set(pipeline.kinds)) > 1:
        return division
    run_of = {block: run_number for run_number, run in enumerate(runs) for block in run.blocks}
    kinds = [[(str(run_of[block]), variant) for block, variant in c] for c in division.chunks]
    blocks = {
        (run, variant): _block_times(runs[int(run)].variants[variant])
        for run, variant in {kind for row in kinds for kind in row}
    }
    times = BlockTimes(
        blocks=blocks,
        chunk=np.zeros(TIMES),
        totals_ns=0,
        hops_ns=table_hops_ns(pipeline),
        host_ns=0,
        overlap=overlap,
    )
    step_ns = measured_step_ns(kinds, pipeline, times)
    return replace(division, step_ns=max(division.step_ns, step_ns))


def _block_times(figures: VariantFigures) -> Floats:
    times = np.zeros(TIMES)
    forward, weight = figures.forward_ns, figures.deferrable_ns
    times[PASSES] = forward, max(figures.microbatch_ns - forward - weight, 0), weight
    times[ALONE] = times[PAIRED] = times[PASSES]
    times[UPDATE] = figures.step_ns
    return times
