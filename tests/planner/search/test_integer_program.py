"""Programs solved whole: optima, and what is told where there is none."""

from itertools import product

import numpy as np
import pytest
from ortools.math_opt.python import mathopt

from millrace.planner.search import integer_program
from millrace.planner.search.integer_program import IntegerProgram

Rows = list[tuple[float, float, list[float]]]


def program(cost: list[float], rows: Rows, *, highest: float = np.inf) -> IntegerProgram:
    """Integer program of these costs and rows, which are limits and coefficients."""
    built = IntegerProgram()
    built.add_columns(cost, integer=True, highest=highest)
    for lower, upper, coefficients in rows:
        built.enter(built.add_rows(1, lower, upper), np.arange(len(cost)), coefficients)
    return built


def random_rows(rng: np.random.Generator, columns: int) -> tuple[list[float], Rows]:
    """Costs and rows around a point that is feasible, with limits of every kind."""
    point = rng.integers(0, 4, columns)
    rows = []
    for kind in (0, 1, 2, 0, 1):
        coefficients = rng.integers(-3, 8, columns)
        activity = float(coefficients @ point)
        lower = -np.inf if kind == 1 else activity - float(rng.integers(0, 2))
        upper = np.inf if kind == 0 else activity + float(rng.integers(0, 2))
        rows.append((lower, upper, coefficients.astype(float).tolist()))
    return rng.integers(-3, 10, columns).astype(float).tolist(), rows


def test_whole_values_are_the_best_of_all() -> None:
    for seed in range(12):
        cost, rows = random_rows(np.random.default_rng(seed), 4)
        every = np.array(list(product(range(4), repeat=4)), float)
        fits = np.ones(len(every), np.bool_)
        for lower, upper, coefficients in rows:
            fits &= (lower <= every @ coefficients) & (every @ coefficients <= upper)
        best = float((every[fits] @ cost).min())
        answer = program(cost, rows, highest=3.0).solve()
        assert answer is not None, seed
        assert answer.has_values, seed
        assert answer.cost == pytest.approx(best), seed
        assert answer.bound == pytest.approx(best), seed
        assert answer.values @ np.array(cost) == pytest.approx(best), seed


def test_where_nothing_is_feasible_there_is_no_answer() -> None:
    rows = [(1.0, np.inf, [1.0, 1.0]), (-np.inf, 0.5, [1.0, 1.0])]
    for cost in ([1.0, 1.0], [-1.0, 1.0]):
        assert program(cost, rows).solve() is None
        assert program(cost, rows).relaxed() is None
    assert program([1.0, 1.0], [(1.0, 1.0, [2.0, 4.0])]).solve() is None


def test_a_program_without_a_least_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="columns without a limit"):
        program([-1.0, 1.0], [(0.0, np.inf, [1.0, 1.0])]).solve()


def test_a_solver_that_stops_early_does_not_call_it_infeasible() -> None:
    """Every other column, once, is feasible; one node does not find that."""
    rng = np.random.default_rng(0)
    coefficients = rng.integers(1, 1000, (5, 60)).astype(float)
    half = coefficients[:, ::2].sum(axis=1)
    rows = [
        (total, total, row) for total, row in zip(half.tolist(), coefficients.tolist(), strict=True)
    ]
    cost = rng.random(60).tolist()
    answer = program(cost, rows, highest=1.0).solve(node_limit=1)
    assert answer is not None
    assert not answer.has_values
    assert answer.cost == np.inf
    assert answer.bound <= float(np.array(cost)[::2].sum())


def test_programs_may_lack_rows_and_costs() -> None:
    answer = program([1.0, 2.0], []).solve()
    assert answer is not None
    assert answer.values.tolist() == [0.0, 0.0]
    nothing_paid = program([0.0, 0.0], [(1.0, np.inf, [1.0, 1.0])]).solve()
    assert nothing_paid is not None
    assert (nothing_paid.cost, nothing_paid.bound) == (0.0, 0.0)


def test_entries_of_one_place_add_up() -> None:
    doubled = program([1.0, 3.0], [(4.0, np.inf, [1.0, 1.0])])
    doubled.enter(0, [0, 1], [1.0, 1.0])
    answer = doubled.solve()
    assert answer is not None
    assert answer.values.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e12])
