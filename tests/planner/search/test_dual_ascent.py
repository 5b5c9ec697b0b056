"""The ascent bounds every row from below, prices what it reads off, and mixes no rows."""

from dataclasses import replace

import numpy as np
import pytest

from millrace.planner.search.blocks.cost_tables import (
    MICROBATCH,
    CostTables,
    EdgeCosts,
    NodeCosts,
    take,
)
from millrace.planner.search.blocks.dual_ascent import NEARLY, DualAscent
from millrace.planner.search.blocks.strategies import EdgeUse
from tests.planner.search.random_tables import by_hand, optimum, random_tables, solutions

ROWS = 3
PRICES = np.array(
    [[1.0, 1.0, 0.0, 0.0, 0.5], [3.0, 1.0, 0.5, 2.0, 1.0], [1.0, 0.0, 0.0, 0.25, 1.0]]
).T


def test_bounds_never_exceed_the_optimum_and_decoded_costs_are_right() -> None:
    for seed in range(25):
        tables = random_tables(seed, ROWS, forward=seed % 3 > 0)
        best = [optimum(tables, PRICES[:, row], row=row) for row in range(ROWS)]
        ascent = DualAscent(tables, PRICES)
        for _ in range(12):
            ascent.sweep()
            ascent.decode()
            ascent.reshare()
            for row in range(ROWS):
                assert ascent.bounds[row] <= best[row] * (1 + 1e-9), seed
                if np.isfinite(ascent.costs[row]):
                    options = tuple(ascent.options[:, row].tolist())
                    figures = by_hand(tables, options, row)
                    assert figures is not None, seed
                    assert ascent.costs[row] == pytest.approx(float(figures @ PRICES[:, row])), seed
                    assert ascent.costs[row] >= best[row] * (1 - 1e-9), seed


def test_a_row_comes_out_as_it_does_alone() -> None:
    for seed in range(10):
        tables = random_tables(seed, ROWS, forward=seed % 2 > 0)
        together = DualAscent(tables, PRICES)
        together.ascend(30)
        for row in range(ROWS):
            alone = DualAscent(take(tables, np.array([row])), PRICES[:, [row]])
            alone.ascend(30)
            # Rows stop together, so that one of many may be swept a little longer.
            best = optimum(tables, PRICES[:, row], row=row)
            assert together.bounds[row] >= alone.bounds[0] * (1 - NEARLY), seed
            assert together.costs[row] <= alone.costs[0] * (1 + 1e-9), seed
            assert together.bounds[row] <= best * (1 + 1e-9), seed


def test_sweeps_of_a_row_do_not_depend_on_the_others() -> None:
    for seed in range(10):
        tables = random_tables(seed, ROWS)
        together, alone = (
            DualAscent(tables, PRICES),
            DualAscent(take(tables, np.array([1])), PRICES[:, [1]]),
        )
        for _ in range(6):
            for ascent in (together, alone):
                ascent.sweep()
                ascent.decode()
                ascent.reshare()
            assert together.bounds[1] == pytest.approx(alone.bounds[0], rel=1e-9), seed
            assert together.costs[1] == pytest.approx(alone.costs[0], rel=1e-9), seed


@pytest.mark.parametrize("undivided", [False, True])
def test_what_is_decided_apart_changes_no_optimum(undivided: bool) -> None:
    for seed in range(30):
        tables = random_tables(seed, ROWS, forward=seed % 2 > 0)
        best = [optimum(tables, PRICES[:, row], row=row) for row in range(ROWS)]
        ascent = DualAscent(tables, PRICES, keep_all=undivided)
        assert not (undivided and ascent.apart)
        ascent.ascend(60)
        assert (ascent.bounds <= np.array(best) * (1 + 1e-9)).all(), seed
        for row in range(ROWS):
            figures = by_hand(tables, tuple(ascent.options[:, row].tolist()), row)
            if np.isfinite(ascent.costs[row]):
                assert figures is not None, seed
                assert ascent.costs[row] == pytest.approx(float(figures @ PRICES[:, row])), seed
                assert ascent.costs[row] >= best[row] * (1 - 1e-9), seed


