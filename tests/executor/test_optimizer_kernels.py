"""Optimizers, the learning rate, the totals of a step and the input op."""

from math import cos, pi, sqrt

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import KernelContext, make_kernel
from millrace.executor.kernels.context import Array, SampleSource, Shard, whole_shard
from millrace.planner.sbp import BROADCAST, PARTIAL_SUM, split
from tests.executor.kernel_calls import call, run_state

ADAMW = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "clip_norm": 0.5}
SIZE = 40_000  # more than two chunks


def optimizer_run(
    kind: str,
    attributes: dict[str, float],
    state_count: int,
    dtype: str,
    first_step: int = 0,
    buffer: Array | None = None,
) -> tuple[Array, Array, list[Array], list[Array]]:
    """Fire an optimizer for three steps; return w before, w after, the gradients and the totals."""
    rng = np.random.default_rng(0)
    shards = (whole_shard((SIZE,), dtype),) * 2 + (whole_shard((3,), dtype), whole_shard((), dtype))
    run = run_state(first_step=first_step)
    kernel = make_kernel(
        KernelContext(
            kind=kind, name="w.update", labels="n, n, z!, -> n",
            attributes={"variable": "w", **attributes}, inputs=shards,
            outputs=(whole_shard((SIZE,), dtype),), run=run,
            state=[np.zeros(SIZE, dtype) for _ in range(state_count)], buffer=buffer,
        )
    )  # fmt: skip
    start = rng.standard_normal(SIZE).astype(dtype)
    w, gradients, totals = start.copy(), [], []
    for firing in range(3):
        gradients.append(100 * rng.standard_normal(SIZE).astype(dtype))
        totals.append(np.array([700, 100, np.sum(gradients[-1] ** 2)], dtype))
        # the next value may lie in the same memory as the value
        kernel(firing, [w, gradients[-1], totals[-1], np.array(0.01, dtype)], [w])
    assert [t[1] for t in run.totals] == [100, 100, 100]
    return start, w, gradients, totals


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("kind", "attributes", "state_count"), [("adamw", ADAMW, 2), ("sgd", {"momentum": 0.9}, 1)]
)
def test_state_that_passes_through_a_buffer_in_pieces_gives_the_same_bits(
    kind: str, attributes: dict[str, float], state_count: int, dtype: str
):
    _, expected, *_ = optimizer_run(kind, attributes, state_count, dtype)
    for pieces in (1, 3, 7):
        count = -(-SIZE * state_count * np.dtype(dtype).itemsize // 4 // pieces)
        buffer = np.full(count + 3, 77, "int32")
        _, updated, *_ = optimizer_run(kind, attributes, state_count, dtype, buffer=buffer)
        np.testing.assert_array_equal(updated, expected)


def clipped(gradient: Array, total: Array, clip_norm: float) -> Array:
    mean = gradient.astype(np.float64) / total[1]
    norm = sqrt(total[2]) / total[1]
    return mean * min(1, clip_norm / norm) if clip_norm else mean


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
def test_adamw_follows_the_published_algorithm(dtype: str, tolerance: float):
    start, updated, gradients, totals = optimizer_run("adamw", ADAMW, 2, dtype)
    w, m, v = start.astype(np.float64), np.zeros(SIZE), np.zeros(SIZE)
    for step, (gradient, total) in enumerate(zip(gradients, totals, strict=True), start=1):
        g = clipped(gradient, total, 0.5)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.95**step)
        w = w - 0.01 * (m_hat / (np.sqrt(v_hat) + 1e-8) + 0.1 * w)
    np.testing.assert_allclose(updated, w, rtol=tolerance, atol=tolerance)


def test_adamw_counts_steps_over_all_runs():
    _, fresh, *_ = optimizer_run("adamw", ADAMW, 2, "float64")
    _, resumed, *_ = optimizer_run("adamw", ADAMW, 2, "float64", first_step=10)
    assert np.abs(fresh - resumed).max() > 1e-4


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_with_and_without_momentum(momentum: float):
    attributes = {"momentum": momentum, "weight_decay": 0.1, "clip_norm": 0.0}
    start, updated, gradients, totals = optimizer_run(
        "sgd", attributes, int(momentum > 0), "float64"
    )
    w, velocity = start.copy(), np.zeros(SIZE)
    for gradient, total in zip(gradients, totals, strict=True):
        velocity = momentum * velocity + clipped(gradient, total, 0)
        w = w - 0.01 * (velocity + 0.1 * w)
    np.testing.assert_allclose(updated, w, rtol=1e-12)


