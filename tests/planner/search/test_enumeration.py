"""All solutions within a budget, and those that none dominates, against brute force."""

from dataclasses import replace

import numpy as np
import pytest

from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from millrace.planner.search.blocks.ascent import Ascent
from millrace.planner.search.blocks.enumeration import (
    Enumeration,
    block_tables,
    solutions_within,
    undominated,
)
from millrace.planner.search.blocks.enumeration.completion import CompletionBounds
from millrace.planner.search.blocks.folding import fold
from millrace.planner.search.blocks.pricing import Pricing
from millrace.planner.search.blocks.program import Prices
from millrace.planner.search.blocks.solver import solve
from millrace.planner.search.blocks.space import Space, Use, build_space
from millrace.planner.search.blocks.tables import Tables, single, totals
from tests.plain_links import without_library
from tests.planner.search.random_tables import random_tables, solutions
from tests.planner.search.small_models import small_graph

EACH = np.eye(5)
PRICES = (
    np.array([3.0, 1.0, 0.5, 2.0, 1.0]),
    np.array([1.0, 1.0, 0.0, 0.0, 1.0]),
    np.array([0.0, 1.0, 0.0, 0.0, 0.0]),
    np.array([0.0, 0.0, 0.0, 1.0, 0.0]),
    np.zeros(5),
)
SHARES = (0.0, 0.05, 0.3)  # of what lies between the least cost and the greatest
CLUSTER = without_library("a100-sxm-80gb:8x1")


def listed(enumeration: Enumeration | None) -> list[tuple[int, ...]]:
    assert enumeration is not None
    return [tuple(options) for options in enumeration.options.T.tolist()]


def rows(figures: np.ndarray) -> set[tuple[float, ...]]:
    """Columns without their order."""
    return {tuple(column) for column in figures.T.tolist()}


def budgets(costs: dict[tuple[int, ...], float]) -> list[float]:
    least, greatest = min(costs.values()), max(costs.values())
    return [least + share * (greatest - least) + 1e-6 for share in SHARES]


@pytest.mark.parametrize("seed", range(24))
def test_every_solution_within_the_budget_is_listed_and_no_other(seed: int) -> None:
    tables = random_tables(seed, forward=seed % 3 > 0)
    every = solutions(tables)
    for prices in PRICES:
        costs = {options: float(figures @ prices) for options, figures in every.items()}
        for budget in budgets(costs):
            found = solutions_within(tables, prices, budget, len(every) * 10)
            within = {options for options, cost in costs.items() if cost <= budget}
            assert len(listed(found)) == len(within)
            assert set(listed(found)) == within
            assert found is not None
            for options, figures in zip(listed(found), found.figures.T, strict=True):
                assert (every[options] == figures).all()
            assert (np.diff(prices @ found.figures) >= 0).all()


def read_again(tables: Tables, seed: int) -> Tables:
    """Nets that their producers read as well, and some readers twice."""
    rng = np.random.default_rng(seed)
    nets = []
    for net in tables.nets:
        uses = list(net.uses)
        for choice in (net.producer, uses[-1].choice):
            options = len(tables.choices[choice].options)
            wants = rng.integers(0, net.reachable.shape[1], options)
            again = Use(choice=choice, wants=wants, holds=bool(rng.random() < 0.5))
            uses.insert(int(rng.integers(0, len(uses) + 1)), again)
        nets.append(replace(net, uses=tuple(uses)))
    return replace(tables, nets=tuple(nets))


@pytest.mark.parametrize("seed", range(8))
def test_readers_that_produce_or_read_twice_pay_once(seed: int) -> None:
    tables = read_again(random_tables(seed, forward=seed % 2 > 0), seed)
    every = solutions(tables)
    costs = {options: float(figures @ PRICES[0]) for options, figures in every.items()}
    budget = budgets(costs)[2]
    found = solutions_within(tables, PRICES[0], budget, 10**4)
    assert set(listed(found)) == {options for options, cost in costs.items() if cost <= budget}
    fronts = solutions_within(tables, PRICES[0], budget, 10**4, criteria=EACH)
    assert found is not None
    assert fronts is not None
    assert rows(fronts.figures) == rows(found.figures[:, undominated(found.figures)])


