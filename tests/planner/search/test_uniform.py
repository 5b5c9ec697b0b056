"""Uniform spaces: slopes below every division, bounds below every plan, plans as the search's."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace as changed

from millrace.models.arrays import Ints
from millrace.models.zoo.catalogue import build_training
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.frameworks.capabilities import MODES
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.search import SearchInterrupted, SearchRequest, search
from millrace.planner.search.evaluation import Evaluator, Solved
from millrace.planner.search.placement_groups import candidates_of, usable_bytes
from millrace.planner.search.ranking import lockstep
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.search_log import SearchLog
from millrace.planner.search.stages import Pipeline, divide_evenly, in_order
from millrace.planner.search.stages.even_layers import COLUMNS, DEFERRED, TIME, EvenLayers
from millrace.planner.search.uniform.uniform_loop import UniformLoop
from tests.plan_requests import request_of
from tests.small_models import gpt_of

GPT = gpt_of(6, 64, 4, vocab=512, positions=64)
BLOCKS = {"embedding": "in", "h.0": "dense", **dict.fromkeys(("h.1", "h.2", "h.3"), "moe"),
          "h.4": "moe", "h.5": "moe", "head": "out"}  # fmt: skip
PIPELINES = [
    Pipeline(schedule="1f1b", stages=3, interleave=1, microbatches=8, sent_ns=5),
    Pipeline(schedule="interleaved-1f1b", stages=2, interleave=2, microbatches=8, sent_ns=3),
    Pipeline(schedule="zb-v", stages=2, interleave=2, microbatches=8),
    Pipeline(schedule="zb-h1", stages=3, interleave=1, microbatches=8),
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.schedule)
@pytest.mark.parametrize("others", [0.0, 0.05])
def test_no_division_is_below_the_slopes_of_another(pipeline: Pipeline, others: float) -> None:
    rng = np.random.default_rng(7)
    even = EvenLayers(BLOCKS, pipeline, "ends")

    def drawn() -> Ints:
        block = rng.integers(1, 1000, (len(even.templates), COLUMNS))
        block[:, DEFERRED] = rng.integers(0, block[:, TIME] + 1)
        return block

    for _ in range(60):
        block = drawn()
        figures = even.figures(block[None, None])
        for way in range(len(even.ways)):
            slopes = even.slopes(way, drawn(), others)
            # The figures of the tables: bytes in flight are those that either gradient reads.
            usual = np.array([block[:, 0] - block[:, 1], block[:, 2], block[:, 3],
                              block[:, 5] + block[:, 6], block[:, 1]])  # fmt: skip
            step_ns = slopes.sent_ns + (slopes.time * usual).sum()
            assert step_ns <= figures.step_ns[way, 0] * (1 + 1e-9)
            if not pipeline.defers_weight_gradients:
                usual[3] = block[:, 5]
                kept_bytes = (slopes.memory * usual).sum()
                assert kept_bytes <= figures.stage_bytes[way, 0].max() * (1 + 1e-9)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.schedule)
def test_no_division_over_two_kinds_of_device_is_below_that_of_the_least_times(
    pipeline: Pipeline,
) -> None:
    rng = np.random.default_rng(7)
    kinds = (0,) * (pipeline.stages - 1) + (1,)
    even = EvenLayers(BLOCKS, replace(pipeline, kind_of_stage=kinds), "ends")
    for _ in range(60):
        block = rng.integers(1, 1000, (2, 1, len(even.templates), COLUMNS))
        block[..., DEFERRED] = rng.integers(0, block[..., TIME] + 1)
        least_ns = even.least_step_ns(rng.uniform(0, 1, (2, 1)) * block[:, 0, :, TIME])
        assert least_ns <= even.figures(block).step_ns.min()


def asked(limit_share: float, name: str = "megatron-core") -> SearchRequest:
    """Question whose memory is a share of what the free plan comes to."""
    runs = capabilities(name)
    free = request_of(GPT, 2, 8, max_gap=0.02, runs=runs)
    record = SearchLog()
    search(free, record=record)
    assert record.answer is not None
    laid_out = record.answer.chosen.division.memory_bytes
    limit = free.limit_bytes - free.usable_bytes + round(limit_share * laid_out)
    return replace(free, memory_limit_bytes=limit)


def ranked(request: SearchRequest) -> tuple[Evaluator, UniformLoop]:
    graph = build_training(request.model, request.training, request.global_batch)
    evaluator = Evaluator(request, graph)
    every = [*candidates_of(request, graph), *candidates_of(request, graph, [])]
    loop = UniformLoop(evaluator, every, lambda line: None, SearchLog())
    for _ in loop.rounds():
        pass
    return evaluator, loop


def drawn(seed: int) -> SearchRequest:
    """Question of a small model on few GPUs, driven by some framework; memory may be short."""
    rng = random.Random(seed)
    name = rng.choice(["megatron-core", "megatron-2021", "torchtitan", "deepspeed", "nanotron"])
    heads = rng.choice([2, 4])
    model = gpt_of(
        rng.choice([2, 4, 6, 8]), heads * rng.choice([16, 64]), heads,
        vocab=rng.choice([64, 512]), positions=rng.choice([16, 128]),
    )  # fmt: skip
    cluster = parse_cluster(rng.choice(["a100-sxm-80gb:2x1", "h100-sxm-80gb:4x1"]))
    free = request_of(
        changed(model, precision="bf16"), changed(cluster, software=framework(name)),
        rng.choice([4, 8, 16]), max_gap=0.01, runs=capabilities(name),
    )  # fmt: skip
    share = rng.choice([None, 0.95, 0.8])
    if share is None:
        return free
    _, loop = ranked(free)
    fastest = min(loop.opened.values(), key=lambda opened: opened.best_ns).best
    assert fastest is not None
    more = round(share * fastest.memory_bytes) - free.usable_bytes
    return replace(free, memory_limit_bytes=free.limit_bytes + more)


def divisions(evaluator: Evaluator, loop: UniformLoop) -> Iterator[tuple[float, float]]:
    """Step of divisions found at a grid of prices, and the bound of their candidate."""
    request = evaluator.request
    for candidate, opened in loop.opened.items():
        for mode, share in product(evaluator.modes, (0.0005, 0.01, 0.1, 0.3, 1.0, 3.0)):
            asks = evaluator.asker.asks([candidate], mode, share, [float("inf")])
            (solution,) = evaluator.programs.solve_many(asks, 12, 0.0)
            if isinstance(solution, float):
                continue
            some = mode == MODES[0] and request.runs.recompute_some
            group = [Solved(each, solution) for each in ([mode, MODES[-1]] if some else [mode])]
            runs = evaluator.runs(candidate, group)
            limits = usable_bytes(request, candidate)
            besides = evaluator.sends.buffer_bytes(candidate), request.runs, {0: 1} if some else {}
            with suppress(MemoryLimitError):
                division = divide_evenly(runs, opened.pipeline, limits, *besides)
                division = in_order(division, runs, opened.pipeline, evaluator.overlap)
                yield division.step_ns, opened.bound_ns


@pytest.mark.parametrize(
    "seed",
    [*range(2), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 300))],
)
def test_no_division_at_a_grid_of_prices_is_faster_or_below_its_bound(seed: int) -> None:
    evaluator, loop = ranked(drawn(seed))
    compared = list(divisions(evaluator, loop))
    assert compared or loop.best_ns == float("inf")
    for step_ns, bound_ns in compared:
        assert bound_ns <= step_ns * (1 + 1e-9)
        assert loop.best_ns <= step_ns * (1 + evaluator.request.max_gap)
    for opened in loop.opened.values():
        assert opened.bound_ns <= opened.best_ns * (1 + 1e-9)


@pytest.mark.parametrize("name", ["megatron-core", "any"])
def test_the_answer_is_the_same_in_one_process_and_in_two(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(0.9, name)
    graph = build_training(request.model, request.training, request.global_batch)
    every = candidates_of(request, graph)
    answers: list[list[tuple[str, float, object]]] = []
    monkeypatch.setattr(lockstep, "FEW", 4)
    for forks in (False, True):
        monkeypatch.setattr(lockstep, "can_fork", lambda forks=forks: forks)
        record = SearchLog()
        outcomes = lockstep.closed(Evaluator(request, graph), every, record=record)
        assert record.counts["bounded"] == len(every)
        steps = [
            (outcome.candidate.text, outcome.bound_ns, getattr(outcome, "division", request))
            for outcome in outcomes
        ]
        answers.append(steps)
    assert len(every) > lockstep.FEW
    assert answers[0] == answers[1]


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("name", ["megatron-core", "any"])
def test_an_interrupted_search_has_its_best_plan_so_far(
    name: str, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockstep, "can_fork", lambda: forks)
    monkeypatch.setattr(lockstep, "FEW", 4)
    told: list[str] = []

    def interrupt(line: str) -> None:
        told.append(line)
        if "best step" in line and sum("best step" in each for each in told) == 1:
            raise KeyboardInterrupt

    request = request_of(GPT, 2, 8, max_gap=0.02, runs=capabilities(name))
    with pytest.raises(SearchInterrupted) as stopped:
        search(request, progress=interrupt)
    evidence = stopped.value.plan.evidence
    assert evidence is not None
    assert evidence.bound_s <= evidence.objective_s
    assert evidence.layers[0]["interrupted"]
    finished = search(request)
    assert finished.evidence is not None
    assert evidence.bound_s <= finished.evidence.objective_s <= evidence.objective_s * (1 + 1e-9)
