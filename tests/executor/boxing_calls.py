"""`slice` and `pad`, the local halves of boxing, called on every rank of a mesh of two by two."""

from collections.abc import Callable
from itertools import product

import numpy as np

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

SHAPE, AXES = (4, 8), (2, 2)
COORDINATES = tuple(product(range(2), range(2)))
SBPS = (BROADCAST, split(0), split(1))
Boxed = tuple[str, NdSbp, NdSbp]

SLICED: list[Boxed] = [("slice", (BROADCAST, BROADCAST), after) for after in product(SBPS, SBPS)]
# An axis inside one that splits the same dim may leave it only after that one has.
PADDED: list[Boxed] = [
    ("pad", before, tuple(PARTIAL_SUM if axis in which else s for axis, s in enumerate(before)))
    for before in product(SBPS, SBPS)
    for which in ((0,), (1,), (0, 1))
    if not (which == (0,) and before[0].is_split and before[0] == before[1])
]
FOR_MAXIMUM: Boxed = ("pad", (split(0), BROADCAST), (PARTIAL_MAX, BROADCAST))


def shard(sbp: NdSbp, coordinate: tuple[int, ...]) -> Shard:
    return Shard(
        global_shape=SHAPE,
        offsets=shard_offsets(SHAPE, sbp, AXES, coordinate),
        shape=local_shape(SHAPE, sbp, AXES),
        dtype="float64",
    )


def boxing(before: NdSbp, after: NdSbp, coordinate: tuple[int, ...]) -> dict[str, object]:
    """Fields of the context of a rank."""
    return {
        "input_sbp": (before,),
        "output_sbp": (after,),
        "coordinate": coordinate,
        "axis_sizes": AXES,
    }


def region(where: Shard) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(where.offsets, where.shape, strict=True))


def box(fire: Callable[..., list[Array]], x: Array, boxed: Boxed) -> list[tuple[Shard, Array]]:
    """Every rank's shard of the output, of its part of x, and what it gets."""
    kind, before, after = boxed
    outputs = []
    for coordinate in COORDINATES:
        source, target = shard(before, coordinate), shard(after, coordinate)
        (output,) = fire(
            kind, "", [x[region(source)].copy()], [target], input_shards=[source],
            **boxing(before, after, coordinate),
        )  # fmt: skip
        outputs.append((target, output))
    return outputs


def assert_each_rank_keeps_its_shard(fire: Callable[..., list[Array]], boxed: Boxed) -> None:
    x = np.arange(32.0).reshape(SHAPE)
    for target, output in box(fire, x, boxed):
        np.testing.assert_array_equal(output, x[region(target)])


def assert_parts_add_up(fire: Callable[..., list[Array]], boxed: Boxed) -> None:
    x, total = np.random.default_rng(0).standard_normal(SHAPE), np.zeros(SHAPE)
    for target, output in box(fire, x, boxed):
        total[region(target)] += output / 2 ** sum(sbp == BROADCAST for sbp in boxed[2])
    np.testing.assert_allclose(total, x)


def assert_the_largest_is_the_whole(fire: Callable[..., list[Array]]) -> None:
    """Padding for a maximum is minus infinity."""
    x = -np.arange(1.0, 33).reshape(SHAPE)
    outputs = [output for _, output in box(fire, x, FOR_MAXIMUM)]
    np.testing.assert_array_equal(np.max(outputs, axis=0), x)
