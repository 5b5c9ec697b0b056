"""Calls of rows where numbers, ids or sizes are out of the ordinary, and the loss scale."""

from math import cos, sin

import numpy as np
import pytest

from millrace.executor.cuda.calls import CONTROL, Launch
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.rows.margin import COSINE_MAX
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, Shard, whole_shard
from tests.executor.cuda.calling import Operands, call, context_of, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

LOSS_SCALE_AT = 32  # bytes of four counters before it in `sources/control.cuh`
FUNCTIONS = {
    "rms_norm": ["l2_normalize_grad<float, bf16, float, 4, 1, true>"],
    "softmax": ["softmax<float, 1>", "masked_softmax<float, none>"],
    "loss": [
        "cross_entropy<float, int, float>",
        "cross_entropy_grad<float, int, float>",
        "cross_entropy_grad<f16, int, float>",
        "shifted_sums<float, float, int, float>",
        *(f"row_max<{name}, float>" for name in ("f16", "bf16")),
        *(f"shifted_sums<{name}, float, int, float>" for name in ("f16", "bf16")),
        "count_valid<int, float>",
        "count_valid<int, i64>",
        "add_counts<float>",
    ],
    "margin": ["logistic_loss<float, int, float>", "logistic_loss_grad<float, int>"]
    + [f"arc_margin_grad<{name}, int>" for name in ("float", "f16", "bf16")],
}
INF = np.float32(np.inf)


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    return Emulator(FUNCTIONS)


def floats(*shape: int) -> Shard:
    return whole_shard(shape, "float32")


def cross_entropy(logits: Array, targets: list[int], emulator: Emulator) -> list[Array]:
    rows = (len(targets),)
    ids = np.array(targets, np.int32)
    return call(
        "cross_entropy", "b v!, b -> b, b", [logits, ids], [floats(*rows)] * 2, emulator=emulator
    )


def test_logits_far_from_zero_overflow_nothing(emulator: Emulator):
    logits = np.array([[1e4, 1e4 - 1, -1e4], [-1e30, -2e30, 3e30]], np.float32)
    loss, logsumexp = cross_entropy(logits, [1, 2], emulator)
    np.testing.assert_allclose(loss, [1 + np.log1p(np.exp(-1)), 0], rtol=1e-3)
    (slope,) = call(
        "cross_entropy_grad", "b v, b, b -> b v", [logits, np.array([1, 2], np.int32), logsumexp],
        [floats(2, 3)], emulator=emulator,
    )  # fmt: skip
    np.testing.assert_allclose(slope.sum(1), 0, atol=1e-3)


def test_logits_of_minus_infinity_have_no_probability(emulator: Emulator):
    logits = np.full((1, 70), -INF)
    logits[0, [3, 68]] = 2
    loss, _ = cross_entropy(logits, [3], emulator)
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-6)
    (probabilities,) = call("softmax", "b n! -> b n!", [logits], [floats(1, 70)], emulator=emulator)
    np.testing.assert_allclose(probabilities, np.where(logits > 0, 0.5, 0), rtol=1e-6)


def test_a_nan_among_the_logits_is_a_nan_of_the_loss(emulator: Emulator):
    logits = np.zeros((2, 70), np.float32)
    logits[0, 40] = np.nan
    loss, logsumexp = cross_entropy(logits, [3, 3], emulator)
    assert np.isnan([loss[0], logsumexp[0]]).all()
    np.testing.assert_allclose(loss[1], np.log(70), rtol=1e-6)


def test_a_target_that_is_no_logit_has_a_loss_that_is_no_number(emulator: Emulator):
    loss, _ = cross_entropy(np.zeros((2, 5), np.float32), [5, -1], emulator)
    assert np.isnan(loss[0])
    assert loss[1] == 0


