"""T5's relative bias: a learned number per head and bucket of distances, and its gradient.

H heads, T queries here (from the output's offset on), S keys (all), M buckets. The bias depends on
the distance key − query alone, so it is worked out once per distance: row t of the bias is a window
of S out of the T + S − 1 distances, which begins one earlier with every query.

Notes
-----
Raffel et al., "Exploring the limits of transfer learning", 2020, section 2.1: half of the buckets
hold one distance each, the others grow with the logarithm up to `max_distance`; where
`bidirectional`, keys behind the query have buckets of their own.
"""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from millrace.executor.kernels.context import Array, Kernel, KernelContext


def bucket_of(distance: Array, buckets: int, *, bidirectional: bool, max_distance: int) -> Array:
    """Bucket of every distance key − query."""
    bucket = np.zeros(distance.shape, np.int64)
    if bidirectional:
        buckets //= 2
        bucket[distance > 0] = buckets
        far = np.abs(distance)
    else:
        far = np.maximum(-distance, 0)
    exact = buckets // 2
    # a distance on a border (a power of the ratio) falls into the further bucket despite rounding
    steps = np.log(np.maximum(far, 1) / exact) / log(max_distance / exact) * (buckets - exact)
    wide = exact + np.floor(steps + 1e-6).astype(np.int64)
    return bucket + np.where(far < exact, far, np.minimum(wide, buckets - 1))


class Distances(NamedTuple):
    """Sizes, and the bucket of every distance from the smallest to the largest."""

    heads: int
    queries: int
    keys: int
    bucket: Array


def distances(
    context: KernelContext, bias_shape: tuple[int, ...], offsets: Sequence[int]
) -> Distances:
    """Distances of the shard of a bias of this shape and these offsets."""
    heads, queries, keys = bias_shape
    table = context.inputs[0] if context.kind == "relative_bias" else context.outputs[0]
    smallest = offsets[2] - (offsets[1] + queries - 1)
    return Distances(
        heads=heads,
        queries=queries,
        keys=keys,
        bucket=bucket_of(
            smallest + np.arange(queries + keys - 1),
            table.shape[0],
            bidirectional=bool(context.attributes["bidirectional"]),
            max_distance=int(context.attributes["max_distance"]),
        ),
    )


def relative_bias(context: KernelContext) -> Kernel:
    """Kernel of the bias [H, T, S] of a table [M, H]."""
    output = context.outputs[0]
    shard_distances = distances(context, output.shape, output.offsets)
    by_distance = np.empty((shard_distances.heads, shard_distances.bucket.size), output.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.take(inputs[0].T, shard_distances.bucket, axis=1, out=by_distance, mode="clip")
        windows = sliding_window_view(by_distance, shard_distances.keys, axis=1)
        np.copyto(outputs[0], windows[:, ::-1])

    return kernel


def relative_bias_grad(context: KernelContext) -> Kernel:
    """Kernel of the gradient of the table [M, H]: that of the bias added up by bucket."""
    given, table = context.inputs[0], context.outputs[0]
    shard_distances = distances(context, given.shape, given.offsets)
    by_distance = np.empty((shard_distances.bucket.size, shard_distances.heads), table.dtype)
    members = (np.arange(table.shape[0])[:, None] == shard_distances.bucket).astype(table.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        by_distance.fill(0)
        for query in range(shard_distances.queries):
            first = shard_distances.queries - 1 - query
            window = by_distance[first : first + shard_distances.keys].T
            np.add(window, inputs[0][:, query], out=window)
        np.matmul(members, by_distance, out=outputs[0])

    return kernel
