"""Jitter: counter-based, reproducible, of mean one."""

import numpy as np

from millrace.simulator.variation.noise import factors


def test_a_draw_depends_on_its_counter_and_not_on_how_many_are_drawn() -> None:
    assert np.array_equal(factors(0.1, 7, 3, 5, 4), factors(0.1, 7, 3, 5, 100)[:4])


def test_seed_rank_actor_each_change_the_draw() -> None:
    drawn = {
        tuple(factors(0.1, *key, 4).tolist())
        for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0))
    }
    assert len(drawn) == 5


def test_factors_have_mean_one_and_the_spread_that_was_asked_for() -> None:
    drawn = factors(0.2, 1, 2, 3, 200_000)
    assert abs(drawn.mean() - 1) < 0.003
    assert abs(np.log(drawn).std() - 0.2) < 0.003
    assert drawn.min() > 0


def test_no_jitter_leaves_durations_alone() -> None:
    assert np.array_equal(factors(0.0, 1, 2, 3, 10), np.ones(10))