@pytest.mark.parametrize("seed", range(16))
def test_with_criteria_what_none_dominates_is_listed(seed: int) -> None:
    tables = random_tables(seed, forward=seed % 2 > 0)
    every = solutions(tables)
    for prices in PRICES:
        costs = {options: float(figures @ prices) for options, figures in every.items()}
        budget = budgets(costs)[2]
        within = np.array([every[o] for o, cost in costs.items() if cost <= budget]).T
        for criteria in (EACH, np.vstack([prices, [0, 0, 1, 2, 0]])):
            found = solutions_within(tables, prices, budget, 10**5, criteria=criteria)
            assert found is not None
            assert set(listed(found)) <= set(every)
            figures, reference = criteria @ found.figures, criteria @ within
            assert len(undominated(figures)) == figures.shape[1]
            assert rows(figures) == rows(reference[:, undominated(reference)])


@pytest.mark.parametrize("seed", range(12))
def test_bounds_rise_to_the_cost(seed: int) -> None:
    """In any order of the choices, whatever has been left to readers that share."""
    tables = single(random_tables(seed, choices=5, forward=seed % 2 > 0), 0)
    assert tables is not None
    every = solutions(tables)
    chosen, costs = np.array(list(every)).T, np.array(list(every.values())) @ PRICES[0]
    ascent = Ascent(tables, PRICES[0].reshape(-1, 1), whole=True)
    ascent.ascend(seed + 1)
    bounds = CompletionBounds(ascent, PRICES[0])
    order = np.random.default_rng(seed).permutation(len(tables.choices)).tolist()
    paid, least = np.zeros(len(costs)), np.full(len(costs), bounds.least.sum())
    given: frozenset[int] = frozenset()
    for at in order:
        options = bounds.costs(at, given, chosen)
        paid += np.take_along_axis(options, chosen[at][:, None], axis=1)[:, 0]
        paid += bounds.owed(at, given, chosen)
        given |= {at}
        left = [bounds.costs(other, given, chosen).min(axis=1) for other in set(order) - given]
        before, least = least, paid + np.sum(left, axis=0)
        assert (least >= before - bounds.rounding).all()
        assert (least <= costs + bounds.rounding).all()
    assert paid == pytest.approx(costs)


@pytest.mark.parametrize("seed", range(8))
def test_more_solutions_than_are_asked_for_are_none(seed: int) -> None:
    tables = random_tables(seed, choices=5)
    every = solutions(tables)
    for prices in (PRICES[0], PRICES[-1]):
        assert solutions_within(tables, prices, np.inf, len(every) - 1) is None
        assert len(listed(solutions_within(tables, prices, np.inf, 10 * len(every)))) == len(every)


def test_a_search_that_looks_at_too_much_is_given_up() -> None:
    """By cost alone one solution is left in the end, but most options are looked at."""
    tables, prices = random_tables(7), np.ones(5)
    least = min(figures.sum() for figures in solutions(tables).values())
    assert solutions_within(tables, prices, np.inf, 1, criteria=prices[None]) is None
    found = solutions_within(tables, prices, np.inf, 10**3, criteria=prices[None])
    assert found is not None
    assert found.figures.sum(axis=0).tolist() == [least]


def test_nothing_is_listed_below_the_least_cost_nor_where_nothing_is_legal() -> None:
    tables = random_tables(3)
    least = min(float(figures @ PRICES[0]) for figures in solutions(tables).values())
    assert listed(solutions_within(tables, PRICES[0], least * 0.999, 10)) == []
    first = tables.choices[0]
    barred = replace(first, legal=np.zeros_like(first.legal))
    nowhere = replace(tables, choices=(barred, *tables.choices[1:]))
    for criteria in (None, EACH):
        assert listed(solutions_within(nowhere, PRICES[0], np.inf, 10, criteria=criteria)) == []


def test_of_equal_columns_the_first_is_kept_and_groups_are_apart() -> None:
    figures = np.array([[3, 1, 3, 2, 1, 4], [1, 4, 1, 3, 4, 4]])
    assert undominated(figures).tolist() == [0, 1, 3]
    groups = np.array([0, 0, 1, 1, 1, 2])
    assert undominated(figures, groups).tolist() == [0, 1, 2, 3, 4, 5]
    assert undominated(figures[:, :0]).tolist() == []


