"""Dims of an op's local shards: the labels of every operand, and their sizes here."""

from dataclasses import dataclass

from millrace.executor.kernels.context import KernelContext
from millrace.models.labels import Operand, bind, parse

Dims = tuple[str, ...]
"""Labels of an operand from the outermost to the innermost, groups taken apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandDims:
    """Labels of every operand and the local size of every label."""

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    sizes: dict[str, int]


def _flat(operand: Operand) -> Dims:
    return tuple(label for dim in operand for label in dim)


def bind_operand_dims(context: KernelContext) -> OperandDims:
    """Bind the op's labels to the shapes of its shards; raises ModelError where they disagree."""
    expression = parse(context.labels)
    return OperandDims(
        inputs=tuple(_flat(operand) for operand in expression.inputs),
        outputs=tuple(_flat(operand) for operand in expression.outputs),
        sizes=bind(
            expression,
            [shard.shape for shard in context.inputs],
            [shard.shape for shard in context.outputs],
            op=context.name,
        ),
    )