def test_targets_of_another_rank_are_not_read_here(emulator: Emulator):
    logits = np.zeros((3, 4), np.float32)
    logits[:, 1] = 1
    shards = [
        Shard(global_shape=(3, 12), offsets=(0, 4), shape=(3, 4), dtype="float32"),
        floats(3),
        whole_shard((3,), "int32"),
    ]
    (sums,) = call(
        "shifted_sums", "b v, b, b -> b c!",
        [logits, np.ones(3, np.float32), np.array([5, 1, 8], np.int32)],
        [floats(3, 2)], input_shards=shards, emulator=emulator,
    )  # fmt: skip
    np.testing.assert_array_equal(sums[:, 1], [1, 0, 0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_split_loss_keeps_float32_of_logits_of_16_bits(dtype: str, emulator: Emulator):
    logits = np.array([[1, -3, 2.5, 0, 0.5], [4, 4, -8, 1, 2]], np.float32)
    (largest,) = call(
        "row_max", "b v -> b", [logits], [floats(2)], input_shards=[whole_shard((2, 5), dtype)],
        emulator=emulator,
    )  # fmt: skip
    np.testing.assert_array_equal(largest, [2.5, 4])
    shards = [whole_shard((2, 5), dtype), floats(2), whole_shard((2,), "int32")]
    (sums,) = call(
        "shifted_sums", "b v, b, b -> b c!", [logits, largest, np.array([1, 4], np.int32)],
        [floats(2, 2)], input_shards=shards, emulator=emulator,
    )  # fmt: skip
    expected = np.exp(logits - largest[:, None]).sum(1)
    np.testing.assert_allclose(sums, np.stack((expected, [-3, 2]), 1), rtol=1e-6)


def test_a_query_without_keys_has_no_probabilities(emulator: Emulator):
    scores = np.zeros((1, 1, 9, 3), np.float32)
    (probabilities,) = call(
        "masked_softmax", "b h t s! -> b h t s!", [scores], [floats(1, 1, 9, 3)],
        attributes={"causal": True, "window": 2}, emulator=emulator,
    )  # fmt: skip
    np.testing.assert_allclose(probabilities.sum(-1)[0, 0], [1, 1, 1, 1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("size", [1, 16384, 40001])
def test_targets_are_counted_over_as_many_blocks_as_it_takes(size: int, emulator: Emulator):
    targets = np.random.default_rng(0).integers(-1, 2, size).astype(np.int32)
    (count,) = call("count_valid", "b -> ", [targets], [floats()], emulator=emulator)
    assert count == (targets >= 0).sum()


def test_a_logistic_loss_far_from_zero_overflows_nothing(emulator: Emulator):
    logits = np.array([200, -200, 200, -200, 200], np.float32)
    targets = np.array([1, 1, 0, 0, -1], np.int32)
    shape = [floats(5)]
    (loss,) = call("logistic_loss", "b, b -> b", [logits, targets], shape, emulator=emulator)
    np.testing.assert_allclose(loss, [0, 200, 200, 0, 0], atol=1e-6)
    (slope,) = call("logistic_loss_grad", "b, b -> b", [logits, targets], shape, emulator=emulator)
    np.testing.assert_allclose(slope, [0, -1, 1, 0, 0], atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_cosine_of_one_has_a_finite_slope(dtype: str, emulator: Emulator):
    cosine, targets = np.ones((1, 3)), np.array([1], np.int32)
    shards = [whole_shard((1, 3), dtype), whole_shard((1,), "int32"), whole_shard((1, 3), dtype)]
    (slope,) = call(
        "arc_margin_grad", "b v, b, b v -> b v", [cosine, targets, np.ones((1, 3))], shards[:1],
        input_shards=shards, attributes={"scale": 2.0, "margin": 0.5}, emulator=emulator,
    )  # fmt: skip
    largest = COSINE_MAX[dtype]
    at_target = 2 * (cos(0.5) + sin(0.5) * largest / np.sqrt(1 - largest**2))
    np.testing.assert_allclose(slope, [[2, at_target, 2]], rtol=2e-2)


def scaled(
    kind: str, labels: str, inputs: list[Array], dtype: str, flag: bool, scale: float
) -> Array:
    """An op's output with a loss scale in `Control`, called with and without `loss_scaled`."""
    shards = [
        whole_shard(array.shape, "int32" if array.dtype == np.int32 else "float32")
        for array in inputs
    ]
    shards[0] = whole_shard(inputs[0].shape, dtype)
    attributes = {"loss_scaled": True} if flag else {}
    calls = make_calls(context_of(kind, labels, shards, [shards[0]], attributes))
    out = empty(shards[0])
    reads = [to_device(array, shard.dtype) for array, shard in zip(inputs, shards, strict=True)]
    operands = Operands(calls, reads, [out])
    operands.control[LOSS_SCALE_AT : LOSS_SCALE_AT + 8].view(np.float64)[:] = scale
    (launch,) = calls.of(0)
    assert isinstance(launch, Launch)
    assert CONTROL in launch.args
    operands.carry_out([launch], Emulator(FUNCTIONS))
    return loaded(out, dtype)


@pytest.mark.parametrize(
    ("kind", "labels", "columns", "dtype"),
    [
        ("cross_entropy_grad", "b v, b, b -> b v", (5,), "float32"),
        ("cross_entropy_grad", "b v, b, b -> b v", (5,), "float16"),
        ("logistic_loss_grad", "b, b -> b", (), "float32"),
    ],
)
def test_only_an_op_so_marked_multiplies_by_the_loss_scale(
    kind: str, labels: str, columns: tuple[int, ...], dtype: str
):
    rng = np.random.default_rng(0)
    logits, targets = rng.standard_normal((4, *columns)), np.array([0, 1, -1, 1], np.int32)
    inputs = [logits, targets]
    if columns:
        inputs.append(np.log(np.exp(logits).sum(-1)))
    plain = scaled(kind, labels, inputs, dtype, False, np.nan)
    assert np.isfinite(plain).all()
    gradient = scaled(kind, labels, inputs, dtype, True, 1024.0)
    np.testing.assert_allclose(gradient, 1024 * plain, rtol=2e-3 if dtype == "float16" else 1e-6)


def test_a_gradient_added_up_in_float_goes_through_a_norm_of_16_bits(emulator: Emulator):
    rng = np.random.default_rng(0)
    dy, x = rng.standard_normal((2, 5, 12)).astype(np.float32)
    rnorm = 1 / np.linalg.norm(x, axis=1)
    y = loaded(to_device(x * rnorm[:, None], "bfloat16"), "bfloat16")
    (dx,) = call(
        "l2_normalize_grad",
        "b d!, b d!, b -> b d!",
        [dy, y, rnorm],
        [floats(5, 12)],
        input_shards=[floats(5, 12), whole_shard((5, 12), "bfloat16"), floats(5)],
        emulator=emulator,
    )
    expected = rnorm[:, None] * (dy - y * (dy * y).sum(1, keepdims=True))
    np.testing.assert_allclose(dx, expected, rtol=1e-5, atol=1e-6)


def test_operands_of_two_dtypes_are_refused_where_a_kernel_has_one():
    shards = [whole_shard((2, 3), "bfloat16"), whole_shard((2, 3), "float32")]
    with pytest.raises(ExecutorError, match="found bfloat16 and float32; put a `cast` before it"):
        make_calls(context_of("softmax_grad", "b n!, b n! -> b n!", shards, shards[:1]))


def test_a_row_of_more_columns_than_an_int_counts_is_refused():
    x = whole_shard((1, 2**31), "bfloat16")
    with pytest.raises(ExecutorError, match="at most 2147483647 columns, found 2147483648"):
        make_calls(context_of("softmax", "b n! -> b n!", [x], [x]))


def test_the_slabs_of_a_sum_over_rows_fill_a_device_and_its_workspace():
    x, statistic = whole_shard((8192, 4096), "bfloat16"), whole_shard((8192,), "float32")
    context = context_of(
        "layer_norm_grad_weight", "b d, b d, b, b -> d, d", [x, x, statistic, statistic],
        [whole_shard((4096,), "bfloat16")] * 2,
    )  # fmt: skip
    calls = make_calls(context)
    partial, total = calls.of(0)
    assert isinstance(partial, Launch)
    assert isinstance(total, Launch)
    assert partial.grid == (16, 32, 1)
    assert total.grid == (128, 2, 1)
    assert calls.workspace_bytes == 2 * 32 * 4096 * 4
