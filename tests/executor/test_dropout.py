"""Dropout: Philox as published, and bits that neither the split nor the microbatch changes."""

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import KernelContext, make_kernel
from millrace.executor.kernels.context import Array, whole_shard
from millrace.executor.kernels.random_bits import key_of, philox
from tests.executor.kernel_calls import call, call_sharded, run_state

ATTRIBUTES = {"rate": 0.1, "op": "block.dropout"}


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
):
    # the known answers of Random123, the authors' own library (kat_vectors, 2011)
    words = [np.array([word], np.uint64) for word in counter]
    philox(words, key, [np.empty(1, np.uint64) for _ in range(2)])
    assert tuple(int(word[0]) for word in words) == expected


def test_streams_differ_by_seed_and_by_op():
    keys = {key_of(seed, op) for seed in (0, 1, 10) for op in ("a", "b", "0 a")}
    assert len(keys) == 9


def dropped(x: Array, *, firing: int = 0, labels: str = "b t n", **run: object) -> Array:
    """Fire once, as firing number `firing` of a run."""
    shard = whole_shard(x.shape, str(x.dtype))
    kernel = make_kernel(
        KernelContext(
            kind="dropout", name="d", labels=f"{labels} -> {labels}", attributes=ATTRIBUTES,
            inputs=(shard,), outputs=(shard,), run=run_state(**run),
        )
    )  # fmt: skip
    output = np.full_like(x, 77)
    kernel(firing, [x], [output])
    return output


def test_rate_and_mean_are_right():
    output = dropped(np.ones((8, 128, 256)), batch=8)
    count = output.size
    assert abs(np.count_nonzero(output) / count - 0.9) < 5 * np.sqrt(0.09 / count)
    assert abs(output.mean() - 1) < 5 * np.sqrt(0.1 / 0.9 / count)
    np.testing.assert_allclose(np.unique(output), [0, 1 / 0.9])


def test_neighbours_samples_and_ops_are_dropped_independently():
    mask = dropped(np.ones((8, 64, 512))) > 0
    for elements, neighbours in ((mask[:, 1:], mask[:, :-1]), (mask[..., 1:], mask[..., :-1])):
        assert abs(np.mean(elements & neighbours) - 0.81) < 0.005
    assert abs(np.mean(mask[1:] & mask[:-1]) - 0.81) < 0.005


@pytest.mark.parametrize(
    "splits",
    [{"b": 2}, {"t": 3}, {"n": 2}, {"t": 2, "n": 5}, {"b": 4, "t": 6, "n": 10}, {"b": 2, "n": 110}],
)
def test_a_split_changes_no_bit(splits: dict[str, int]):
    x = np.random.default_rng(0).standard_normal((4, 6, 110))
    shards = [whole_shard(x.shape, "float64")]
    expected = dropped(x, batch=4)
    (output,) = call_sharded(
        "dropout", "b t n -> b t n", [x], shards, splits, attributes=ATTRIBUTES
    )  # fmt: skip
    np.testing.assert_array_equal(output, expected)


def test_rows_longer_than_a_chunk_and_off_the_counters_words_change_no_bit():
    x = np.ones((2, 3, 70_002))
    shards = [whole_shard(x.shape, "float64")]
    expected = dropped(x)
    for splits in ({"t": 3}, {"n": 2}, {"b": 2}):
        (output,) = call_sharded(
            "dropout", "b t n -> b t n", [x], shards, splits, attributes=ATTRIBUTES
        )
        np.testing.assert_array_equal(output, expected)


def test_the_microbatch_changes_no_bit_and_a_resumed_run_goes_on():
    x = np.ones((4, 5, 7))
    settings = {"global_batch": 8}
    large = [dropped(x, firing=firing, batch=4, microbatches=2, **settings) for firing in range(4)]
    small = [
        dropped(x[:2], firing=firing, batch=2, microbatches=4, **settings) for firing in range(8)
    ]
    resumed = [
        dropped(x, firing=firing, batch=4, microbatches=2, first_step=1, **settings)
        for firing in range(2)
    ]
    np.testing.assert_array_equal(np.concatenate(large), np.concatenate(small))
    np.testing.assert_array_equal(np.stack(large[2:]), np.stack(resumed))
    assert not np.array_equal(large[0], large[1])


def test_the_order_of_dims_around_the_batch_is_that_of_the_sample():
    x = np.ones((3, 4, 6))
    expected = dropped(x, labels="b t n")
    moved = dropped(np.ascontiguousarray(x.transpose(1, 0, 2)), labels="t b n")
    np.testing.assert_array_equal(moved, expected.transpose(1, 0, 2))


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_that_is_no_share_is_refused(rate: float):
    with pytest.raises(ExecutorError, match="dropout rate is"):
        call(
            "dropout", "b n -> b n", [np.ones((2, 3))], [whole_shard((2, 3), "float64")],
            attributes={"rate": rate, "op": "a"},
        )  # fmt: skip
