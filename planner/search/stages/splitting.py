"""Splitting stages: each chunk for itself, where chunks of one stage cannot be divided together.

Every position is taken for a stage with its share of the stage's memory, in proportion to what a
typical block needs there. Divisions that are found fit; a bound without memory says how good.
"""

from dataclasses import replace

from millrace.planner.schedules import PLAIN
from millrace.planner.search.stages.bounds import lower_bound_ns
from millrace.planner.search.stages.enumeration import divided
from millrace.planner.search.stages.run_layout import Model
from millrace.planner.search.stages.shape import (
    BlockRun,
    Division,
    Lifetimes,
    Pipeline,
    VariantFigures,
    lifetime_counts,
    step_time_ns,
)


def divided_by_positions(
    runs: tuple[BlockRun, ...], pipeline: Pipeline, limits: tuple[int, ...], max_gap: float
) -> Division:
    """Division that fits, with every chunk as large as any other in time.

    Parameters
    ----------
    runs : tuple of BlockRun
    pipeline : Pipeline
    limits : tuple of int
        Bytes of each stage.
    max_gap : float
        Relative gap at which the chunks are good enough.

    Raises
    ------
    TooManyError
        There are too many rows, or nothing fits the shares.
    """
    stage_of = [pipeline.stage_of(k) for k in range(pipeline.positions)]
    chunks = Pipeline(
        schedule=PLAIN,
        stages=pipeline.positions,
        interleave=1,
        microbatches=pipeline.microbatches,
        kind_of_stage=tuple(pipeline.kinds[stage] for stage in stage_of),
    )
    inflight = lifetime_counts(pipeline)
    mixed = min(2, max(len(run.variants) for run in runs))
    # Without a gradient that is deferred all that is kept has one lifetime: here the longest.
    longest = tuple((max(counts),) for counts in inflight)
    model = Model(tuple(map(_alike_kept, runs)), chunks, mixed, longest)
    needs = _typical_bytes(runs, inflight)
    shares = [0] * pipeline.stages
    for stage, need in zip(stage_of, needs, strict=True):
        shares[stage] += need
    positions = zip(stage_of, needs, strict=True)
    division = divided(
        model, tuple(limits[s] * need // max(shares[s], 1) for s, need in positions), max_gap
    )
    step_ns = step_time_ns(division.chunks, runs, pipeline)
    bound_ns = min(lower_bound_ns(runs, pipeline), step_ns)
    return Division(chunks=division.chunks, step_ns=step_ns, memory_bytes=0, bound_ns=bound_ns)


def _alike_kept(run: BlockRun) -> BlockRun:
    """Run whose variants keep everything equally long."""

    def with_one_lifetime(figures: VariantFigures) -> VariantFigures:
        return replace(
            figures, inflight_bytes=sum(figures.lifetimes), weight_bytes=0, between_bytes=0
        )

    return replace(
        run,
        variants=tuple(map(with_one_lifetime, run.variants)),
        elsewhere=tuple(tuple(map(with_one_lifetime, variants)) for variants in run.elsewhere),
    )


def _typical_bytes(runs: tuple[BlockRun, ...], inflight: tuple[Lifetimes, ...]) -> list[int]:
    """Bytes of a block of the longest run at every position, summed over its variants."""
    longest = max(runs, key=lambda run: len(run.blocks))
    return [sum(variant.bytes_with(counts) for variant in longest.variants) for counts in inflight]
