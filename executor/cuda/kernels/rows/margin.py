"""Angular margin and logistic loss: calls of the losses besides cross-entropy.

A target below 0 is no target, as in `loss.py`.
"""

from math import cos, sin

import numpy as np

from millrace.executor.cuda.calls import (
    CONTROL,
    Calls,
    Scalar,
    elementwise,
    read,
    same_calls,
    write,
)
from millrace.executor.cuda.kernels.rows.loss import loss_scaled
from millrace.executor.cuda.kernels.rows.vectorized_rows import (
    over_rows,
    require_one_dtype,
    templated,
)
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.rows import margin

SOURCE = "margin"

COSINE_MAX = margin.COSINE_MAX | {"float16": 1 - 2**-12, "bfloat16": 1 - 2**-9}
"""Target cosines are brought below this: at 1 the slope of the angle is infinite.

In 16 bits half a step below 1, which is the least that may have been rounded to 1.
"""


def logistic_loss(context: KernelContext) -> Calls:
    """Calls of log(1 + exp(x)) − target · x of (logits, targets); 0 where a target is negative."""
    (logits, targets), (loss,) = context.inputs, context.outputs
    return same_calls(
        elementwise(
            SOURCE, templated("logistic_loss", (logits, targets, loss)), loss.size,
            read(0), read(1), write(0),
        )
    )  # fmt: skip


def logistic_loss_grad(context: KernelContext) -> Calls:
    """Calls of sigmoid(x) − target of (logits, targets); 0 where a target is negative.

    With `loss_scaled` it is multiplied by the loss scale of `Control`.
    """
    logits, targets = context.inputs
    require_one_dtype(context, logits, *context.outputs)
    return same_calls(
        elementwise(
            SOURCE, templated("logistic_loss_grad", (logits, targets)), logits.size,
            read(0), read(1), write(0), CONTROL, loss_scaled(context),
        )
    )  # fmt: skip


def arc_margin(context: KernelContext) -> Calls:
    """Calls of scale · cosine, but scale · cos(angle + margin) at the target's class.

    The formulas are those of the NumPy kernel; classes may be split.
    """
    cosine, targets = context.inputs
    require_one_dtype(context, cosine, *context.outputs)
    return same_calls(
        over_rows(
            SOURCE, templated("arc_margin", (cosine, targets)), cosine,
            read(0), read(1), write(0), *_margins(context),
        )
    )  # fmt: skip


def arc_margin_grad(context: KernelContext) -> Calls:
    """Calls of the gradient of the cosine, of (cosine, targets, dy)."""
    cosine, targets, dy = context.inputs
    require_one_dtype(context, cosine, dy, *context.outputs)
    return same_calls(
        over_rows(
            SOURCE, templated("arc_margin_grad", (cosine, targets)), cosine,
            read(0), read(1), read(2), write(0), *_margins(context),
        )
    )  # fmt: skip


def _margins(context: KernelContext) -> tuple[Scalar, ...]:
    """Scale, the margin's cosine and sine, the largest cosine, and the first class here."""
    angle = context.number("margin", 0.5)
    cosine = context.inputs[0]
    numbers = (context.number("scale", 64.0), cos(angle), sin(angle), COSINE_MAX[cosine.dtype])
    return *(np.float64(number) for number in numbers), np.int64(cosine.offsets[-1])
