"""Cuts and columns of blocks, against every variant that enumeration finds."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from millrace.models.arrays import Ints
from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec, graph_spec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.search import SearchRequest
from millrace.planner.search.blocks.block_figures import forward_times_ns, template_figures
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    FIGURES,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
)
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.block_oracle import BlockOracle, PriceAsk
from millrace.planner.search.decomposition.prices import snapped
from millrace.planner.search.decomposition.template_tables import (
    BETWEEN,
    BLOCK_FIGURES,
    FORWARD,
    TemplateTables,
    table_prices,
    template_tables,
)
from millrace.planner.search.evaluation import Evaluator
from millrace.planner.search.placement_groups import candidates_of
from tests.plan_requests import request_of
from tests.planner.search.enumerated_blocks import BETWEEN as BETWEEN_BYTES
from tests.planner.search.enumerated_blocks import WEIGHT
from tests.planner.search.enumeration import Enumerator
from tests.planner.search.small_models import small_graph
from tests.planner.search.test_exact import drawn_cluster
from tests.small_models import small

PINS: tuple[dict[str, object], ...] = ({}, {"tp": 2}, {"dp": 2}, {"dp": 2, "zero": 3})


def question(seed: int) -> SearchRequest:
    """Two stages of one or two devices, whose orders defer gradients of weights."""
    graph = small_graph(
        1,
        batch=4,
        tokens=(64, 1024)[seed % 2],
        inputs=512,
        hidden=(256, 512)[seed // 2 % 2],
        classes=127,
        stem=("dense", "embedding")[seed % 2],
        mid=("gelu", "residual", "relu")[seed % 3],
    )
    pins = PINS[seed % len(PINS)]
    return request_of(
        graph_spec(graph, "fp32"), drawn_cluster(4 if pins else 2, seed), 4,
        training=TrainingSpec(optimizer=("sgd", "adamw")[seed % 2]), pp=2, micro_batch=1,
        schedule="zb-h1", **pins,
    )  # fmt: skip


def searched_candidates(request: SearchRequest) -> tuple[Evaluator, Graph, tuple[Candidate, ...]]:
    graph = build_training(request.model, request.training, request.global_batch)
    return Evaluator(request, graph), graph, candidates_of(request, graph)


def random_prices(rng: np.random.Generator) -> tuple[float, ...]:
    """Prices of nanoseconds near one; those of bytes from hardly any to nearly all."""
    prices = np.ones(BLOCK_FIGURES)
    prices[1] = rng.uniform(0.01, 1)
    prices[[2, INFLIGHT, BETWEEN]] = rng.uniform(0, 1, 3) * 10.0 ** rng.uniform(-5, 1)
    prices[DEFERRABLE] = rng.uniform(0.1, 1)
    prices[FORWARD] = rng.uniform(0.5, 2)
    return tuple(prices.tolist())


def alike_in_passes(prices: tuple[float, ...]) -> tuple[float, ...]:
    """Prices with one for both passes that enumeration has together."""
    alike = list(prices)
    alike[FORWARD] = alike[MICROBATCH]
    return tuple(alike)


def enumerated_figures(rows: Ints) -> NDArray[np.int64]:
    """Block figures [F, V] of variants as enumeration has them [V, columns]."""
    figures = rows[:, :BLOCK_FIGURES].T.copy()
    figures[FORWARD] = 0  # among those of `MICROBATCH`
    figures[INFLIGHT] += rows[:, WEIGHT]
    figures[BETWEEN] = rows[:, WEIGHT] + rows[:, BETWEEN_BYTES]
    return figures


@pytest.mark.parametrize("seed", range(8))
def test_every_cut_lies_below_every_variant(seed: int) -> None:
    request = question(seed)
    evaluator, graph, candidates = searched_candidates(request)
    oracle = BlockOracle(evaluator.programs, evaluator.modes, sweeps=40)
    enumerator = Enumerator(request, limited=True)
    rng = np.random.default_rng(seed)
    for candidate in candidates:
        shape = evaluator.shape(candidate)
        for template in dict.fromkeys(graph.templates[block] for block in graph.blocks):
            asks = [alike_in_passes(random_prices(rng)) for _ in range(12)]
            oracle.ask(PriceAsk(shape, template, prices) for prices in asks)
            variants = np.concatenate(
                [
                    enumerated_figures(rows)
                    for mode in evaluator.modes
                    for rows in enumerator.variants(candidate, mode, template).by_handover.values()
                ],
                axis=1,
            )
            pool = oracle.pool(shape, template)
            columns = np.array(list(pool.columns.values())).T
            for prices, least in zip(pool.prices, pool.least, strict=True):
                best = (prices @ variants).min()
                assert least <= best * (1 + 1e-6)
                # A column is one of the variants, or rounded as one.
                assert (prices @ columns).min() >= best * (1 - 1e-6)
                assert least >= 0.8 * best


@cache
def restricted(model: str) -> list[tuple[Evaluator, Candidate, str, TemplateTables, int]]:
    """Template tables of some candidates of a question, with their rows."""
    spec = small("resnet") if model == "resnet" else model_spec(model, seq_len=256)
    request = request_of(spec, drawn_cluster(4, 3), pp=1)
    evaluator, graph, candidates = searched_candidates(request)
    cases = []
    for mode in ("none", "selective"):
        for candidate in candidates[:: max(1, len(candidates) // 3)]:
            shape = evaluator.shape(candidate)
            tables, row = evaluator.programs.priced(shape, mode)
            space = evaluator.programs.space(shape, mode)
            for template in dict.fromkeys(graph.templates[block] for block in graph.blocks):
                programs = template_tables(space, tables, template)
                cases.append((evaluator, candidate, mode, programs, row))
    return cases


@pytest.mark.parametrize("model", ["llama3-8b", "bert-base", "resnet"])
def test_restricted_figures_equal_the_whole_space_s(model: str) -> None:
    """Figures of any options, legal or not, are the same by a template's tables and by all."""
    rng = np.random.default_rng(5)
    for evaluator, candidate, mode, programs, row in restricted(model):
        tables, _ = evaluator.programs.priced(evaluator.shape(candidate), mode)
        space = programs.space
        template = space.folded.graph.templates[space.choices[programs.places[0]].ops[0].op.block]
        for _ in range(4):
            options = np.array([rng.integers(len(stands)) for stands in programs.stands])
            each = -(-programs.figures(options[:, None], np.array([row]))[:, 0] // programs.count)
            for deferring in (False, True):
                space_options = programs.space_options(options)
                solution = np.array([row]), np.array(space_options)[:, None]
                place = space.templates.index(template)
                *usual, weight, between = template_figures(space, tables, *solution, deferring)[
                    :, place, 0
                ].tolist()
                if not deferring:
                    assert (weight, between) == (0, 0)
                usual[INFLIGHT] += weight
                forward = int(forward_times_ns(space, tables, *solution)[place, 0])
                assert each[FORWARD] == pytest.approx(forward, abs=1)
                each[MICROBATCH] += each[FORWARD]
                assert each[: len(FIGURES)].tolist() == pytest.approx(usual, abs=2)
                each[MICROBATCH] -= each[FORWARD]
                if deferring:
                    assert each[BETWEEN] == pytest.approx(weight + between, abs=1)


@pytest.mark.parametrize("model", ["llama3-8b", "bert-base", "resnet"])
def test_edges_of_what_is_kept_cost_no_more_than_it(model: str) -> None:
    """Nor less where all readers find it in one layout."""
    rng = np.random.default_rng(6)
    for *_, programs, row in restricted(model):
        rows = np.array([row])
        kept_edges = programs.tables.edges[len(programs.edges) :]
        assert kept_edges
        for _ in range(8):
            options = np.array([rng.integers(len(stands)) for stands in programs.stands])[:, None]
            exact, bound = programs.figures(options, rows)[:, 0], np.zeros(BLOCK_FIGURES, np.int64)
            for edge in kept_edges:
                source = edge.source_of[options[edge.producer, 0]]
                targets = {int(use.target_of[options[use.choice, 0]]) for use in edge.uses}
                for target in targets:
                    bound[edge.figure] += edge.count * edge.duration_ns[source, target, row]
            assert bound[INFLIGHT] <= exact[INFLIGHT]
            assert bound[BETWEEN] <= exact[BETWEEN]


@pytest.mark.parametrize("model", ["llama3-8b", "bert-base", "resnet"])
def test_tables_cost_no_more_than_the_figures_at_any_prices(model: str) -> None:
    """Nor less where both of the first passes cost the same."""
    rng = np.random.default_rng(7)
    for *_, programs, row in restricted(model):
        rows, tables = np.array([row]), programs.tables
        for alike in (False, True, False, True):
            drawn = random_prices(rng)
            prices = np.array(alike_in_passes(drawn) if alike else drawn)
            prices[[PERSISTENT, INFLIGHT, BETWEEN]] = 0
            priced = table_prices(prices[:, None])[:, 0]
            options = np.array([rng.integers(len(stands)) for stands in programs.stands])[:, None]
            exact = float(prices @ programs.figures(options, rows)[:, 0])
            cost = 0.0
            for choice, option in zip(tables.choices, options[:, 0], strict=True):
                cost += choice.count * float(priced @ choice.figures[:, option, row])
            for edge in tables.edges[: len(programs.edges)]:
                source = edge.source_of[options[edge.producer, 0]]
                for target in {int(use.target_of[options[use.choice, 0]]) for use in edge.uses}:
                    cost += edge.count * priced[edge.figure] * edge.duration_ns[source, target, row]
            assert cost <= exact * (1 + 1e-9)
            if alike:
                assert cost == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_columns_are_read_again_as_they_are_in_the_pool(seed: int) -> None:
    request = question(seed)
    evaluator, graph, candidates = searched_candidates(request)
    oracle = BlockOracle(evaluator.programs, evaluator.modes)
    rng = np.random.default_rng(seed)
    shape = evaluator.shape(candidates[0])
    for template in dict.fromkeys(graph.templates[block] for block in graph.blocks):
        oracle.ask(PriceAsk(shape, template, random_prices(rng)) for _ in range(6))
        for (mode, options), figures in oracle.pool(shape, template).columns.items():
            tables, row = evaluator.programs.priced(shape, mode)
            space = evaluator.programs.space(shape, mode)
            solution = np.array([row]), np.array(options)[:, None]
            place = space.templates.index(template)
            *usual, weight, between = template_figures(space, tables, *solution, True)[
                :, place, 0
            ].tolist()
            usual[INFLIGHT] += weight
            forward = int(forward_times_ns(space, tables, *solution)[place, 0])
            usual[MICROBATCH] -= forward
            assert figures.tolist() == pytest.approx([*usual, weight + between, forward], abs=2)


def test_what_was_asked_before_is_not_solved_again() -> None:
    evaluator, graph, candidates = searched_candidates(question(0))
    oracle = BlockOracle(evaluator.programs, evaluator.modes)
    shape, template = evaluator.shape(candidates[0]), graph.templates[graph.blocks[0]]
    asks = [PriceAsk(shape, template, random_prices(np.random.default_rng(0)))] * 2
    assert oracle.ask(asks) == 1
    assert oracle.ask(asks) == 0
    assert oracle.solved == len(evaluator.modes)
    assert len(oracle.pool(shape, template).least) == 1


def test_near_prices_are_snapped_to_the_same() -> None:
    prices = np.array([3.0, 0.5, 1e-4, 2e-5, 2.0, 0.0])
    assert snapped(prices)[0] == 1
    assert snapped(prices)[5] == 0
    assert (snapped(prices) == snapped(prices * 1.05)).all()
    assert (np.abs(np.log2(snapped(prices)[:5] * 3 / prices[:5])) <= 0.25).all()
