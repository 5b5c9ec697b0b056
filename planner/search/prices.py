"""Prices: what the figures of a block program weigh in the step time of a pipeline."""

from dataclasses import replace

from planner.search.blocks.program import Prices
from planner.search.stages import DEFERRING, Pipeline, inflight_counts


def prices(pipeline: Pipeline) -> Prices:
    """Prices at which a block program's optimum, over the stages, bounds the step time.

    A stage's time counts for every microbatch and for the ramp: `stages.divide`'s objective, with
    all stages in balance. Where weight gradients fill the ramp they count as much less.
    """
    ramp = (pipeline.stages - 1) / pipeline.interleave
    weight = pipeline.microbatches + ramp
    if pipeline.schedule not in DEFERRING:
        return Prices(microbatch=weight)
    return Prices(microbatch=weight, deferrable=max(weight - 2 * ramp, 0.0))


def shared_prices(pipeline: Pipeline) -> Prices:
    """Prices at which the program is solved: one solution serves however many chunks."""
    return prices(replace(pipeline, interleave=1))


def priced(pipeline: Pipeline, price: float, average: bool) -> Prices:
    """Shared prices with a price per byte, for the average or the fewest microbatches in flight."""
    plain = replace(pipeline, schedule="1f1b", interleave=1)
    counts = inflight_counts(plain)
    kept = sum(counts) / len(counts) if average else min(counts)
    shared = shared_prices(plain if average else pipeline)
    return replace(shared, persistent_byte=price, inflight_byte=price * kept)
