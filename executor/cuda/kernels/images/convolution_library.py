"""Library calls of convolution: an option of the vendor's, asked before kernels of ours.

Images lie in memory in the order b y x c and weights in the order n i j c, with c of all groups
innermost in an image and c of one group in a weight. Shape legend: see `windows.py`.
"""

from millrace.executor.cuda.calls import Calls, Convolution, Operand, Strided, prefer, read, write
from millrace.executor.cuda.kernels.images.windows import ConvolutionSizes
from millrace.executor.cuda.kernels.matmul import arithmetic_of
from millrace.executor.kernels.context import RunState

FORWARD, GRAD_INPUT, GRAD_WEIGHT = "forward", "grad_input", "grad_weight"
LIBRARY_DTYPES = ("bfloat16", "float16")
"""Dtypes of which the library's convolutions run on matrix units and add up in float32."""

_OPERANDS = {
    FORWARD: (read(0), read(1), write(0)),
    GRAD_INPUT: (write(0), read(1), read(0)),
    GRAD_WEIGHT: (read(0), write(0), read(1)),
}
"""Image, weight and output, by direction, as the ops `conv…` list them."""


def with_library(
    direction: str,
    sizes: ConvolutionSizes,
    run: RunState,
    calls: Calls,
    operands: tuple[Operand, Operand, Operand] | None = None,
) -> Calls:
    """Choice between the vendor's library and `calls`, or `calls` where it has no form.

    Parameters
    ----------
    direction
        `FORWARD` (of (x, w)), `GRAD_INPUT` (of (dy, w)) or `GRAD_WEIGHT` (of (x, dy)).
    sizes
        Sizes of the convolution here; `sizes.c` and `sizes.n` are the channels of one group.
    run
        Run, which says what products of float32 are computed in.
    calls
        Kernels of ours that compute the same on the same memory.
    operands
        Places of image, weight and output; None: where the op of that direction lists them.
    """
    if sizes.dtype not in LIBRARY_DTYPES or not sizes.b * sizes.places:
        return calls
    places = operands or _OPERANDS[direction]
    return prefer(
        convolution_call(direction, sizes, places, arithmetic_of(sizes.dtype, run)), calls
    )


def convolution_call(
    direction: str,
    sizes: ConvolutionSizes,
    operands: tuple[Operand, Operand, Operand],
    arithmetic: str,
) -> Convolution:
    """The library's call on image, weight and output in channels-last order."""
    image, weight, output = operands
    y, x = sizes.y, sizes.x
    return Convolution(
        direction=direction,
        image=_channels_last(image, sizes.dtype, sizes.g * sizes.c, y.input_size, x.input_size),
        weight=_channels_last(weight, sizes.dtype, sizes.c, y.size, x.size),
        output=_channels_last(output, sizes.dtype, sizes.g * sizes.n, y.output_size, x.output_size),
        b=sizes.b,
        c=sizes.c,
        n=sizes.g * sizes.n,
        groups=sizes.g,
        image_size=(y.input_size, x.input_size),
        output_size=(y.output_size, x.output_size),
        window=(y.size, x.size),
        stride=(y.stride, x.stride),
        pad=(y.pad, x.pad),
        dilation=(y.dilation, x.dilation),
        arithmetic=arithmetic,
    )


def _channels_last(operand: Operand, dtype: str, channels: int, rows: int, columns: int) -> Strided:
    """Tensor [samples (or filters), channels, rows, columns] in memory of b y x c order."""
    return Strided(operand, dtype, (rows * columns * channels, 1, columns * channels, channels))
