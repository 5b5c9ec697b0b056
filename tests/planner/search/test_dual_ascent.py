"""The dual ascent bounds from below, drops nothing that matters, and proves chains alone."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.search.dual_ascent import DualAscent
from planner.search.tables import (
    Choice,
    Net,
    Tables,
    Use,
    compact,
    evaluate,
    reachable_options,
)
from planner.signatures import Signature

EMPTY = Signature(inputs=(), outputs=(), labels=())
PRICES = np.array([1.0, 1.0, 0.0, 0.0, 0.5])


def choice(rng: np.random.Generator, options: int) -> Choice:
    figures = rng.integers(0, 50, (options, 5))
    return Choice(ops=(), options=((EMPTY,),) * options, figures=figures, count=1)


def net(rng: np.random.Generator, producer: int, readers: tuple[int, ...], states: int) -> Net:
    held = np.zeros((states, 5), np.int64)
    return Net(
        tensor=f"t{producer}",
        side="",
        producer=producer,
        sources=((),) * states,
        makes=np.arange(states),
        targets=((),) * states,
        uses=tuple(Use(choice=r, wants=rng.permutation(states), holds=False) for r in readers),
        reachable=np.ones((states, states), np.bool_),
        figures=rng.integers(0, 40, (states, states, 5)),
        held=held,
        count=1,
    )


def costs(tables: Tables) -> dict[tuple[int, ...], float]:
    options = product(*(range(len(c.options)) for c in tables.choices))
    return {o: float(evaluate(tables, o) @ PRICES) for o in options}


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_is_proven_without_a_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    choices = tuple(choice(rng, 4) for _ in range(5))
    nets = tuple(net(rng, i, (i + 1,), 4) for i in range(4))
    tables = Tables(axis_sizes=(2,), choices=choices, nets=nets)
    found = DualAscent(tables, PRICES).ascend()
    assert found.cost == pytest.approx(min(costs(tables).values()))
    assert found.bound == pytest.approx(found.cost, rel=1e-8)


@pytest.mark.parametrize("seed", range(10))
def test_with_shared_readers_and_cycles_the_bound_stays_below(seed: int) -> None:
    rng = np.random.default_rng(seed)
    choices = tuple(choice(rng, 3) for _ in range(5))
    nets = (net(rng, 0, (1, 2, 3), 3), net(rng, 1, (3, 4), 3), net(rng, 2, (4,), 3))
    tables = Tables(axis_sizes=(2,), choices=choices, nets=nets)
    ascent = DualAscent(tables, PRICES)
    every = costs(tables)
    best = min(every.values())
    bounds = [ascent.bound()]
    for _ in range(20):
        ascent.sweep(True)
        ascent.sweep(False)
        ascent.reshare()
        bounds.append(ascent.bound())
    assert max(bounds) <= best + 1e-6
    assert bounds[-1] > bounds[0]
    # What an option lifts the bound by is paid by every solution that takes it.
    for index, lifts in enumerate(ascent.lifts()):
        for option, lift in enumerate(lifts):
            least = min(cost for o, cost in every.items() if o[index] == option)
            assert bounds[-1] + lift <= least + 1e-6


def test_options_that_no_boxing_reaches_are_left_out() -> None:
    rng = np.random.default_rng(0)
    one = net(rng, 0, (1,), 3)
    reachable = one.reachable.copy()
    reachable[2, :] = False
    blocked = Net(
        tensor=one.tensor,
        side="",
        producer=0,
        sources=one.sources,
        makes=one.makes,
        targets=one.targets,
        uses=one.uses,
        reachable=reachable,
        figures=one.figures,
        held=one.held,
        count=1,
    )
    tables = Tables(axis_sizes=(2,), choices=(choice(rng, 3), choice(rng, 3)), nets=(blocked,))
    keep = reachable_options(tables)
    assert [list(kept) for kept in keep] == [[0, 1], [0, 1, 2]]
    narrow = compact(tables, keep)
    assert narrow.nets[0].reachable.all()
    assert min(costs(narrow).values()) == min(
        cost for options, cost in costs(tables).items() if options[0] != 2
    )


def test_an_option_that_cannot_read_what_it_makes_is_left_out() -> None:
    rng = np.random.default_rng(0)
    one = net(rng, 0, (0, 1), 3)
    own = one.uses[0]
    reachable = one.reachable.copy()
    reachable[one.makes[1], own.wants[1]] = False
    blocked = replace(one, reachable=reachable)
    tables = Tables(axis_sizes=(2,), choices=(choice(rng, 3), choice(rng, 3)), nets=(blocked,))
    narrow = compact(tables, keep := reachable_options(tables))
    assert 1 not in keep[0]
    assert np.isfinite(DualAscent(narrow, PRICES).bound())