@pytest.mark.parametrize("seed", range(20))
def test_what_none_dominates_is_what_brute_force_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    figures = rng.integers(0, 3 + seed, (1 + seed % 4, 40)).astype(np.float64)
    columns = list(figures.T)
    kept = [
        at
        for at, column in enumerate(columns)
        if not any(
            (other <= column).all() and ((other < column).any() or before < at)
            for before, other in enumerate(columns)
            if before != at
        )
    ]
    assert undominated(figures).tolist() == kept


def handed_as(tables: Tables, options: tuple[int, ...]) -> Tables:
    """Only options that join every net as these do."""
    fits = [np.ones(len(choice.options), np.bool_) for choice in tables.choices]
    for net in tables.nets:
        fits[net.producer] &= net.makes == net.makes[options[net.producer]]
        for use in net.uses:
            fits[use.choice] &= use.wants == use.wants[options[use.choice]]
    choices = (
        replace(choice, legal=choice.legal & fit[:, None])
        for choice, fit in zip(tables.choices, fits, strict=True)
    )
    return replace(tables, choices=tuple(choices))


@pytest.mark.parametrize("seed", range(16))
def test_blocks_alone_add_up_to_the_whole(seed: int) -> None:
    tables = random_tables(seed, forward=seed % 2 > 0)
    blocks = [range(0, len(tables.choices), 2), range(1, len(tables.choices), 2)]
    every = solutions(tables)
    for options in list(every)[::17]:
        parts = np.zeros(5, np.int64)
        for block in blocks:
            alone = block_tables(handed_as(tables, options), block)
            handed = alone.choices[len(block) :]
            assert all(len(ways.options) == 1 for ways in handed)
            mine = tuple(options[at] for at in block)
            parts += solutions(alone)[mine + (0,) * len(handed)]
        assert (parts == every[options]).all()


@pytest.mark.parametrize("seed", range(16))
def test_a_block_that_may_be_handed_to_in_any_way_bounds_the_whole(seed: int) -> None:
    """Every solution is one of the block, with the ways that its other options come down to."""
    tables = random_tables(seed, forward=seed % 2 > 0)
    block = range(0, len(tables.choices), 2)
    others = [replace(choice, figures=0 * choice.figures) for choice in tables.choices]
    for at in block:
        others[at] = tables.choices[at]
    nets = tuple(net for net in tables.nets if net.uses[0].choice in block)
    reference = solutions(Tables(choices=tuple(others), nets=nets))
    alone = solutions(block_tables(tables, block))

    def by_block(every: dict[tuple[int, ...], np.ndarray], places: range) -> set[tuple[int, ...]]:
        return {
            (*(options[at] for at in places), *figures.tolist())
            for options, figures in every.items()
        }

    assert by_block(alone, range(len(block))) == by_block(reference, block)


def space_and_tables(graph: Graph, mesh: tuple[int, ...]) -> tuple[Space, Tables]:
    space = build_space(fold(graph), len(mesh))
    sizes = np.array(mesh, np.int64).reshape(-1, 1)
    tables = single(Pricing(space, CLUSTER, sizes, np.array([graph.batch])).tables(), 0)
    assert tables is not None
    return space, tables


@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
def test_blocks_of_a_small_model_agree_with_the_solver(mesh: tuple[int, ...]) -> None:
    graph = training_graph(
        small_graph(2, batch=8, tokens=256, inputs=512, hidden=512, classes=2048, mid="residual"),
        TrainingSpec(optimizer="adamw"),
    )
    space, tables = space_and_tables(graph, mesh)
    prices = Prices(microbatch=8, persistent_byte=1e-3, inflight_byte=2e-3)
    for template in ("stem", "mid", "head"):
        block = [
            at
            for at, choice in enumerate(space.choices)
            if graph.templates[choice.ops[0].op.block] == template
        ]
        alone = block_tables(tables, block)
        one = single(alone, 0)
        assert one is not None
        best = solve(one, prices)
        found = solutions_within(alone, prices.vector, best.cost * 1.03, 10**4)
        fronts = solutions_within(alone, prices.vector, best.cost * 1.03, 10**3, criteria=EACH)
        assert found is not None
        assert fronts is not None
        costs = prices.vector @ found.figures
        assert costs[0] == pytest.approx(best.cost)
        assert len(set(listed(found))) == len(costs)
        assert totals(alone, found.options, np.zeros(len(costs), np.int64))[1].all()
        assert rows(fronts.figures) == rows(found.figures[:, undominated(found.figures)])
