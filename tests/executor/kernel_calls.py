"""Calling kernels in tests: on whole tensors, and shard by shard with the parts put together."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from millrace.executor.kernels import KernelContext, RunState, Shard, make_kernel
from millrace.executor.kernels.context import Array, whole_shard
from millrace.models.labels import dim_of, parse

Attributes = Mapping[str, int | float | str | bool]


def run_state(**changes: object) -> RunState:
    """State of a run of one microbatch of 8 samples a step."""
    settings: dict[str, object] = {
        "seed": 0,
        "dataset": None,
        "global_batch": 8,
        "microbatches": 1,
        "batch": 8,
    }
    return RunState(**(settings | changes))  # type: ignore[arg-type]


def call(
    kind: str,
    labels: str,
    inputs: Sequence[Array],
    outputs: Sequence[Shard],
    *,
    input_shards: Sequence[Shard] | None = None,
    attributes: Attributes | None = None,
    **more: object,
) -> list[Array]:
    """Make one kernel and fire it twice, into outputs that hold rubbish; return the outputs.

    The second firing shows that nothing of the first is left in the scratch. Kernels that keep
    state are not called this way.
    """
    shards = input_shards or [whole_shard(array.shape, str(array.dtype)) for array in inputs]
    kernel = make_kernel(
        KernelContext(
            kind=kind,
            name=f"test.{kind}",
            labels=labels,
            attributes=attributes or {},
            inputs=tuple(shards),
            outputs=tuple(outputs),
            **({"run": run_state()} | more),  # type: ignore[arg-type]
        )
    )
    arrays = [np.full(shard.shape, 77, shard.dtype) for shard in outputs]
    kernel(0, inputs, arrays)
    kernel(0, inputs, arrays)
    return arrays


def shard_of(
    operand: tuple[tuple[str, ...], ...],
    shape: tuple[int, ...],
    dtype: str,
    splits: Mapping[str, int],
    place: Mapping[str, int],
) -> tuple[Shard, tuple[slice, ...]]:
    """Shard of an operand and its region, at one place of the split labels."""
    offsets, local = [0] * len(shape), list(shape)
    for label, parts in splits.items():
        dim = dim_of(operand, label)
        if dim is not None:
            local[dim] = shape[dim] // parts
            offsets[dim] = place[label] * local[dim]
    region = tuple(slice(o, o + n) for o, n in zip(offsets, local, strict=True))
    shard = Shard(global_shape=shape, offsets=tuple(offsets), shape=tuple(local), dtype=dtype)
    return shard, region


def call_sharded(
    kind: str,
    labels: str,
    inputs: Sequence[Array],
    outputs: Sequence[Shard],
    splits: Mapping[str, int],
    *,
    attributes: Attributes | None = None,
    reduction: str | None = None,
    fire: Callable[..., list[Array]] = call,
) -> list[Array]:
    """Fire the kernel on every shard of the split labels and put the results together.

    An output that has a label is cut along it; over one that lacks it the partial results are
    added up, or their maximum taken.
    """
    expression = parse(labels)
    start = -np.inf if reduction == "max" else 0
    totals = [np.full(shard.shape, start, shard.dtype) for shard in outputs]
    for place in product(*(range(parts) for parts in splits.values())):
        place_by_label = dict(zip(splits, place, strict=True))
        input_pieces = [
            shard_of(operand, array.shape, str(array.dtype), splits, place_by_label)
            for operand, array in zip(expression.inputs, inputs, strict=True)
        ]
        output_pieces = [
            shard_of(operand, shard.shape, shard.dtype, splits, place_by_label)
            for operand, shard in zip(expression.outputs, outputs, strict=True)
        ]
        results = fire(
            kind,
            labels,
            [
                np.ascontiguousarray(array[region]).reshape(shard.shape)
                for array, (shard, region) in zip(inputs, input_pieces, strict=True)
            ],
            [shard for shard, _ in output_pieces],
            input_shards=[shard for shard, _ in input_pieces],
            attributes=attributes,
        )
        join = np.maximum if reduction == "max" else np.add
        for total, result, (_, region) in zip(totals, results, output_pieces, strict=True):
            total[region] = join(total[region], result)
    return totals
