"""Attention's forms against each other: groups, windows, slopes."""

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.attention.scores import alibi_slopes
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.kernel_calls import call, call_sharded

PLAIN = "b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h"
GROUPED = "b t g r d!, b s! g d!, b s! g d! -> b t g r d!, b t g r"
DTYPE = "float64"


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def plain(q: Array, k: Array, v: Array, **attributes: object) -> list[Array]:
    outputs = [whole_shard(q.shape, DTYPE), whole_shard(q.shape[:-1], DTYPE)]
    return call("attention", PLAIN, [q, k, v], outputs, attributes=attributes)


def gradient(labels: str, given: list[Array], dout: Array, **attributes: object) -> list[Array]:
    """dq, dk and dv of a form with these forward labels."""
    q = given[0]
    outputs = [whole_shard(q.shape, DTYPE), whole_shard(q.shape[:-1], DTYPE)]
    saved = call("attention", labels, given, outputs, attributes=attributes)
    inputs, results = labels.split(" -> ")
    out = results.split(", ")[0]
    return call(
        "attention_grad", f"{inputs}, {results}, {out} -> {inputs}", [*given, *saved, dout],
        [whole_shard(array.shape, DTYPE) for array in given], attributes=attributes,
    )  # fmt: skip


@pytest.mark.parametrize("length", [7, 130])
def test_grouped_queries_attend_as_plain_heads_with_repeated_keys(length: int):
    q, dout = random(2, length, 3, 2, 4), random(2, length, 3, 2, 4, seed=1)
    k, v = random(2, length, 3, 4, seed=2), random(2, length, 3, 4, seed=3)
    heads = (2, length, 6, 4)
    repeated = [q.reshape(heads), np.repeat(k, 2, axis=2), np.repeat(v, 2, axis=2)]
    dq, dk, dv = gradient(GROUPED, [q, k, v], dout, causal=True)
    wide_dq, wide_dk, wide_dv = gradient(PLAIN, repeated, dout.reshape(heads), causal=True)
    np.testing.assert_allclose(dq.reshape(heads), wide_dq, atol=1e-12)
    for narrow, wide in ((dk, wide_dk), (dv, wide_dv)):
        summed = wide.reshape(2, length, 3, 2, 4).sum(3)
        np.testing.assert_allclose(narrow, summed, atol=1e-12)


@pytest.mark.parametrize(
    ("labels", "heads", "left_out"),
    [
        ("b t d!, b s! d!, b s! d! -> b t d!, b t", 1, (2,)),
        ("b t h d!, b s! d!, b s! d! -> b t h d!, b t h", 3, ()),
    ],
    ids=["one head", "one head of keys"],
)
def test_a_dim_of_one_group_may_be_left_out(labels: str, heads: int, left_out: tuple[int, ...]):
    q, dout = random(2, 70, heads, 4), random(2, 70, heads, 4, seed=1)
    k, v = random(2, 70, 1, 4, seed=2), random(2, 70, 1, 4, seed=3)
    full = [q[:, :, None], k, v]
    attributes = {"causal": True, "window": 9, "alibi": 8.0}
    expected = gradient(GROUPED, full, dout[:, :, None], **attributes)
    short = [q.squeeze(left_out), k[:, :, 0], v[:, :, 0]]
    gradients = gradient(labels, short, dout.squeeze(left_out), **attributes)
    for array, reference in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(array, reference.reshape(array.shape), atol=1e-12)
    assert gradients[1].shape == (2, 70, 4)


def test_a_causal_window_is_the_mean_of_the_last_values_where_scores_are_equal():
    length, window = 150, 9
    v = random(1, length, 1, 4)
    out, _ = plain(np.zeros_like(v), v, v, causal=True, window=window)
    for t in (0, 5, 8, 9, 63, 64, 100, 149):
        seen = v[0, max(0, t - window + 1) : t + 1, 0]
        np.testing.assert_allclose(out[0, t, 0], seen.mean(0), atol=1e-12)


def test_a_window_without_a_cause_reaches_as_far_ahead_as_behind():
    v = random(1, 100, 1, 4)
    out, _ = plain(np.zeros_like(v), v, v, causal=False, window=4)
    np.testing.assert_allclose(out[0, 50, 0], v[0, 47:54, 0].mean(0), atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_as_long_as_the_sequence_changes_nothing(causal: bool):
    q, k, v, dout = (random(2, 70, 2, 4, seed=seed) for seed in range(4))
    wide = gradient(PLAIN, [q, k, v], dout, causal=causal, window=70)
    for array, reference in zip(wide, gradient(PLAIN, [q, k, v], dout, causal=causal), strict=True):
        np.testing.assert_allclose(array, reference, atol=1e-12)


def test_a_window_that_shows_a_query_nothing_is_refused():
    q, k = random(1, 9, 1, 4), random(1, 3, 1, 4)
    with pytest.raises(ExecutorError, match="query 8 sees none of 3 keys through a window of 5"):
        plain(q, k, k, causal=True, window=5)


def test_slopes_are_those_of_the_paper_and_interleave_between_powers_of_two():
    np.testing.assert_allclose(alibi_slopes(8, 8.0), [1 / 2**i for i in range(1, 9)])
    halves = [2 ** (-i / 2) for i in range(1, 17)]
    np.testing.assert_allclose(alibi_slopes(12, 8.0), [*halves[1::2], *halves[::2][:4]])


@pytest.mark.parametrize("heads", [8, 12])
def test_slopes_follow_the_head_wherever_heads_are_cut(heads: int):
    given = [random(1, 20, heads, 4, seed=seed) for seed in range(3)]
    attributes: dict[str, int | float | str | bool] = {"causal": True, "alibi": 8.0}
    outputs = [whole_shard(given[0].shape, DTYPE), whole_shard(given[0].shape[:-1], DTYPE)]
    expected = call("attention", PLAIN, given, outputs, attributes=attributes)
    for splits in ({"h": 4}, {"h": 2, "t": 2}):
        sharded = call_sharded("attention", PLAIN, given, outputs, splits, attributes=attributes)
        for array, reference in zip(sharded, expected, strict=True):
            np.testing.assert_allclose(array, reference, atol=1e-12)
    # the last head's slope: the score of the key before falls by just that
    logits = np.zeros((1, 2, heads, 1))
    values = np.broadcast_to(np.array([0.0, 1.0])[None, :, None, None], logits.shape).copy()
    out, _ = plain(logits, logits, values, causal=True, alibi=8.0)
    np.testing.assert_allclose(
        out[0, 1, :, 0], 1 / (1 + np.exp(-alibi_slopes(heads, 8.0))), atol=1e-12
    )
