"""Bounds and plans by cuts and columns, against going through all plans of small questions."""

from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest

from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec, graph_spec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.search import SearchRequest, search
from millrace.planner.search.blocks.cost_tables import INFLIGHT, MICROBATCH, PERSISTENT
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.block_oracle import BlockOracle, CutPool, PriceAsk
from millrace.planner.search.decomposition.bound_program import (
    bound_program,
    lowest_branch,
    relaxation,
)
from millrace.planner.search.decomposition.cut_bounds import TIME_ALONE, CutBounds
from millrace.planner.search.decomposition.pipeline_rows import PipelineRows, StageProblem
from millrace.planner.search.decomposition.plan_program import plan_program
from millrace.planner.search.decomposition.template_tables import (
    BETWEEN,
    BLOCK_FIGURES,
    block_figures,
)
from millrace.planner.search.evaluation import Evaluator
from millrace.planner.search.placement_groups import candidates_of, usable_bytes
from millrace.planner.search.search_log import SearchLog, SearchResult
from millrace.planner.search.stages import BlockRun, Pipeline, VariantFigures
from millrace.planner.search.stages.shape import peak_bytes, step_time_ns
from tests.plan_requests import request_of
from tests.planner.search.enumeration import Enumerator
from tests.planner.search.small_models import small_graph
from tests.planner.search.test_block_oracle import random_prices
from tests.planner.search.test_exact import drawn_cluster

SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v")


