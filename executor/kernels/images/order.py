"""The order of an image's dims: channels before rows and columns, or after them.

A model says it by its labels: `b c y x` with weights `n c q p`, or `b y x c` with `n q p c`.
"""

from typing import NamedTuple

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import KernelContext, Shard
from millrace.models.labels import Operand, parse

_CONVOLUTIONS = {"conv": (0, 1, 2), "conv_grad_input": (2, 1, 0), "conv_grad_weight": (0, 2, 1)}
"""Places of the image, the weight and the output among the operands, outputs last."""


class Convolved(NamedTuple):
    """The shards of a convolution, and the places of the channels and of rows in their shapes."""

    image: Shard
    weight: Shard
    output: Shard
    channels: int
    rows: int

    @property
    def is_channels_last(self) -> bool:
        """True for `b y x c` and `n q p c`."""
        return self.channels == 3


def convolved(context: KernelContext) -> Convolved:
    """Tell the operands of a convolution or of a gradient apart, and their order.

    Raises
    ------
    ExecutorError
        The operands' dims are in other orders than the two, or in both.
    """
    operands = parse(context.labels).operands
    shards = (*context.inputs, *context.outputs)
    image, weight, output = (operands[index] for index in _CONVOLUTIONS[context.kind])
    orders = {_channels(image, weight), _channels(output, weight), _channels(weight, image, output)}
    if orders not in ({1}, {3}):
        raise ExecutorError(
            f"{context.kind} takes images `b c y x` with weights `n c q p`, or `b y x c` with "
            f"`n q p c`; found `{context.labels}`",
            actor=context.name,
        )
    (channels,) = orders
    x, w, y = (shards[index] for index in _CONVOLUTIONS[context.kind])
    return Convolved(x, w, y, channels=channels, rows=2 if channels == 1 else 1)


def _channels(of: Operand, shared: Operand, beside: Operand = ()) -> int:
    """Place of the last dim that has a label of `shared` and none of `beside`; -1 for none."""
    theirs = {label for dim in shared for label in dim}
    others = {label for dim in beside for label in dim}
    places = [
        position
        for position, dim in enumerate(of)
        if theirs.intersection(dim) and not others.intersection(dim)
    ]
    return places[-1] if len(of) == 4 and places else -1


def rows_of_pooling(context: KernelContext) -> int:
    """Place of rows in the shapes of an image and its windows; columns follow.

    Raises
    ------
    ExecutorError
        Rows and columns are no neighbours.
    """
    first, *_ = operands = parse(context.labels).operands
    fixed_dims = [
        position
        for position, dim in enumerate(first)
        if all(dim in operand for operand in operands)
    ]
    pooled_dims = [position for position in range(len(first)) if position not in fixed_dims]
    if len(first) != 4 or len(pooled_dims) != 2 or pooled_dims[1] != pooled_dims[0] + 1:
        raise ExecutorError(
            f"{context.kind} takes images `b c y x` or `b y x c`; found `{context.labels}`",
            actor=context.name,
        )
    return pooled_dims[0]
