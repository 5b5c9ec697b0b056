"""Plans of columns, and divisions by integer programs: they fit, cost what they say, are good."""

from itertools import chain

import numpy as np
import pytest

from millrace.planner.search.decomposition.column_plans import column_plan
from millrace.planner.search.decomposition.division import divide_by_program
from millrace.planner.search.sites import usable_bytes
from millrace.planner.search.stages import Pipeline
from millrace.planner.search.stages.shape import peak_bytes, step_time_ns
from tests.planner.search.test_bound_program import (
    answered,
    random_chunks,
    random_runs,
    two_stages,
)


@pytest.mark.parametrize("seed", range(20))
def test_a_division_fits_and_is_about_as_good_as_any_that_is_drawn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pipeline = two_stages(seed)
    runs = random_runs(rng, 6, deferring=pipeline.defers_weight_gradients)
    drawn = [random_chunks(rng, runs, pipeline) for _ in range(400)]
    limit = int(np.median([max(peak_bytes(one, runs, pipeline)) for one in drawn]))
    fitting = [one for one in drawn if max(peak_bytes(one, runs, pipeline)) <= limit]
    best_ns = min(step_time_ns(one, runs, pipeline) for one in fitting)
    found = divide_by_program(runs, pipeline, limit)
    assert found is not None
    counted = found.chunks, runs, pipeline
    assert max(peak_bytes(*counted)) == found.memory_bytes <= limit
    assert step_time_ns(*counted) == pytest.approx(found.step_ns)
    assert all(found.chunks)
    placed = [block for block, _ in chain(*found.chunks)]
    assert placed == [block for run in runs for block in run.blocks]
    assert found.step_ns <= 1.1 * best_ns


def test_where_no_division_fits_there_is_none() -> None:
    rng = np.random.default_rng(0)
    pipeline = Pipeline(schedule="1f1b", stages=2, interleave=1, microbatches=8)
    runs = random_runs(rng, 6, deferring=False)
    assert divide_by_program(runs, pipeline, 1) is None
    assert divide_by_program(runs, pipeline, 10**6, beside_bytes=10**6) is None
    many = Pipeline(schedule="1f1b", stages=9, interleave=1, microbatches=9)
    assert divide_by_program(runs, many, 10**9) is None


def test_plans_of_columns_fit_and_are_about_as_good_as_those_of_the_search() -> None:
    """Of every candidate that has a plan, by the search's own cost."""
    answer, loop = answered()
    evaluator, known = answer.evaluator, answer.found
    best = {one.candidate: one for one in reversed(known)}
    given = [(one.candidate, one.bound_ns) for one in best.values()]
    most_ns = max(one.division.step_ns for one in known)
    ratios = []
    for one in loop.raised(given, 2 * most_ns, 0.02, 2_000):
        found = column_plan(evaluator, loop, one)
        if found is None:
            continue
        (limit,) = usable_bytes(evaluator.request, one.candidate)
        assert found.division.memory_bytes <= limit
        assert one.bound_ns <= found.division.step_ns * (1 + 1e-6)
        runs = evaluator.runs(found.candidate, found.solved)
        (handover,) = {variant.handover for run in runs for variant in run.variants}
        assert handover
        ratios.append(found.division.step_ns / best[one.candidate].division.step_ns)
    assert len(ratios) > len(best) / 2
    assert np.mean(ratios) < 1.02