def test_a_tree_is_solved_before_the_first_sweep() -> None:
    for seed in range(8):
        tables = tree(seed)
        ascent = DualAscent(tables, PRICES[:, [0, 1]])
        assert not ascent.pairs, seed
        ascent.ascend(1)
        for row in range(2):
            best = optimum(tables, PRICES[:, row], row=row)
            assert ascent.costs[row] == pytest.approx(best), seed
            assert ascent.bounds[row] == pytest.approx(best, rel=NEARLY), seed


def test_an_option_that_is_illegal_in_all_rows_is_left_out_and_numbers_stay() -> None:
    tables = tree(3)
    first = tables.choices[0]
    legal = first.legal.copy()
    legal[0] = False
    tables = replace(tables, choices=(replace(first, legal=legal), *tables.choices[1:]))
    ascent = DualAscent(tables, PRICES[:, [0, 1]])
    ascent.ascend(3)
    for row in range(2):
        assert ascent.options[0, row] != 0
        best = optimum(tables, PRICES[:, row], row=row)
        assert ascent.costs[row] == pytest.approx(best)


def tree(seed: int) -> CostTables:
    """Five choices of five options, each read by the next but one or two; boxing is missing."""
    rng = np.random.default_rng(seed)
    reachable = rng.random((3, 3, 2)) < 0.7
    reachable[0] = reachable[:, 0] = True
    return CostTables(
        choices=tuple(
            NodeCosts(
                figures=rng.integers(0, 50, (5, 5, 2)),
                legal=np.ones((5, 2), np.bool_),
                options=np.arange(5),
                count=2,
            )
            for _ in range(5)
        ),
        edges=tuple(
            EdgeCosts(
                number=producer,
                producer=producer,
                source_of=np.array([0, 1, 2, 1, 0]),
                uses=(EdgeUse(choice=reader, target_of=np.array([0, 0, 1, 2, 1]), holds=True),),
                count=1,
                figure=MICROBATCH,
                reachable=reachable,
                duration_ns=rng.integers(0, 40, (3, 3, 2)),
                buffer_bytes=rng.integers(0, 40, (3, 3, 2)),
                made_bytes=rng.integers(0, 40, (3, 2)),
                held_bytes=rng.integers(0, 40, (3, 2)),
            )
            for producer, reader in ((0, 2), (1, 2), (2, 4), (3, 4))
        ),
    )


def test_what_an_option_lifts_the_bound_by_is_paid_by_every_solution_with_it() -> None:
    for seed in range(15):
        tables = random_tables(seed, choices=5, forward=seed % 2 > 0)
        vector = PRICES[:, 1]
        ascent = DualAscent(tables, vector.reshape(-1, 1), keep_all=True)
        ascent.ascend(seed % 4 + 1)
        every = {options: float(f @ vector) for options, f in solutions(tables).items()}
        for index, marginals in enumerate(ascent.min_marginals()):
            for option, marginal in enumerate(marginals):
                costs = [cost for options, cost in every.items() if options[index] == option]
                if costs:
                    assert ascent.bounds[0] + marginal <= min(costs) * (1 + 1e-6), seed


def test_rows_at_their_cutoff_are_left_with_bounds_that_hold() -> None:
    tables = random_tables(4, ROWS)
    best = [optimum(tables, PRICES[:, row], row=row) for row in range(ROWS)]
    ascent = DualAscent(tables, PRICES)
    ascent.ascend(50, 0.0, np.array([1.0, np.inf, 1.0]))
    assert all(ascent.bounds[row] <= best[row] * (1 + 1e-9) for row in range(ROWS))
    assert ascent.costs[1] == pytest.approx(best[1])


def test_an_option_that_is_illegal_in_one_row_may_be_taken_in_another() -> None:
    tables = tree(0)
    first = tables.choices[0]
    figures, legal = first.figures.copy(), first.legal.copy()
    figures[:, 2] = 0
    legal[2, 0] = False
    edges = tuple(
        replace(edge, reachable=np.ones_like(edge.reachable), duration_ns=0 * edge.duration_ns)
        for edge in tables.edges
    )
    choices = (replace(first, figures=figures, legal=legal), *tables.choices[1:])
    ascent = DualAscent(CostTables(choices=choices, edges=edges), PRICES[:, [0, 0]])
    ascent.ascend(20)
    assert ascent.options[0, 0] != 2
    assert ascent.options[0, 1] == 2
