"""`slice` and `pad`: the local halves of boxing, over every rank of a mesh."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, Shard
from millrace.planner.sbp import (
    BROADCAST,
    PARTIAL_MAX,
    PARTIAL_SUM,
    NdSbp,
    local_shape,
    shard_offsets,
    split,
)
from tests.executor.kernel_calls import call

SHAPE = (4, 8)
AXES = (2, 2)


def shard(sbp: NdSbp, coordinate: tuple[int, ...]) -> Shard:
    return Shard(
        global_shape=SHAPE,
        offsets=shard_offsets(SHAPE, sbp, AXES, coordinate),
        shape=local_shape(SHAPE, sbp, AXES),
        dtype="float64",
    )


def box(kind: str, x: Array, before: NdSbp, after: NdSbp) -> dict[tuple[int, ...], Array]:
    """Fire `kind` on every rank of the mesh; its input is the rank's part of x under `before`."""
    outputs = {}
    for coordinate in product(range(2), range(2)):
        input_shard, output_shard = shard(before, coordinate), shard(after, coordinate)
        outputs[coordinate] = call(
            kind,
            "",
            [part(x, input_shard)],
            [output_shard],
            input_shards=[input_shard],
            input_sbp=(before,),
            output_sbp=(after,),
            coordinate=coordinate,
            axis_sizes=AXES,
        )[0]
    return outputs


def part(x: Array, where: Shard) -> Array:
    region = tuple(slice(o, o + n) for o, n in zip(where.offsets, where.shape, strict=True))
    return x[region].copy()


whole_or_split = st.sampled_from([BROADCAST, split(0), split(1)])


@given(after=st.tuples(whole_or_split, whole_or_split))
@settings(max_examples=20, deadline=None)
def test_slice_keeps_each_ranks_shard(after: NdSbp):
    x = np.arange(32.0).reshape(SHAPE)
    outputs = box("slice", x, (BROADCAST, BROADCAST), after)
    for coordinate, array in outputs.items():
        np.testing.assert_array_equal(array, part(x, shard(after, coordinate)))


@given(
    before=st.tuples(whole_or_split, whole_or_split), which=st.sampled_from([(0,), (1,), (0, 1)])
)
@settings(max_examples=30, deadline=None)
def test_padded_parts_add_up_to_the_whole(before: NdSbp, which: tuple[int, ...]):
    # an axis inside one that splits the same dim may leave it only after that one has
    if which == (0,) and before[0].is_split and before[0] == before[1]:
        which = (0, 1)
    x = np.random.default_rng(0).standard_normal(SHAPE)
    after = tuple(PARTIAL_SUM if axis in which else sbp for axis, sbp in enumerate(before))
    outputs = box("pad", x, before, after)
    total = np.zeros(SHAPE)
    for coordinate, array in outputs.items():
        where = shard(after, coordinate)
        region = tuple(slice(o, o + n) for o, n in zip(where.offsets, where.shape, strict=True))
        copies = np.prod([
            2 for axis, sbp in enumerate(after) if sbp == BROADCAST
        ])  # fmt: skip
        total[region] += array / copies
    np.testing.assert_allclose(total, x)


def test_padding_for_a_maximum_uses_minus_infinity():
    x = -np.arange(1.0, 33).reshape(SHAPE)
    outputs = box("pad", x, (split(0), BROADCAST), (PARTIAL_MAX, BROADCAST))
    np.testing.assert_array_equal(np.max(list(outputs.values()), axis=0), x)


def test_slice_refuses_a_shard_outside_its_input():
    inner = Shard(global_shape=(8,), offsets=(0,), shape=(4,), dtype="float64")
    outer = Shard(global_shape=(8,), offsets=(4,), shape=(4,), dtype="float64")
    with pytest.raises(ExecutorError, match="not inside"):
        call("slice", "", [np.zeros(4)], [outer], input_shards=[inner])
