"""Loop over blocks that mix variants: plans as good as any candidate's own, bounds below them."""

import random
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from millrace.models.zoo.catalogue import build_training
from millrace.planner.clusters import parse_cluster
from millrace.planner.search import SearchRequest, search
from millrace.planner.search.decomposition import mixed_loop
from millrace.planner.search.decomposition.mixed_loop import MixedLoop
from millrace.planner.search.evaluation import Evaluator, SolvedPlan
from millrace.planner.search.placement_groups import candidates_of
from millrace.planner.search.search_log import SearchLog
from tests.plan_requests import request_of
from tests.small_models import gpt_of


def drawn(seed: int) -> SearchRequest:
    """Question of a small model on few GPUs of one kind or two; memory may be short."""
    rng = random.Random(seed)
    model = gpt_of(
        rng.choice([4, 6]), 256, 4, vocab=512, positions=rng.choice([64, 256]), precision="bf16"
    )
    cluster, pins = parse_cluster(rng.choice(["a100-sxm-80gb:4x1", "h100-sxm-80gb:2x1"])), {}
    if seed % 2:
        others = parse_cluster("a100-sxm-80gb:2x1").groups
        cluster, pins = changed(parse_cluster("h100-sxm-80gb:2x1"), others=others), {"pp": 2}
    free = request_of(model, cluster, 16, max_gap=0.01, **pins)
    share = rng.choice([None, 0.8])
    if share is None:
        return free
    record = SearchLog()
    search(free, record=record)
    assert record.answer is not None
    more = round(share * record.answer.chosen.division.memory_bytes) - free.usable_bytes
    return replace(free, memory_limit_bytes=free.limit_bytes + more)


def closed(request: SearchRequest, *, apart: bool = False) -> MixedLoop:
    graph = build_training(request.model, request.training, request.global_batch)
    every = candidates_of(request, graph)
    loop = MixedLoop(Evaluator(request, graph), every, lambda line: None, SearchLog(), apart=apart)
    for _ in loop.rounds():
        pass
    return loop


@pytest.mark.parametrize(
    "seed",
    [*range(2), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 20))],
)
def test_what_is_left_has_no_better_plan_than_the_gap_and_none_below_its_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed_loop, "MANY", 2)  # so that promises find the plan
    request = drawn(seed)
    loop, alone = closed(request), closed(request, apart=True)
    bounds_ns = {outcome.candidate: outcome.bound_ns for outcome in loop.outcomes()}
    assert len(loop.outcome_of) < len(alone.outcome_of)
    for outcome in alone.outcomes():
        if isinstance(outcome, SolvedPlan):
            step_ns = outcome.division.step_ns
            assert bounds_ns[outcome.candidate] <= step_ns * (1 + 1e-9)
            assert loop.best_ns <= step_ns * (1 + request.max_gap)