def random_runs(rng: np.random.Generator, mids: int, *, deferring: bool) -> tuple[BlockRun, ...]:
    """A stem, so many equal blocks and a head, in three variants each."""

    def variant() -> VariantFigures:
        time = int(rng.integers(50, 200))
        return VariantFigures(
            microbatch_ns=time,
            deferrable_ns=int(rng.integers(0, time // 2)),
            step_ns=int(rng.integers(0, 100)),
            persistent_bytes=int(rng.integers(0, 50)),
            inflight_bytes=int(rng.integers(0, 20)),
            weight_bytes=deferring * int(rng.integers(0, 20)),
            between_bytes=deferring * int(rng.integers(0, 20)),
        )

    def run(template: str, blocks: int) -> BlockRun:
        names = tuple(f"{template}.{number}" for number in range(blocks))
        return BlockRun(
            template=template, blocks=names, variants=tuple(variant() for _ in range(3))
        )

    return run("stem", 1), run("mid", mids), run("head", 1)


def two_stages(seed: int) -> Pipeline:
    """A pipeline of two stages, whose schedule is another for every seed."""
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    chunks = {"interleaved-1f1b": 2, "zb-v": 2}.get(schedule, 1)
    return Pipeline(schedule=schedule, stages=2, interleave=chunks, microbatches=8)


def pools_of(runs: tuple[BlockRun, ...]) -> dict[str, CutPool]:
    """Every variant as a column."""
    pools = {run.template: CutPool() for run in runs}
    for run in runs:
        for number, variant in enumerate(run.variants):
            pools[run.template].columns["none", (number,)] = block_figures(variant)  # type: ignore[index]
    return pools


def problem_of(runs: tuple[BlockRun, ...], pipeline: Pipeline, limit: int) -> StageProblem:
    run_lengths = tuple((run.template, len(run.blocks)) for run in runs)
    return StageProblem(pipeline=pipeline, runs=run_lengths, limits=(limit,), unit_ns=300.0)


def random_chunks(
    rng: np.random.Generator, runs: tuple[BlockRun, ...], pipeline: Pipeline
) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Blocks in their order, on chunks none of which is empty, in any variants."""
    blocks = [block for run in runs for block in run.blocks]
    cuts = sorted(rng.choice(len(blocks) - 1, pipeline.positions - 1, replace=False) + 1)
    edges = [0, *cuts, len(blocks)]
    return tuple(
        tuple((block, int(rng.integers(3))) for block in blocks[low:high])
        for low, high in pairwise(edges)
    )


def fixed(
    rows: PipelineRows, chunks: tuple[tuple[tuple[str, int], ...], ...], runs: tuple[BlockRun, ...]
) -> None:
    """Let the rows hold these chunks."""
    run_of = {block: number for number, run in enumerate(runs) for block in run.blocks}
    counts: dict[tuple[int, int], int] = {}
    for k, chunk in enumerate(chunks):
        load = np.zeros(BLOCK_FIGURES)
        for block, variant in chunk:
            counts[k, run_of[block]] = counts.get((k, run_of[block]), 0) + 1
            load += block_figures(runs[run_of[block]].variants[variant])
        load_column = rows.program.add_columns(0.0)
        rows.add_load(k, [load_column], (load / rows.problem.scale)[:, None])
        rows.program.enter(rows.program.add_rows(1, 1.0, 1.0), load_column, 1.0)
    for key, column in rows.counts.items():
        amount = float(counts.get(key, 0))
        rows.program.enter(rows.program.add_rows(1, amount, amount), column, 1.0)


def test_rows_cost_what_a_division_does() -> None:
    """Its blocks and variants given, the program's step and bytes are those of `stages.shape`."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        schedule = SCHEDULES[seed % len(SCHEDULES)]
        chunks = {"interleaved-1f1b": 2 + seed % 2, "zb-v": 2}.get(schedule, 1)
        pipeline = Pipeline(
            schedule=schedule,
            stages=2 + seed % 3,
            interleave=chunks,
            microbatches=4 * (2 + seed % 3),
            sent_ns=int(rng.integers(0, 100)),
        )
        runs = random_runs(rng, 12, deferring=pipeline.defers_weight_gradients)
        division = random_chunks(rng, runs, pipeline)
        most = max(peak_bytes(division, runs, pipeline))
        expected = step_time_ns(division, runs, pipeline)
        for limit, fits in ((most, True), (most - 1, False)):
            for whole_blocks in (True, False):
                rows = PipelineRows(problem_of(runs, pipeline, limit), whole_blocks=whole_blocks)
                fixed(rows, division, runs)
                answer = rows.program.relaxed()
                assert (answer is not None) is fits, seed
                if answer is not None:
                    assert rows.step_ns(answer.cost) <= expected * (1 + 1e-7), seed
                    # What fills the ramp is summed over a chunk; blocks' own sums are smaller.
                    if whole_blocks and not pipeline.defers_weight_gradients:
                        assert rows.step_ns(answer.cost) == pytest.approx(expected, rel=1e-7), seed


def test_a_plan_program_is_as_good_as_any_division() -> None:
    """It costs no more than random divisions, and its relaxation no more than itself."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        pipeline = two_stages(seed)
        runs = random_runs(rng, 4, deferring=pipeline.defers_weight_gradients)
        drawn = [random_chunks(rng, runs, pipeline) for _ in range(200)]
        limit = int(np.median([max(peak_bytes(chunks, runs, pipeline)) for chunks in drawn]))
        best = min(
            step_time_ns(chunks, runs, pipeline)
            for chunks in drawn
            if max(peak_bytes(chunks, runs, pipeline)) <= limit
        )
        problem = problem_of(runs, pipeline, limit)
        rows = plan_program(problem, [pools_of(runs)], whole_blocks=True)
        answer = rows.program.solve()
        assert answer is not None, seed
        assert rows.step_ns(answer.cost) <= best * (1 + 1e-6), seed
        assert answer.values[list(rows.counts.values())].sum() == pytest.approx(6), seed
        relaxed = relaxation(plan_program(problem, [pools_of(runs)]))
        assert relaxed.step_ns <= rows.step_ns(answer.cost) * (1 + 1e-6), seed


def test_multipliers_say_what_more_room_saves() -> None:
    """A little more of it saves as much, by the program that has it."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        pipeline = two_stages(seed)
        runs = random_runs(rng, 6, deferring=pipeline.defers_weight_gradients)
        drawn = [random_chunks(rng, runs, pipeline) for _ in range(50)]
        limit = 1000 * int(np.median([max(peak_bytes(chunks, runs, pipeline)) for chunks in drawn]))
        pools = pools_of(runs)
        for pool in pools.values():  # in bytes a thousand times as many, so that one is a little
            for figures in pool.columns.values():
                figures[[PERSISTENT, INFLIGHT, BETWEEN]] *= 1000
        saved = []
        for more in (0, 1):
            problem = problem_of(runs, pipeline, limit + more)
            relaxed = relaxation(plan_program(problem, [pools]))
            assert relaxed.memory_prices is not None, seed
            saved.append((relaxed.step_ns, float(relaxed.memory_prices.sum())))
        (before_ns, each_ns), (after_ns, _) = saved
        assert before_ns - after_ns == pytest.approx(each_ns, rel=1e-3, abs=1e-9 * before_ns), seed


def question(seed: int) -> SearchRequest:
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    graph = small_graph(
        2 if schedule in ("interleaved-1f1b", "zb-v") else 1,
        batch=8,
        tokens=(64, 1024)[seed % 2],
        inputs=512,
        hidden=(256, 512)[seed // 2 % 2],
        classes=127,
        mid=("gelu", "residual")[seed % 2],
    )
    pins = ({}, {"tp": 2}, {"dp": 2})[seed % 3]
    return request_of(
        graph_spec(graph, "fp32"), drawn_cluster(4 if pins else 2, seed),
        training=TrainingSpec(optimizer=("sgd", "adamw")[seed % 2]), pp=2, micro_batch=1,
        schedule=schedule, **pins,
    )  # fmt: skip


def bound_problem(
    request: SearchRequest,
) -> tuple[Evaluator, Graph, Candidate, StageProblem, BlockOracle, dict[str, CutPool]]:
    """A question's first candidate, with some cuts of its blocks."""
    graph = build_training(request.model, request.training, request.global_batch)
    evaluator = Evaluator(request, graph)
    candidate = candidates_of(request, graph)[0]
    shape = evaluator.shape(candidate)
    runs = tuple((name, len(list(of))) for name, of in groupby(graph.blocks, graph.templates.get))
    problem = StageProblem(
        pipeline=evaluator.sends.pipeline(candidate),
        runs=runs,  # type: ignore[arg-type]
        limits=usable_bytes(request, candidate),
        unit_ns=1e6,
    )
    oracle = BlockOracle(evaluator.programs, evaluator.modes, sweeps=40)
    pools = {name: oracle.pool(shape, name) for name, _ in problem.runs}
    return evaluator, graph, candidate, problem, oracle, pools


@pytest.mark.parametrize("seed", range(15))
def test_the_bound_is_below_every_plan_and_rises_with_every_cut(seed: int) -> None:
    request = question(seed)
    evaluator, _, candidate, problem, oracle, pools = bound_problem(request)
    free_ns = Enumerator(request, limited=False).of(candidate, float("inf"))
    rng = np.random.default_rng(seed)
    shape = evaluator.shape(candidate)
    bound = 0.0
    for number in range(6):
        prices = random_prices(rng) if number else TIME_ALONE
        oracle.ask(PriceAsk(shape, name, prices) for name in pools)
        risen = relaxation(bound_program(problem, [pools]).rows).step_ns
        assert risen >= bound * (1 - 1e-9)
        bound = risen
    assert bound <= free_ns * (1 + 1e-6)
    run, _ = problem.even_blocks
    time_ns = pools[problem.runs[run][0]].least[0]
    program = bound_program(problem, [pools])
    _, lowest = lowest_branch(program.rows, time_ns)
    assert bound * (1 - 1e-6) <= lowest.step_ns <= free_ns * (1 + 1e-6)
    assert relaxation(program.rows).step_ns == pytest.approx(bound)
    tight_cuts = program.tight(relaxation(program.rows).values)
    for newest in (0, 2):
        fewer = relaxation(bound_program(problem, [pools], tight_cuts, [newest]).rows).step_ns
        assert fewer == pytest.approx(bound)


@pytest.mark.parametrize("seed", range(5))
def test_where_memory_binds_the_bound_is_below_every_plan_that_fits(seed: int) -> None:
    request = question(seed)
    evaluator, _, candidate, problem, oracle, pools = bound_problem(request)
    shape = evaluator.shape(candidate)
    rng = np.random.default_rng(seed)
    for prices in [random_prices(rng) for _ in range(12)]:
        oracle.ask(PriceAsk(shape, name, prices) for name in pools)
    free_ns = relaxation(bound_program(problem, [pools]).rows).step_ns
    columns = {name: np.array(list(pool.columns.values())) for name, pool in pools.items()}
    fastest = [columns[name][columns[name][:, MICROBATCH].argmin()] for name, _ in problem.runs]
    blocks = [count for _, count in problem.runs]
    needed_bytes = sum(
        n * (figures[PERSISTENT] + figures[INFLIGHT])
        for n, figures in zip(blocks, fastest, strict=True)
    )
    most = int(needed_bytes / 2)
    tight = replace(problem, limits=(most,))
    bound = relaxation(bound_program(tight, [pools]).rows).step_ns
    assert bound >= free_ns * (1 - 1e-9)
    spare = evaluator.request.usable_bytes
    limit = (request.memory_limit_bytes or spare) + most - spare
    limited = replace(request, memory_limit_bytes=limit)
    assert bound <= Enumerator(limited, limited=True).of(candidate, float("inf")) * (1 + 1e-6)


def answered() -> tuple[SearchResult, CutBounds]:
    """Answer of a search with little memory, and bounds that know no cuts yet."""
    record = SearchLog()
    asked_for = request_of(
        model_spec("gpt2-small", seq_len=512), drawn_cluster(4, 2), 32, memory_limit_bytes=6 * 2**30
    )
    search(asked_for, record=record)
    assert record.answer is not None
    evaluator = record.answer.evaluator
    oracle = BlockOracle(evaluator.programs, evaluator.modes)
    return record.answer, CutBounds(oracle, evaluator.graph, evaluator.asker, evaluator.sends)


def test_no_bound_is_above_a_plan_that_was_found() -> None:
    """This holds for every candidate of a search that has a plan, whatever its schedule."""
    answer, cuts = answered()
    plans = answer.solved_plans
    opened = cuts.opened([(plan.candidate, plan.bound_ns) for plan in plans])
    for _ in range(6):
        cuts.round([each for each in opened if not each.done], float("inf"))
    assert cuts.work > cuts.oracle.solved > 0
    for before, after in zip(plans, opened, strict=True):
        assert before.bound_ns <= after.bound_ns <= before.division.step_ns * (1 + 1e-6)
