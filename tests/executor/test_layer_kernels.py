"""Corners of single kernels: far values, borders, and attributes that are refused."""

from base64 import b64encode
from math import erfc
from zlib import compress

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.kernel_calls import call, call_sharded


def data_of(values: Array) -> str:
    return b64encode(compress(values.astype(values.dtype.newbyteorder("<")).tobytes())).decode()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_a_constant_is_read_from_its_data_wherever_it_is_cut(dtype: str):
    values = np.arange(24).reshape(4, 6).astype(dtype)
    attributes = {"value": 0, "data": data_of(values)}
    for splits in ({}, {"t": 2}, {"t": 2, "d": 3}):
        (output,) = call_sharded(
            "constant", " -> t d", [], [whole_shard((4, 6), dtype)], splits, attributes=attributes
        )
        np.testing.assert_array_equal(output, values)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("no base64!", "is not base64 of a zlib stream"),
        (b64encode(b"not compressed").decode(), "is not base64 of a zlib stream"),
        (data_of(np.zeros(5, np.float32)), "holds 20 bytes, a tensor .* takes 96"),
    ],
)
def test_a_constant_without_its_values_is_refused(data: str, complaint: str):
    with pytest.raises(ExecutorError, match=complaint):
        call(
            "constant", " -> t d", [], [whole_shard((4, 6), "float32")],
            attributes={"value": 0, "data": data},
        )  # fmt: skip


def of_function(kind: str, x: Array, **attributes: float) -> Array:
    (output,) = call(
        kind, "n -> n", [x], [whole_shard(x.shape, str(x.dtype))], attributes=attributes
    )  # fmt: skip
    return output


def slope_of(kind: str, x: Array, **attributes: float) -> Array:
    (slope,) = call(
        f"{kind}_grad", "n, n -> n", [x, np.ones_like(x)], [whole_shard(x.shape, str(x.dtype))],
        attributes=attributes,
    )  # fmt: skip
    return slope


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_values_far_from_zero_are_their_limits(dtype: str):
    x = np.array([-1e4, -200, 200, 1e4], dtype)
    for kind in ("silu", "gelu", "gelu_erf", "relu", "softplus"):
        np.testing.assert_allclose(of_function(kind, x), np.maximum(x, 0), atol=1e-30)
        np.testing.assert_allclose(slope_of(kind, x), x > 0, atol=1e-30)
    np.testing.assert_allclose(of_function("sigmoid", x), x > 0, atol=1e-30)
    np.testing.assert_allclose(slope_of("sigmoid", x), 0, atol=1e-30)


def test_the_exact_gelu_is_exact_in_between():
    x = np.linspace(-9, 9, 40_001)
    tail = np.vectorize(erfc)
    expected = x * 0.5 * tail(-x / np.sqrt(2))
    np.testing.assert_allclose(of_function("gelu_erf", x), expected, atol=1e-13)
    narrow = of_function("gelu_erf", x.astype(np.float32))
    np.testing.assert_allclose(narrow, expected, atol=2e-6)


def test_a_logistic_loss_of_logits_far_from_zero_is_finite():
    logits = np.array([1e4, -1e4, 1e4, -1e4, 3], np.float32)
    targets = np.array([1, 0, 0, 1, -1], np.int32)
    (loss,) = call("logistic_loss", "b, b -> b", [logits, targets], [whole_shard((5,), "float32")])
    np.testing.assert_allclose(loss, [0, 0, 1e4, 1e4, 0])
    (slope,) = call(
        "logistic_loss_grad", "b, b -> b", [logits, targets], [whole_shard((5,), "float32")]
    )
    np.testing.assert_allclose(slope, [0, 0, 1, -1, 0], atol=1e-30)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_margin_is_an_angle_up_to_and_beyond_half_a_turn_and_its_slope_stays_finite(dtype: str):
    angle = np.array([0.0, 1.0, np.pi - 0.5, np.pi - 0.2, np.pi])
    cosine = np.cos(angle)[:, None].astype(dtype)
    targets, attributes = np.zeros(5, np.int32), {"scale": 2.0, "margin": 0.5}
    shards = [whole_shard((5, 1), dtype)]
    (output,) = call(
        "arc_margin", "b s, b -> b s", [cosine, targets], shards, attributes=attributes
    )
    np.testing.assert_allclose(output[:, 0], 2 * np.cos(angle + 0.5), atol=3e-3)
    (slope,) = call(
        "arc_margin_grad", "b s, b, b s -> b s", [cosine, targets, np.ones_like(cosine)], shards,
        attributes=attributes,
    )  # fmt: skip
    assert np.isfinite(slope).all()
    inner = slice(1, 4)
    expected = 2 * np.sin(angle + 0.5) / np.maximum(np.sin(angle), 1e-9)
    np.testing.assert_allclose(slope[inner, 0], expected[inner], rtol=1e-3, atol=1e-4)


def test_softmax_of_scores_far_from_zero_overflows_nothing():
    x = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    (output,) = call("softmax", "b n! -> b n!", [x], [whole_shard((1, 3), "float32")])
    share = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(output, [[share, 1 - share, 0]], rtol=1e-3)


def test_a_row_of_zeros_has_no_length_to_divide_by():
    (y, rnorm) = call(
        "l2_normalize",
        "b d! -> b d!, b",
        [np.zeros((2, 3))],
        [whole_shard((2, 3), "float64"), whole_shard((2,), "float64")],
        attributes={"epsilon": 1e-6},
    )
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_allclose(rnorm, 1e6)


@pytest.mark.parametrize(
    ("labels", "dims", "complaint"),
    [
        ("b t d!", 5, "an even number, at most all"),
        ("b t d!", 8, "an even number, at most all"),
        ("b n d!", 6, "needs label `t` before the features"),
    ],
)
def test_rotary_refuses_what_has_no_pairs_or_no_positions(labels: str, dims: int, complaint: str):
    with pytest.raises(ExecutorError, match=complaint):
        call(
            "rotary", f"{labels} -> {labels}", [np.zeros((2, 3, 6))],
            [whole_shard((2, 3, 6), "float64")],
            attributes={"base": 100.0, "dims": dims, "interleaved": False, "inverse": False},
        )  # fmt: skip


@pytest.mark.parametrize("interleaved", [True, False])
def test_the_inverse_turns_back_and_long_rows_are_turned_in_pieces(interleaved: bool):
    x = np.random.default_rng(0).standard_normal((2, 3, 4096, 16))
    shard, attributes = whole_shard(x.shape, "float64"), {"base": 1e4, "dims": 12}
    for inverse in (False, True):
        (x_again,) = call(
            "rotary", "b t h d! -> b t h d!", [x], [shard],
            attributes=attributes | {"interleaved": interleaved, "inverse": inverse},
        )  # fmt: skip
        x, before = x_again, x
        if inverse:
            assert not np.allclose(x, before)
    np.testing.assert_allclose(
        x, np.random.default_rng(0).standard_normal((2, 3, 4096, 16)), atol=1e-12
    )


def test_prelu_takes_one_slope_per_index_of_one_dim():
    with pytest.raises(ExecutorError, match="one slope or one per index of a dim"):
        call(
            "prelu", "b c, b c -> b c", [np.zeros((2, 3)), np.zeros((2, 3))],
            [whole_shard((2, 3), "float64")],
        )  # fmt: skip
