"""`slice` and `pad`: the local halves of boxing, over every rank of a mesh."""

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Shard
from tests.executor.boxing_calls import (
    PADDED,
    SLICED,
    Boxed,
    assert_each_rank_keeps_its_shard,
    assert_parts_add_up,
    assert_the_largest_is_the_whole,
)
from tests.executor.kernel_calls import call


@pytest.mark.parametrize("boxed", SLICED, ids=str)
def test_slice_keeps_each_ranks_shard(boxed: Boxed):
    assert_each_rank_keeps_its_shard(call, boxed)


@pytest.mark.parametrize("boxed", PADDED, ids=str)
def test_padded_parts_add_up_to_the_whole(boxed: Boxed):
    assert_parts_add_up(call, boxed)


def test_padding_for_a_maximum_uses_minus_infinity():
    assert_the_largest_is_the_whole(call)


def test_slice_refuses_a_shard_outside_its_input():
    inner = Shard(global_shape=(8,), offsets=(0,), shape=(4,), dtype="float64")
    outer = Shard(global_shape=(8,), offsets=(4,), shape=(4,), dtype="float64")
    with pytest.raises(ExecutorError, match="not inside"):
        call("slice", "", [np.zeros(4)], [outer], input_shards=[inner])
