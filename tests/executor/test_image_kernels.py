"""Convolution in several parts, pooling's borders and ties, batch norm over a split batch."""

from itertools import product

import numpy as np
import pytest

from millrace.executor.kernels import KernelContext, make_kernel
from millrace.executor.kernels.context import Array, Shard, whole_shard
from millrace.executor.kernels.images.sizes import COLUMNS_ELEMENTS
from tests.executor.examples.images import convolutions, window
from tests.executor.kernel_calls import call, run_state

DTYPE = "float64"
EPSILON = {"epsilon": 1e-5}


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def test_a_convolution_is_the_sum_over_its_window_place_by_place():
    x, w = random(2, 3, 6, 5), random(4, 3, 3, 2, seed=1)
    attributes = window((2, 1), (1, 0))
    (out,) = call(
        "conv", "b c y! x!, n c q! p! -> b n j! i!", [x, w], [whole_shard((2, 4, 3, 4), DTYPE)],
        attributes=attributes,
    )  # fmt: skip
    for b, n, j, i in product(range(2), range(4), range(3), range(4)):
        total = 0.0
        for c, q, p in product(range(3), range(3), range(2)):
            row = 2 * j + q - 1
            if 0 <= row < 6:
                total += x[b, c, row, i + p] * w[n, c, q, p]
        np.testing.assert_allclose(out[b, n, j, i], total, atol=1e-12)


def test_samples_that_do_not_fit_one_part_are_taken_in_several():
    sizes = {"y": 32, "x": 32, "q": 3, "p": 3, "j": 32, "i": 32}
    attributes, samples = window((1, 1), (1, 1)), 9
    fitting = COLUMNS_ELEMENTS // (8 * 9 * 32 * 32)
    assert 1 < fitting < samples
    assert samples % fitting
    for example in convolutions(attributes, sizes | {"b": samples, "c": 8, "n": 2}):
        given = example.inputs(DTYPE)
        (expected,) = example.expected(given)
        (output,) = call(
            example.kind, example.labels, given, [whole_shard(expected.shape, DTYPE)],
            attributes=attributes,
        )  # fmt: skip
        np.testing.assert_allclose(output, expected, atol=1e-10)


def test_padding_is_no_largest_value_and_equals_give_the_slope_to_the_first():
    attributes = window((2, 2), (1, 1)) | {"size_y": 3, "size_x": 3}
    x = np.full((1, 1, 4, 4), -5.0)
    labels = "b c y! x! -> b c j! i!"
    (largest,) = call(
        "max_pool", labels, [x], [whole_shard((1, 1, 2, 2), DTYPE)], attributes=attributes
    )
    np.testing.assert_array_equal(largest, np.full((1, 1, 2, 2), -5.0))
    (dx,) = call(
        "max_pool_grad", "b c y! x!, b c j! i! -> b c y! x!",
        [x, np.arange(1.0, 5.0).reshape(1, 1, 2, 2)], [whole_shard(x.shape, DTYPE)],
        attributes=attributes,
    )  # fmt: skip
    expected = np.zeros((4, 4))
    expected[0, 0], expected[0, 1], expected[1, 0], expected[1, 1] = 1, 2, 3, 4
    np.testing.assert_array_equal(dx[0, 0], expected)


def test_a_mean_counts_its_padding():
    attributes = window((2, 2), (1, 1)) | {"size_y": 3, "size_x": 3}
    (mean,) = call(
        "avg_pool", "b c y! x! -> b c j! i!", [np.ones((1, 1, 4, 4))],
        [whole_shard((1, 1, 2, 2), DTYPE)], attributes=attributes,
    )  # fmt: skip
    np.testing.assert_allclose(mean[0, 0], [[4 / 9, 6 / 9], [6 / 9, 1]])


def on_shards(
    kind: str, labels: str, shards: list[list[Array]], split: list[bool], output_split: list[bool]
) -> list[list[Array]]:
    """Outputs of a kernel on two halves of the samples, where inputs and outputs are split."""
    shard_outputs = []
    for half, given in enumerate(shards):
        places = []
        for array, cut in zip(given, split, strict=True):
            first = half * array.shape[0] if cut else 0
            everything = (2 * array.shape[0], *array.shape[1:]) if cut else array.shape
            places.append(
                Shard(
                    global_shape=everything, offsets=(first, *(0,) * (array.ndim - 1)),
                    shape=array.shape, dtype=DTYPE,
                )
            )  # fmt: skip
        image = places[0]
        channels = whole_shard((image.shape[1],), DTYPE)
        outputs = [image if cut else channels for cut in output_split]
        kernel = make_kernel(
            KernelContext(
                kind=kind, name=kind, labels=labels, attributes=EPSILON, inputs=tuple(places),
                outputs=tuple(outputs), run=run_state(),
            )
        )  # fmt: skip
        arrays = [np.empty(shard.shape) for shard in outputs]
        kernel(0, given, arrays)
        shard_outputs.append(arrays)
    return shard_outputs


@pytest.mark.parametrize(("dims", "shape"), [("b c y x", (8, 3, 4, 5)), ("b c", (8, 3))])
def test_batch_norm_of_a_split_batch_takes_the_statistics_of_the_whole(
    dims: str, shape: tuple[int, ...]
):
    x, dy = random(*shape) + 3, random(*shape, seed=1)
    gamma, beta = random(3, seed=2), random(3, seed=3)
    xs, dys = np.split(x, 2), np.split(dy, 2)
    (sums,) = sum_of(on_shards("channel_sums", f"{dims} -> c", [[x] for x in xs], [True], [False]))
    given = [[x, sums] for x in xs]
    partial_squares = on_shards("channel_squares", f"{dims}, c -> c", given, [True, False], [False])
    (squares,) = sum_of(partial_squares)
    given = [[x, sums, squares, gamma, beta] for x in xs]
    pieces = on_shards(
        "batch_norm", f"{dims}, c, c, c, c -> {dims}", given, [True, *[False] * 4], [True]
    )
    axes = tuple(axis for axis in range(len(shape)) if axis != 1)
    spread = (1, 3, 1, 1)[: len(shape)]
    std = np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    normal = (x - x.mean(axes, keepdims=True)) / std
    whole_y = np.concatenate([y for (y,) in pieces])
    np.testing.assert_allclose(
        whole_y, normal * gamma.reshape(spread) + beta.reshape(spread), atol=1e-12
    )
    both = [True, True, False, False]
    given = [[dy, x, sums, squares] for dy, x in zip(dys, xs, strict=True)]
    dgamma, dbeta = sum_of(
        on_shards("batch_norm_grad_sums", f"{dims}, {dims}, c, c -> c, c", given, both, [False] * 2)
    )
    np.testing.assert_allclose(dgamma, (dy * normal).sum(axes), atol=1e-11)
    np.testing.assert_allclose(dbeta, dy.sum(axes), atol=1e-11)
    given = [[*four, gamma, dgamma, dbeta] for four in given]
    pieces = on_shards(
        "batch_norm_grad_input", f"{dims}, {dims}, c, c, c, c, c -> {dims}", given,
        [*both, *[False] * 3], [True],
    )  # fmt: skip
    mean_dy = dy.mean(axes, keepdims=True)
    along = normal * (dy * normal).mean(axes, keepdims=True)
    np.testing.assert_allclose(
        np.concatenate([dx for (dx,) in pieces]),
        gamma.reshape(spread) / std * (dy - mean_dy - along),
        atol=1e-12,
    )


def sum_of(shards: list[list[Array]]) -> list[Array]:
    """The partial outputs of two ranks, added up."""
    return [first + second for first, second in zip(*shards, strict=True)]
