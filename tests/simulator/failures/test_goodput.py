"""Goodput: simulated failures come to the closed form, whose optimum is one."""

from math import inf
from statistics import mean, stdev

import pytest

from millrace.simulator import SimulationError
from millrace.simulator.failures import best_interval_s, expected_s, goodput
from tests.simulator.failures.failing_runs import failing_run

MTBF_S = 50_000 * 3600 / 16384


@pytest.mark.parametrize("interval_steps", [50, 193, 1000])
def test_simulated_runs_take_the_expected_time_on_average(interval_steps: int) -> None:
    runs = [
        failing_run(
            20_010, 4.0, mtbf_s=MTBF_S, interval_steps=interval_steps, checkpoint_s=30.0,
            restart_s=600.0, seed=seed,
        )
        for seed in range(200)
    ]  # fmt: skip
    walls = [run.wall_s for run in runs]
    expected = expected_s(80_040, interval_steps * 4.0, MTBF_S, 30.0, 600.0)
    assert abs(mean(walls) - expected) < 3.5 * stdev(walls) / len(walls) ** 0.5
    assert mean(run.failures for run in runs) == pytest.approx(expected / MTBF_S, rel=0.1)


@pytest.mark.parametrize("checkpoint_s", [0.1, 10.0, 300.0, 3000.0, 15_000.0])
def test_no_other_interval_is_better(checkpoint_s: float) -> None:
    def share_lost(interval_s: float) -> float:
        return expected_s(1e6 * interval_s, interval_s, MTBF_S, checkpoint_s, 600.0) / interval_s

    best_s = best_interval_s(MTBF_S, checkpoint_s)
    at_best = share_lost(best_s)
    others = [share_lost(best_s * factor) for factor in (0.25, 0.5, 0.8, 0.9, 1.1, 1.25, 2, 4)]
    assert at_best <= 1.001 * min(others)


def test_short_checkpoints_are_written_at_youngs_interval() -> None:
    assert best_interval_s(1e6, 1e-3) == pytest.approx((2 * 1e-3 * 1e6) ** 0.5, rel=1e-3)


def test_goodput_is_one_without_failures_and_falls_with_devices() -> None:
    assert goodput(4.0, 1024, inf, 1e12, 1e11, 600).fraction == 1
    few, many = (goodput(4.0, n, 50_000, 1e12, 1e11, 600) for n in (1024, 16384))
    assert 1 > few.fraction > many.fraction > 0.9
    assert few.interval_s > many.interval_s
    assert many.interval_s % 4.0 == 0
    assert goodput(4.0, 16384, 0.001, 1e12, 1e11, 600).fraction == 0


def test_a_run_without_failures_is_steps_and_checkpoints() -> None:
    assert expected_s(20, 8, inf, 1, 5) == 23


def test_bad_values_are_named() -> None:
    with pytest.raises(SimulationError, match="devices is 0: expected"):
        goodput(4.0, 0, 50_000, 1e12, 1e11, 600)
    with pytest.raises(SimulationError, match="checkpoint_bytes_per_s is -1"):
        goodput(4.0, 8, 50_000, 1e12, -1, 600)
    with pytest.raises(SimulationError, match="restart_s is nan"):
        goodput(4.0, 8, 50_000, 1e12, 1e11, float("nan"))