def test_the_unit_of_costs_does_not_matter(unit: float) -> None:
    cost, rows = random_rows(np.random.default_rng(3), 6)
    plain = program(cost, rows, highest=3.0).solve()
    scaled = program([unit * column_cost for column_cost in cost], rows, highest=3.0).solve()
    assert plain is not None
    assert scaled is not None
    assert scaled.cost / unit == pytest.approx(plain.cost)
    assert scaled.bound / unit == pytest.approx(plain.bound)


def test_a_relaxation_costs_what_its_multipliers_say() -> None:
    """It is below every whole answer, and the multipliers' worth of all limits (duality)."""
    for seed in range(12):
        cost, rows = random_rows(np.random.default_rng(seed), 4)
        rows += [(0.0, 3.0, np.eye(4)[column].tolist()) for column in range(4)]
        integer_answer = program(cost, rows).solve()
        answer = program(cost, rows).relaxed()
        assert integer_answer is not None, seed
        assert answer is not None, seed
        assert answer.multipliers is not None, seed
        assert answer.cost <= integer_answer.cost + 1e-9, seed
        assert answer.bound == pytest.approx(answer.cost), seed
        worth = 0.0
        for (lower, upper, _), multiplier in zip(rows, answer.multipliers.tolist(), strict=True):
            if abs(multiplier) > 1e-9:
                worth += multiplier * (lower if multiplier > 0 else upper)
        assert worth == pytest.approx(answer.cost), seed


def test_what_is_asked_again_is_answered_as_if_it_were_new() -> None:
    """Rows are added to it, and limits come and go."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        cost, rows = random_rows(rng, 4)
        cost = [abs(column_cost) for column_cost in cost]
        again = program(cost, rows[:2], highest=3.0)
        assert again.relaxed(again=True) is not None, seed
        for number in range(2, len(rows)):
            lower, upper, coefficients = rows[number]
            again.enter(again.add_rows(1, lower, upper), np.arange(4), coefficients)
            grown, new = again.relaxed(again=True), program(cost, rows[: number + 1], highest=3.0)
            fresh = new.relaxed()
            assert (grown is None) is (fresh is None), seed
            if grown is not None and fresh is not None:
                assert grown.cost == pytest.approx(fresh.cost, abs=1e-6), seed
        again.limit(np.arange(2, len(rows)))
        loose, first = again.relaxed(again=True), program(cost, rows[:2], highest=3.0).relaxed()
        assert loose is not None, seed
        assert first is not None, seed
        assert loose.cost == pytest.approx(first.cost, abs=1e-6), seed
        assert loose.multipliers is not None, seed
        assert np.abs(loose.multipliers[2:]).max() < 1e-6, seed


def test_a_program_that_can_be_solved_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solves: list[str] = []
    solve = mathopt.solve
    monkeypatch.setattr(
        mathopt, "solve", lambda *args, **kw: (solves.append("once"), solve(*args, **kw))[1]
    )
    answer = program([1.0, 2.0], [(3.0, np.inf, [1.0, 1.0])]).solve()
    assert answer is not None
    assert answer.cost == pytest.approx(3.0)
    assert solves == ["once"]


def test_a_relaxation_that_takes_too_many_steps_is_solved_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cost, rows = random_rows(np.random.default_rng(3), 6)
    usual = program(cost, rows, highest=3.0).relaxed()
    monkeypatch.setattr(integer_program, "ITERATIONS", 0)
    monkeypatch.setattr(integer_program, "ITERATIONS_MIN", 1)
    monkeypatch.setattr(integer_program, "HIGHS_ITERATIONS", 1000)
    hurried = program(cost, rows, highest=3.0)
    first = hurried.relaxed(again=True)
    assert usual is not None
    assert first is not None
    assert first.cost == pytest.approx(usual.cost)
    hurried.enter(hurried.add_rows(1, 1.0), np.arange(6), np.ones(6))
    second = hurried.relaxed(again=True)
    assert second is not None
    assert second.cost >= first.cost - 1e-9
