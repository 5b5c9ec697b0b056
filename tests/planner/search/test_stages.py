"""Blocks over pipeline stages: against brute force, and at the limits."""

from itertools import pairwise, product

import numpy as np
import pytest

from millrace.planner.errors import InfeasibleError
from millrace.planner.schedules import SCHEDULES
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.stages import (
    BlockRun,
    Division,
    Pipeline,
    VariantFigures,
    divide,
    inflight_counts,
)
from millrace.planner.search.stages.shape import lifetime_counts
from tests.planner.search.test_divisions import brute_force

PLENTY = 10**9


def pipeline(stages: int, microbatches: int = 4, interleave: int = 1) -> Pipeline:
    schedule = "interleaved-1f1b" if interleave > 1 else "1f1b"
    return Pipeline(
        schedule=schedule, stages=stages, interleave=interleave, microbatches=microbatches
    )


def variant(time: int, update: int = 0, stays: int = 0, keeps: int = 0) -> VariantFigures:
    return VariantFigures(
        microbatch_ns=time,
        deferrable_ns=0,
        step_ns=update,
        persistent_bytes=stays,
        inflight_bytes=keeps,
    )


def run(template: str, count: int, *variants: VariantFigures) -> BlockRun:
    blocks = tuple(f"{template}.{i}" for i in range(count))
    return BlockRun(template=template, blocks=blocks, variants=variants)


def least_ns(runs: tuple[BlockRun, ...], pipe: Pipeline, limit_bytes: int = PLENTY) -> float:
    """Least step time over every cut of the blocks and every variant of every block."""
    return min(step for step, used in brute_force(runs, pipe) if max(used) <= limit_bytes)


@pytest.mark.parametrize("chunks", [(2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_unlike_blocks_divide_over_several_chunks_a_stage(
    seed: int, chunks: tuple[int, int]
) -> None:
    """Few of any kind: chunks whose ends take all there is leave stages without the longest run."""
    stages, interleave = chunks
    rng = np.random.default_rng(seed)
    names = ["stem", *(f"stage.{number}" for number in range(stages * interleave - 1)), "head"]
    runs = tuple(run(name, 1, variant(*(int(x) for x in rng.integers(1, 30, 4)))) for name in names)
    pipe = pipeline(stages, 4, interleave)
    assert divide(runs, pipe, PLENTY).step_ns == pytest.approx(least_ns(runs, pipe), rel=1e-6)


def counts(division: Division) -> list[int]:
    return [len(chunk) for chunk in division.chunks]


def test_an_expensive_head_takes_blocks_from_the_last_stage() -> None:
    runs = (run("embedding", 1, variant(1)), run("h", 8, variant(10)), run("head", 1, variant(20)))
    division = divide(runs, pipeline(2, 32), PLENTY)
    assert counts(division) == [6, 4]
    assert [block for chunk in division.chunks for block, _ in chunk] == [
        "embedding.0",
        *(f"h.{i}" for i in range(8)),
        "head.0",
    ]


def test_memory_makes_some_blocks_of_a_stage_take_the_smaller_variant() -> None:
    fast, small = variant(10, keeps=10), variant(14, keeps=2)
    runs = (run("h", 8, fast, small),)
    division = divide(runs, pipeline(2, 4), limit_bytes=44)
    assert division.step_ns == pytest.approx(least_ns(runs, pipeline(2, 4), 44))
    # Two microbatches in flight on the first stage, one on the second.
    first, second = ([v for _, v in chunk] for chunk in division.chunks)
    assert set(first) == {0, 1}
    assert first.count(0) <= second.count(0)


def test_a_limit_that_nothing_meets_is_named_with_its_bytes() -> None:
    runs = (run("h", 4, variant(1, stays=100)),)
    with pytest.raises(MemoryLimitError, match="150 bytes too few") as caught:
        divide(runs, pipeline(2), limit_bytes=100, transient_bytes=50)
    assert caught.value.needed_bytes == 250


def test_more_chunks_than_blocks_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="the model has 3: use fewer stages"):
        divide((run("h", 3, variant(1)),), pipeline(2, 4, 2), PLENTY)


def test_depth_enters_as_counts_only() -> None:
    runs = (run("embedding", 1, variant(3)), run("h", 96, variant(10)), run("head", 1, variant(12)))
    division = divide(runs, pipeline(16, 64), PLENTY)
    assert sum(counts(division)) == 98
    assert max(counts(division)) <= 7


def test_deferred_weight_gradients_shorten_the_ramp() -> None:
    block = VariantFigures(
        microbatch_ns=12, deferrable_ns=4, step_ns=0, persistent_bytes=0, inflight_bytes=0
    )
    times = {}
    for schedule in ("1f1b", "zb-h1"):
        pipe = Pipeline(schedule=schedule, stages=4, interleave=1, microbatches=8)
        times[schedule] = divide((run("h", 4, block),), pipe, PLENTY).step_ns
    assert times["1f1b"] == pytest.approx((8 + 3) * 12)
    assert times["zb-h1"] == pytest.approx(8 * 12 + 3 * (12 - 2 * 4))


def test_in_flight_counts_follow_the_schedule() -> None:
    assert inflight_counts(pipeline(3, 8)) == (3, 2, 1)
    gpipe = Pipeline(schedule="gpipe", stages=2, interleave=1, microbatches=5)
    assert inflight_counts(gpipe) == (5, 5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_chunks_of_a_stage_are_counted_when_they_have_an_order(name: str) -> None:
    for stages, interleave, microbatches in product((1, 2, 3, 8), (1, 2, 3), (1, 2, 7, 24)):
        if SCHEDULES[name].chunks not in (None, interleave):
            continue
        shape = {"stages": stages, "interleave": interleave, "microbatches": microbatches}
        pipe = Pipeline(schedule=name, **shape)
        for stage in range(stages):
            on = [k for k in range(pipe.positions) if pipe.stage_of(k) == stage]
            counts = sorted((lifetime_counts(pipe)[k] for k in on), key=sum)
            assert all(a <= b for pair in pairwise(counts) for a, b in zip(*pair, strict=True))
