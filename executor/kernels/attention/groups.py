"""Groups of heads, put in where labels have none: one head, or one head of keys for all queries.

Kernels take keys as [b, s, g, d]. Where keys have no g, it is put in behind the tokens of every
operand, with size 1: the same elements in the same order.
"""

from collections.abc import Sequence
from dataclasses import replace

from millrace.executor.kernels.context import Array, Kernel, KernelContext, KernelFactory, Shard
from millrace.models.labels import Operand, parse, write
from millrace.planner.sbp import NdSbp, split

GROUP_DIM = 2  # the place of g
BIAS = 3  # what is added to the scores, and its gradient, lies otherwise


def grouped(context: KernelContext) -> KernelContext:
    """Context with a group put in where keys have none; else the context itself."""
    if len(context.inputs[1].shape) > GROUP_DIM + 1:
        return context
    expression = parse(context.labels)
    used = {label for operand in expression.operands for dim in operand for label in dim}
    label = next("g" * n for n in range(1, len(used) + 2) if "g" * n not in used)
    biased = context.kind.startswith("biased")

    def labelled(operands: Sequence[Operand]) -> tuple[Operand, ...]:
        return tuple(
            operand
            if biased and index == BIAS
            else (*operand[:GROUP_DIM], (label,), *operand[GROUP_DIM:])
            for index, operand in enumerate(operands)
        )

    def put_in(shards: Sequence[Shard]) -> tuple[Shard, ...]:
        return tuple(
            shard if biased and index == BIAS else _with_group(shard)
            for index, shard in enumerate(shards)
        )

    def moved(sbps: Sequence[NdSbp]) -> tuple[NdSbp, ...]:
        return tuple(
            sbp if biased and index == BIAS else _shifted_sbp(sbp) for index, sbp in enumerate(sbps)
        )

    labels = write(
        labelled(expression.inputs), labelled(expression.outputs), expression.whole_labels
    )
    return replace(
        context,
        labels=labels,
        inputs=put_in(context.inputs),
        outputs=put_in(context.outputs),
        input_sbp=moved(context.input_sbp),
        output_sbp=moved(context.output_sbp),
    )


def with_groups(factory: KernelFactory) -> KernelFactory:
    """Factory for operands without groups too."""

    def make(context: KernelContext) -> Kernel:
        seen = grouped(context)
        kernel = factory(seen)
        if seen is context:
            return kernel

        def regrouped(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            kernel(
                firing,
                [a.reshape(shard.shape) for a, shard in zip(inputs, seen.inputs, strict=True)],
                [a.reshape(shard.shape) for a, shard in zip(outputs, seen.outputs, strict=True)],
            )

        return regrouped

    return make


def _with_group(shard: Shard) -> Shard:
    def put(row: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*row[:GROUP_DIM], value, *row[GROUP_DIM:])

    return replace(
        shard,
        global_shape=put(shard.global_shape, 1),
        offsets=put(shard.offsets, 0),
        shape=put(shard.shape, 1),
    )


def _shifted_sbp(sbp: NdSbp) -> NdSbp:
    """SBP with dims behind the group counted on by one."""
    return tuple(
        split(axis_sbp.dim + 1) if axis_sbp.is_split and axis_sbp.dim >= GROUP_DIM else axis_sbp
        for axis_sbp in sbp
    )
