"""Tokens go to their experts and come back; who is dropped, and how near a choice was."""

from math import inf

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, RunState, whole_shard
from tests.executor.kernel_calls import call, run_state

DTYPE = "float64"
TOP_K = "b t! e! -> b t! k!, b t! k!, b t! k!"
DISPATCH = "b t! d, b t! k!, b t! k! -> e b c! d"
COMBINE = "e b c! d, b t! k!, b t! k!, b t! k! -> b t! d"


def top_k(
    scores: Array, choices: int, capacity: int, run: RunState | None = None, **attributes: int
) -> list[Array]:
    shape = (*scores.shape[:2], choices)
    return call(
        "top_k", TOP_K, [scores], [whole_shard(shape, kind) for kind in (DTYPE, "int32", "int32")],
        attributes={"capacity": capacity, **attributes}, run=run or run_state(),
    )  # fmt: skip


def there_and_back(
    x: Array, expert: Array, place: Array, weight: Array, experts: int, capacity: int
) -> tuple[Array, Array]:
    """Values that lie at the experts, and those that come back."""
    samples, _, features = x.shape
    form = whole_shard((experts, samples, capacity, features), DTYPE)
    (sent,) = call("dispatch", DISPATCH, [x, expert, place], [form])
    (back,) = call("combine", COMBINE, [sent, expert, place, weight], [whole_shard(x.shape, DTYPE)])
    return sent, back


@pytest.mark.parametrize("choices", [1, 2, 4])
def test_weights_that_add_up_to_one_bring_every_token_back_where_none_is_dropped(choices: int):
    rng = np.random.default_rng(0)
    x, scores = rng.standard_normal((3, 7, 5)), rng.standard_normal((3, 7, 4))
    value, expert, place = top_k(scores, choices, capacity=7)
    weight = np.exp(value) / np.exp(value).sum(2, keepdims=True)
    sent, back = there_and_back(x, expert, place, weight, 4, 7)
    np.testing.assert_allclose(back, x, atol=1e-12)
    np.testing.assert_allclose(sent.sum((0, 2)), choices * x.sum(1), atol=1e-12)


def test_first_choices_get_a_place_before_second_ones_and_who_finds_none_is_dropped():
    # every token wants expert 0 most; tokens 1 and 2 want expert 1 next, tokens 0 and 3 expert 2
    scores = np.array([[[9, 1, 2], [8, 2, 1], [7, 2, 1], [6, 1, 2]]], float)
    _, expert, place = top_k(scores, 2, capacity=2)
    np.testing.assert_array_equal(expert[0], [[0, 2], [0, 1], [0, 1], [0, 2]])
    np.testing.assert_array_equal(place[0], [[0, 0], [1, 0], [-1, 1], [-1, 1]])
    _, _, tight = top_k(scores, 2, capacity=1)
    np.testing.assert_array_equal(tight[0], [[0, 0], [-1, 0], [-1, -1], [-1, -1]])
    x = np.arange(1.0, 9.0).reshape(1, 4, 2)
    sent, back = there_and_back(x, expert, tight, np.ones((1, 4, 2)), 3, 1)
    np.testing.assert_array_equal(sent[:, 0, 0], x[0, [0, 1, 0]])
    np.testing.assert_array_equal(back[0], [2 * x[0, 0], x[0, 1], [0, 0], [0, 0]])


def test_of_equal_scores_the_lower_expert_is_chosen():
    _, expert, _ = top_k(np.zeros((1, 2, 5)), 3, capacity=2)
    np.testing.assert_array_equal(expert[0], [[0, 1, 2]] * 2)


def test_only_experts_of_the_best_groups_are_chosen():
    # The second group wins by the sum of two, though the first holds the largest score.
    scores = np.array([[[9.0, 0, 0, 6, 5, 1]]])
    _, expert, _ = top_k(scores, 2, capacity=1, groups=2, kept_groups=1)
    np.testing.assert_array_equal(expert[0, 0], [3, 4])


def test_the_smallest_margin_of_a_run_is_kept():
    run = run_state()
    assert run.smallest_margin == inf
    top_k(np.array([[[3.0, 1, 2], [0, 4, 2.5]]]), 1, 2, run)
    assert run.smallest_margin == 1.0
    top_k(np.array([[[9.0, 1, 2]]]), 2, 2, run)
    assert run.smallest_margin == 1.0
    top_k(np.array([[[9.0, 0, -1, 6, 2.75, 1]]]), 2, 2, run, groups=2, kept_groups=1)
    assert run.smallest_margin == 0.25
    top_k(np.array([[[9.0, 8.9]]]), 2, 2, run)
    assert run.smallest_margin == 0.25


def test_more_choices_than_experts_in_the_kept_groups_are_refused():
    with pytest.raises(ExecutorError, match="chooses 4 experts of 3 that it may choose"):
        top_k(np.zeros((1, 2, 6)), 4, 1, groups=2, kept_groups=1)
