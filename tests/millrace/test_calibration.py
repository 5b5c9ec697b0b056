"""Calibration: fits find what made the figures, and slopes are those of the simulator."""

from math import log

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.calibration import FittedParameter, Sensitivities, fitted, parameters_of, scaled
from millrace.calibration.fitting import loss
from millrace.calibration.influence import influences, row_moves
from millrace.calibration.parameters import prior_moments
from millrace.calibration.sensitivities import FIDELITY, _estimated_change
from millrace.calibration.time_decomposition import step_of
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.cluster import Software
from millrace.planner.clusters import parse_cluster
from millrace.planner.search import Pins
from millrace.published.prediction import planned, simulated
from millrace.published.question import Question

MATMUL = FittedParameter("a100-sxm-80gb", "matmul_efficiency")
MEMORY = FittedParameter("a100-sxm-80gb", "memory_efficiency")
SIBLING = FittedParameter("a100-sxm-40gb", "matmul_efficiency")


def rows(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Steps made of products and traffic in all shares, and what they are off by."""
    shares = np.random.default_rng(seed).uniform(0.2, 0.8, count)
    slopes = np.column_stack([-shares, shares - 1, np.zeros(count)])
    truth = np.array([0.1, -0.2, 0.0])  # where the logarithms ought to be moved
    return slopes, -slopes @ truth


def test_a_fit_finds_the_figures_that_explain_all_rows() -> None:
    slopes, residuals = rows()
    now = np.log([0.7, 0.8, 0.7])
    fit = fitted((MATMUL, MEMORY, SIBLING), now, slopes, residuals)
    assert fit.values[MATMUL] == pytest.approx(0.7 * np.exp(0.1), rel=0.02)
    assert fit.values[MEMORY] == pytest.approx(0.8 * np.exp(-0.2), rel=0.02)
    assert np.abs(fit.residuals).max() < 0.01


def test_a_device_without_rows_takes_after_its_architecture() -> None:
    slopes, residuals = rows()
    now = np.log([0.7, 0.8, 0.7])
    fit = fitted((MATMUL, MEMORY, SIBLING), now, slopes, residuals)
    mean = 0.75  # what is believed beforehand
    moved, followed = log(fit.values[MATMUL] / mean), log(fit.values[SIBLING] / mean)
    assert followed == pytest.approx(moved * 0.15**2 / (0.15**2 + 0.05**2), rel=1e-6)


def test_priors_are_given_what_kernels_were_measured_to_reach() -> None:
    names = (("gb300", "attention_efficiency"), ("megatron-core", "attention"))
    share, times = (FittedParameter(*name) for name in names)
    mean, covariance = prior_moments((share, times))
    assert np.exp(mean.sum()) == pytest.approx(0.67, rel=0.01)
    assert covariance.sum() == pytest.approx(0.05**2, rel=0.05)
    assert covariance[0, 1] < 0  # where one is more the other is less
    (alone,), _ = prior_moments((share,))
    assert np.exp(alone) == pytest.approx(0.55)


def test_rows_that_are_far_off_or_left_out_are_hardly_heard() -> None:
    slopes, residuals = rows()
    now = np.log([0.7, 0.8, 0.7])
    parameters = (MATMUL, MEMORY, SIBLING)
    clean = fitted(parameters, now, slopes, residuals)
    spoilt = residuals.copy()
    spoilt[:4] += 1.5
    heard = fitted(parameters, now, slopes, spoilt)
    assert heard.values[MATMUL] == pytest.approx(clean.values[MATMUL], rel=0.02)
    counts = np.ones(len(residuals))
    counts[:4] = 0
    without = fitted(parameters, now, slopes, spoilt, counts=counts)
    assert without.values[MATMUL] == pytest.approx(clean.values[MATMUL], rel=0.005)


def noisy() -> tuple[Sensitivities, list[str]]:
    """Rows of three sources, the last of which says that products are slower."""
    slopes, residuals = rows()
    residuals += np.random.default_rng(1).normal(0, 0.02, len(residuals))
    sources = ["one"] * 20 + ["two"] * 15 + ["odd"] * 5
    residuals[-5:] -= 0.1
    answers = Sensitivities(
        parameters=(MATMUL, MEMORY, SIBLING),
        now=np.log([0.7, 0.8, 0.7]),
        rows=tuple(range(len(residuals))),
        slopes=slopes,
        residuals=residuals,
    )
    return answers, sources


def test_a_row_moves_a_figure_as_far_as_it_falls_back_without_the_row() -> None:
    answers, _ = noisy()
    asked = answers.parameters, answers.now, answers.slopes, answers.residuals
    fit = fitted(*asked)
    moves = row_moves(answers, fit)
    for row in (0, 7, 38):
        counts = np.ones(len(answers.rows))
        counts[row] = 0
        without = fitted(*asked, counts=counts)
        for index, parameter in enumerate(answers.parameters):
            change = log(fit.values[parameter] / without.values[parameter])
            assert moves[row, index] == pytest.approx(change, abs=0.004)


def test_the_source_that_disagrees_moves_a_figure_and_one_without_rows_is_at_its_prior() -> None:
    answers, sources = noisy()
    fit = fitted(answers.parameters, answers.now, answers.slopes, answers.residuals)
    matmul, memory, sibling = influences(answers, fit, sources)
    # Its steps are longer than predicted: shares of peaks come out lower for it.
    assert dict(matmul.sources)["odd"] + dict(memory.sources)["odd"] < 0
    assert sources[matmul.rows[0][0]] == "odd"
    assert [matmul.at_prior, memory.at_prior, sibling.at_prior] == [False, False, True]
    assert sibling.determined == 0
    assert matmul.deviation < sibling.deviation


def test_a_fit_lowers_the_loss_to_where_it_is_flat() -> None:
    answers, _ = noisy()
    fit = fitted(answers.parameters, answers.now, answers.slopes, answers.residuals)
    logs = np.log([fit.values[parameter] for parameter in answers.parameters])
    least = loss(answers.parameters, logs, fit.residuals)
    assert least < loss(answers.parameters, answers.now, answers.residuals)
    for index in range(3):
        for by in (-0.02, 0.02):
            moved = logs.copy()
            moved[index] += by
            residuals = answers.residuals + answers.slopes @ (moved - answers.now)
            assert loss(answers.parameters, moved, residuals) > least


def test_without_rows_a_fit_is_what_was_believed() -> None:
    parameters = (MATMUL, FittedParameter("default", "fusion"))
    mean, covariance = prior_moments(parameters)
    fit = fitted(parameters, mean - 0.3, np.zeros((0, 2)), np.zeros(0))
    assert np.log(list(fit.values.values())) == pytest.approx(mean)
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_shares_stay_shares_and_others_are_left_alone() -> None:
    cluster = parse_cluster("a100-sxm-80gb:8x2")
    cluster = replace(cluster, software=Software(name="one", overlap=0.9, host_ns=10))
    factors = {
        MATMUL: 5.0,
        FittedParameter("one", "loss"): 3.0,
        FittedParameter("another", "host_ns"): 3.0,
    }
    scaled_cluster = scaled(cluster, factors)
    assert scaled_cluster.device.matmul_efficiency == 1.0
    assert scaled_cluster.software.overlap == pytest.approx(0.7)
    assert scaled_cluster.software.host_ns == 10


def test_slopes_by_shares_are_those_of_the_simulator() -> None:
    cluster = parse_cluster("a100-sxm-80gb:8x1")
    question = Question(
        model=model_spec("gpt3-1.3b", precision="bf16"), cluster=cluster, global_batch=64
    )
    pins = Pins(dp=2, tp=2, pp=2, micro_batch=2, schedule="1f1b", recompute="none", zero=1)
    planning = planned(question, pins)
    step = step_of(replace(planning.plan, cluster=cluster))
    fields = [alike[0] for alike in parameters_of(question, cluster)]
    moves = {
        parameter: scaled(cluster, {parameter: 0.92})
        for parameter in fields
        if parameter.field != "fusion"
    }
    now, *then = simulated(planning, (cluster, *moves.values()), FIDELITY)
    for (parameter, moved), later in zip(moves.items(), then, strict=True):
        slope = _estimated_change(step, moved, now, step.busy_ns(cluster))
        change = log(later.step_time_ns / now.step_time_ns)
        assert slope == pytest.approx(change, abs=0.004), parameter
