"""Cost tables: sums count boxing and kept tensors once; nothing that could be taken is dropped."""

from dataclasses import replace

import numpy as np

from millrace.planner.cluster import Software
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    MICROBATCH,
    compact,
    reachable_options,
    single,
    solution_figures,
    take,
    with_hidden,
)
from tests.planner.search.random_tables import by_hand, everything, random_tables, solutions


def test_totals_are_the_sums_by_hand_of_every_row() -> None:
    for seed in range(6):
        rows = 3
        tables = random_tables(seed, rows, choices=4, forward=seed % 2 == 0)
        every = list(everything(tables))
        chosen = np.repeat(np.array(every).T, rows, axis=1)
        places = np.tile(np.arange(rows), len(every))
        figures, legal = solution_figures(tables, chosen, places)
        for solution, row in enumerate(places.tolist()):
            expected = by_hand(tables, every[solution // rows], row)
            assert legal[solution] == (expected is not None), seed
            if expected is not None:
                assert figures[:, solution].tolist() == expected.tolist(), seed


def test_rows_that_are_taken_keep_their_figures() -> None:
    for seed in range(6):
        tables = random_tables(seed, 4, choices=4)
        some = take(tables, np.array([3, 1]))
        assert some.rows == 2, seed
        for options in everything(tables):
            for row, taken_row in enumerate((3, 1)):
                after, before = by_hand(some, options, row), by_hand(tables, options, taken_row)
                assert (after is None) == (before is None), seed
                assert after is None or (after == before).all(), seed


def test_one_row_keeps_every_solution_and_no_illegal_option() -> None:
    for seed in range(12):
        tables = random_tables(seed, 2, choices=5, forward=seed % 3 > 0)
        for row in range(2):
            single_row = single(tables, row)
            assert single_row is not None, seed
            assert all(choice.legal.all() for choice in single_row.choices), seed
            figures_of = {
                tuple(
                    int(c.options[o]) for c, o in zip(single_row.choices, options, strict=True)
                ): figures
                for options, figures in solutions(single_row).items()
            }
            expected = solutions(tables, row)
            assert figures_of.keys() == expected.keys(), seed
            assert all(
                (figures_of[options] == expected[options]).all() for options in figures_of
            ), seed


def test_where_an_op_has_nothing_legal_a_row_has_no_tables() -> None:
    tables = random_tables(0)
    first = tables.choices[0]
    barred = replace(first, legal=np.zeros_like(first.legal))
    assert single(replace(tables, choices=(barred, *tables.choices[1:])), 0) is None


def test_options_that_no_boxing_reaches_are_left_out() -> None:
    tables = random_tables(3, choices=3)
    edge = tables.edges[0]
    reachable = np.ones_like(edge.reachable)
    reachable[edge.source_of[0]] = False
    keep = reachable_options(
        replace(tables, edges=(replace(edge, reachable=reachable), *tables.edges[1:]))
    )
    gone = np.flatnonzero(edge.source_of == edge.source_of[0])
    assert not set(gone.tolist()) & set(keep[0].tolist())


def test_an_option_that_cannot_read_what_it_makes_is_left_out() -> None:
    tables = random_tables(2, choices=4)
    edge = tables.edges[0]
    states = len(tables.choices[0].options)
    own_use = replace(edge.uses[0], choice=0, target_of=np.arange(states))
    reachable = np.ones((states, states, 1), np.bool_)
    reachable[1, 1] = False
    blocked = replace(
        edge,
        source_of=np.arange(states),
        uses=(own_use,),
        reachable=reachable,
        duration_ns=np.ones_like(reachable, np.int64),
        buffer_bytes=np.ones_like(reachable, np.int64),
        made_bytes=np.ones((states, 1), np.int64),
        held_bytes=np.ones((states, 1), np.int64),
    )
    only = replace(tables, edges=(blocked,))
    keep = reachable_options(only)
    assert 1 not in keep[0]
    legal = np.flatnonzero(tables.choices[0].legal[:, 0])
    assert set(keep[0].tolist()) == set(legal.tolist()) - {1}


def test_compact_tables_leave_out_states_that_nobody_makes_or_wants() -> None:
    tables = random_tables(5, choices=5)
    keep = [np.array([0]) for _ in tables.choices]
    narrow = compact(tables, keep)
    assert narrow.size == len(tables.choices)
    for edge in narrow.edges:
        assert edge.reachable.shape[0] == 1
        wanted = {int(use.target_of[0]) for use in edge.uses}
        assert wanted == set(range(edge.reachable.shape[1]))
    (figures,) = solutions(narrow).values()
    assert (figures == by_hand(tables, (0,) * len(tables.choices))).all()


def test_what_is_computed_beside_an_exchange_hides_it_and_no_more() -> None:
    for seed in range(6):
        tables = random_tables(seed, 3, choices=4)
        edge, *others = tables.edges
        times_ns = [
            choice.figures[[MICROBATCH, DEFERRABLE]].sum(axis=0) for choice in tables.choices
        ]
        legal = [choice.legal for choice in tables.choices]
        beside_ns = sum(
            np.where(fits.any(axis=0), np.where(fits, ns, ns.max() + 1).min(axis=0), 0)
            for ns, fits in zip(times_ns, legal, strict=True)
        )
        software = Software(overlap=0.8, pieces=("all_to_all",))
        hidden = with_hidden(tables, {edge.number: True}, software)
        shown_ns = hidden.edges[0].duration_ns
        assert (shown_ns >= 0.2 * edge.duration_ns).all(), seed
        assert (shown_ns >= edge.duration_ns - beside_ns).all(), seed
        least_ns = np.maximum(0.2 * edge.duration_ns, edge.duration_ns - beside_ns)
        assert (shown_ns <= least_ns + 1).all(), seed
        assert hidden.edges[1:] == tuple(others), seed
        assert with_hidden(tables, {edge.number: True}, Software(overlap=0.8)) is tables, seed
