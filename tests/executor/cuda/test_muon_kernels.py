"""Muon's kernels against the NumPy ones."""

import numpy as np
import pytest

from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels import make_kernel
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.cuda.calling import call as call_on_device
from tests.executor.cuda.calling import context_of, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.cuda.test_optimizer import carry_out, control_of
from tests.executor.kernel_calls import call

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        ("k! n! -> k! n!", (40, 120)),
        ("k! n! -> k! n!", (130, 70)),
        ("e k! h! d! -> e k! h! d!", (3, 24, 5, 8)),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("bfloat16", 0.1)])
def test_matrices_are_those_of_numpy(
    labels: str, shape: tuple[int, ...], dtype: str, tolerance: float
) -> None:
    matrices = np.random.default_rng(0).standard_normal(shape)
    attributes = {"rows": 1, "rounds": 5}
    (expected,) = call(
        "newton_schulz", labels, [matrices], [whole_shard(shape, "float64")], attributes=attributes
    )
    shard = whole_shard(shape, dtype)
    (matrix,) = call_on_device(
        "newton_schulz", labels, [matrices], [shard], input_shards=[shard], attributes=attributes
    )
    assert np.abs(matrix - expected).max() < tolerance


@pytest.mark.parametrize("pieces", [0, 3])
@pytest.mark.parametrize("squares", [4.0, np.inf])
def test_momentum_and_update_are_those_of_numpy(pieces: int, squares: float) -> None:
    """A step whose gradients are not finite changes neither variable nor velocity."""
    rng = np.random.default_rng(1)
    w, gradient = rng.standard_normal((2, 1000))
    totals, rate = np.array([700.0, 100.0, squares]), np.array(0.01)
    shards = [whole_shard(array.shape, "float64") for array in (w, w, totals, rate)]
    room = -(-8 * 1000 // pieces) + 16 if pieces else 0
    device, host = np.ones(1000), np.ones(1000)
    options = {"momentum": 0.9, "clip_norm": 0.01, "rate_factor": 0.3, "weight_decay": 0.1}

    def fired(kind: str, numbers: tuple[int, ...], reads: list[Array]) -> list[Array]:
        named = [shards[number] for number in numbers]
        more = {"buffer_bytes": room, "variable_in_host": bool(room)}
        calls = make_calls(context_of(kind, "", named, shards[:1], options, **more))
        written = reads[0].copy() if kind == "muon" else np.zeros(1000)
        on_device = [written, *(to_device(array, "float64") for array in reads[1:])]
        on_device[0] = written if kind == "muon" else to_device(reads[0], "float64")
        carry_out(
            Emulator(functions_of(calls.of(0))), calls, on_device, [written],
            control=control_of(), state=[device], buffer=np.zeros(room + 64, np.uint8),
        )  # fmt: skip
        kernel = make_kernel(
            context_of(kind, "", named, shards[:1], options, state=[host][: kind == "momentum"])
        )
        expected = np.zeros(1000)
        if np.isfinite(squares):
            kernel(0, reads, [expected])
        return [loaded(written, "float64"), expected]

    direction, expected = fired("momentum", (0, 2), [gradient, totals])
    updated, expected_w = fired("muon", (0, 1, 2, 3), [w, direction, totals, rate])
    if np.isfinite(squares):
        np.testing.assert_allclose(direction, expected, rtol=1e-12)
        np.testing.assert_allclose(updated, expected_w, rtol=1e-12)
    else:
        np.testing.assert_array_equal(updated, w)
    np.testing.assert_allclose(device, host, rtol=1e-12)
