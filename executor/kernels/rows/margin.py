"""Angular margin and logistic loss: the losses besides cross-entropy.

A target below 0 is no target, as in `loss.py`.
"""

from collections.abc import Sequence
from math import cos, sin

import numpy as np

from millrace.executor.kernels.chunks import chunks, rows_of, scratch
from millrace.executor.kernels.context import Array, Kernel, KernelContext
from millrace.executor.kernels.elementwise.functions import sigmoid, softplus
from millrace.executor.kernels.rows.loss import targets_here

COSINE_MAX = {"float32": 1 - 1e-6, "float64": 1 - 1e-12}
"""Target cosines are brought below this: at 1 the slope of the angle is infinite."""


def logistic_loss(context: KernelContext) -> Kernel:
    """Kernel of log(1 + exp(x)) − target · x from (logits, targets); 0 for a negative target."""
    size = context.outputs[0].size
    (buffer,) = scratch(1, size, context.inputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        logits, targets, loss = (array.reshape(-1) for array in (*inputs, *outputs))
        for part in chunks(size):
            spare = buffer[: part.stop - part.start]
            softplus(logits[part], loss[part], (spare,))
            np.multiply(logits[part], targets[part], out=spare, casting="same_kind")
            np.subtract(loss[part], spare, out=loss[part])
            loss[part][targets[part] < 0] = 0

    return kernel


def logistic_loss_grad(context: KernelContext) -> Kernel:
    """Kernel of sigmoid(x) − target from (logits, targets); 0 for a negative target."""
    size = context.outputs[0].size

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        logits, targets, slope = (array.reshape(-1) for array in (*inputs, *outputs))
        with np.errstate(over="ignore"):
            for part in chunks(size):
                sigmoid(logits[part], slope[part], ())
                np.subtract(slope[part], targets[part], out=slope[part], casting="same_kind")
                slope[part][targets[part] < 0] = 0

    return kernel


def arc_margin(context: KernelContext) -> Kernel:
    """Kernel of scale · cosine, but scale · cos(angle + margin) at the target's class.

    Notes
    -----
    Deng et al., "ArcFace", 2019, equation 3. With c the cosine, cos(angle + margin) =
    c cos(margin) − √(1 − c²) sin(margin). This is taken beyond angle + margin = π too, where the
    cosine rises again; there is no second rule for such angles. Classes may be split.
    """
    rows, columns, _ = rows_of(context)
    first = context.inputs[0].offsets[-1]
    scale, margin = context.number("scale", 64.0), context.number("margin", 0.5)
    largest = COSINE_MAX[context.inputs[0].dtype]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.multiply(inputs[0], scale, out=outputs[0])
        _, places = targets_here(inputs[1].reshape(rows), first, columns)
        cosine = np.clip(inputs[0].reshape(-1)[places], -largest, largest)
        turned = cosine * cos(margin) - np.sqrt(1 - cosine * cosine) * sin(margin)
        outputs[0].reshape(-1)[places] = turned * scale

    return kernel


def arc_margin_grad(context: KernelContext) -> Kernel:
    """Kernel of the gradient of the cosine, from (cosine, targets, dy).

    At the target it is scale · dy · (cos(margin) + c sin(margin) / √(1 − c²)), with c brought
    below `COSINE_MAX` so that it stays finite.
    """
    rows, columns, _ = rows_of(context)
    first = context.inputs[0].offsets[-1]
    scale, margin = context.number("scale", 64.0), context.number("margin", 0.5)
    largest = COSINE_MAX[context.inputs[0].dtype]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.multiply(inputs[2], scale, out=outputs[0])
        _, places = targets_here(inputs[1].reshape(rows), first, columns)
        cosine = np.clip(inputs[0].reshape(-1)[places], -largest, largest)
        slope = cos(margin) + sin(margin) * cosine / np.sqrt(1 - cosine * cosine)
        outputs[0].reshape(-1)[places] *= slope

    return kernel
