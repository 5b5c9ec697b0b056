"""Uniform spaces: slopes below every division, bounds below every plan, plans as the search's."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from millrace.models.arrays import Ints
from millrace.models.zoo.catalogue import build_training
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.search import SearchInterrupted, SearchRequest, search
from millrace.planner.search.evaluation import Evaluator, Solved
from millrace.planner.search.placement_groups import candidates_of, usable_bytes
from millrace.planner.search.ranking import Ranker
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.search_log import SearchLog
from millrace.planner.search.stages import Pipeline, divide_evenly
from millrace.planner.search.stages.even_layers import COLUMNS, DEFERRED, TIME, EvenLayers
from millrace.planner.search.uniform import lockstep
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


def asked(limit_share: float) -> SearchRequest:
    """Question whose memory is a share of what the free plan comes to."""
    runs = capabilities("megatron-core")
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


def divisions(evaluator: Evaluator, loop: UniformLoop) -> Iterator[tuple[float, float]]:
    """Step of divisions found otherwise, and the bound of their candidate."""
    request = evaluator.request
    for candidate, opened in loop.opened.items():
        for mode in evaluator.modes:
            for share in (0.002, 0.1, 1.0):
                asks = evaluator.asker.asks([candidate], mode, share, [float("inf")])
                (solution,) = evaluator.programs.solve_many(asks, 8, 0.01)
                if isinstance(solution, float):
                    continue
                runs = evaluator.runs(candidate, [Solved(mode, solution)])
                limits = usable_bytes(request, candidate)
                with suppress(MemoryLimitError):
                    division = divide_evenly(runs, opened.pipeline, limits, 0, request.runs, {})
                    yield division.step_ns, opened.bound_ns


@pytest.mark.parametrize("limit_share", [2.0, 0.9])
def test_bounds_are_below_plans_and_the_plan_is_no_slower_than_the_search_s(
    limit_share: float,
) -> None:
    request = asked(limit_share)
    evaluator, loop = ranked(request)
    graph = evaluator.graph
    ladder = Ranker(request, Evaluator(request, graph), lambda line: None, SearchLog())
    other = ladder.rank(candidates_of(request, graph), lambda best: [])
    assert loop.best_ns <= other.best_ns * (1 + 1e-6)
    compared = list(divisions(evaluator, loop))
    assert compared
    for step_ns, bound_ns in compared:
        assert bound_ns <= step_ns * (1 + 1e-9)


def test_the_answer_is_the_same_in_one_process_and_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(0.9)
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