def test_a_step_without_tokens_changes_nothing_but_decay():
    shards = (whole_shard((2,), "float64"),) * 2 + (
        whole_shard((3,), "float64"),
        whole_shard((), "float64"),
    )
    (updated,) = call(
        "sgd", "n, n, z!, -> n",
        [np.ones(2), np.zeros(2), np.zeros(3), np.array(0.1)], [whole_shard((2,), "float64")],
        input_shards=shards, attributes={"clip_norm": 1.0},
    )  # fmt: skip
    np.testing.assert_array_equal(updated, np.ones(2))


def test_an_optimizer_without_its_state_is_refused():
    with pytest.raises(ExecutorError, match="found 0 state arrays"):
        call("adamw", "n, n, z!, -> n", [np.ones(2)] * 4, [whole_shard((2,), "float64")])


def test_the_learning_rate_rises_falls_along_a_cosine_and_stays():
    schedule = {
        "learning_rate": 2.0, "warmup_steps": 4, "decay_steps": 14, "final_fraction": 0.1
    }  # fmt: skip

    def rate(step: int, attributes: dict[str, float]) -> float:
        (learning_rate,) = call(
            "learning_rate", " -> ", [], [whole_shard((), "float64")],
            attributes=attributes, run=run_state(first_step=step),
        )  # fmt: skip
        return float(learning_rate)

    assert [rate(step, schedule) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert rate(4, schedule) == 2.0
    assert rate(9, schedule) == pytest.approx(2.0 * (0.1 + 0.9 * (1 + cos(pi / 2)) / 2))
    assert rate(14, schedule) == rate(1000, schedule) == pytest.approx(0.2)
    assert rate(1000, {"learning_rate": 2.0}) == 2.0


def test_step_totals_count_a_broadcast_value_once_over_the_mesh():
    values = [np.array(x, np.float64) for x in (6.0, 4.0, 3.0, 5.0)]
    sbps = (
        (PARTIAL_SUM, BROADCAST),
        (BROADCAST, BROADCAST),
        (split(0), BROADCAST),
        (BROADCAST,) * 2,
    )
    total = np.zeros(3)
    for coordinate in ((0, 0), (0, 1), (1, 0), (1, 1)):
        total += call(
            "step_totals", ", , , -> z!", values, [whole_shard((3,), "float64")],
            input_sbp=sbps, coordinate=coordinate, axis_sizes=(2, 2),
        )[0]  # fmt: skip
    np.testing.assert_array_equal(total, [12, 4, 2 * 3 + 5])


def test_step_totals_of_a_stage_without_a_loss_are_squares_alone():
    values = [np.array(3.0), np.array(5.0)]
    (totals,) = call(
        "step_totals",
        ", -> z!",
        values,
        [whole_shard((3,), "float64")],
        attributes={"has_loss": False},
    )
    np.testing.assert_array_equal(totals, [0, 0, 8])


class SampleNumbers:
    """A dataset whose value is the sample's number, plus a tenth of the place in the sequence."""

    def read(self, source: SampleSource, samples: Array) -> Array:
        places = np.arange(source.shape[0])[source.region[0]]
        return samples[:, None] + places / 10


def test_input_numbers_samples_through_steps_microbatches_and_shards():
    run = run_state(dataset=SampleNumbers(), global_batch=8, microbatches=2, batch=4, first_step=1)
    shard = Shard(global_shape=(4, 6), offsets=(2, 3), shape=(2, 3), dtype="float64")
    kernel = make_kernel(
        KernelContext(
            kind="input", name="tokens", labels="-> b t", attributes={"source": "tokens"},
            inputs=(), outputs=(shard,), run=run,
        )
    )  # fmt: skip
    out = np.empty((2, 3))
    kernel(3, [], [out])  # step 1 of this run, microbatch 1: samples 20 to 23, here the last two
    np.testing.assert_allclose(out, [[22.3, 22.4, 22.5], [23.3, 23.4, 23.5]])


def test_input_without_a_dataset_says_so():
    with pytest.raises(ExecutorError, match="no dataset to read `tokens` from"):
        call("input", "-> b t", [], [whole_shard((2, 3), "int32")], attributes={"source": "tokens"})
