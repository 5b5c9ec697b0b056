"""Windows over an image: the input that every tap of every window reads.

Shape legend: b samples, y x rows and columns of the input, j i of the output, q p of a window.
"""

from collections.abc import Iterator
from typing import NamedTuple

from millrace.executor.kernels.context import KernelContext


class WindowTap(NamedTuple):
    """One place of a window: outputs [j, i] whose windows have it in the image, inputs [y, x]."""

    row: int
    column: int
    outputs: tuple[slice, slice]
    inputs: tuple[slice, slice]


def taps(
    context: KernelContext, size: tuple[int, int], given: tuple[int, int], out_size: tuple[int, int]
) -> list[WindowTap]:
    """Taps of windows, row by row, without those that lie in the padding everywhere.

    Parameters
    ----------
    context
        Holds strides, padding and dilation.
    size, given, out_size
        Rows and columns of a window, of the input and of the output.
    """
    window_taps = []
    across = list(_reaches(context, "x", size[1], given[1], out_size[1]))
    for row, outputs_y, inputs_y in _reaches(context, "y", size[0], given[0], out_size[0]):
        for column, outputs_x, inputs_x in across:
            window_taps.append(WindowTap(row, column, (outputs_y, outputs_x), (inputs_y, inputs_x)))
    return window_taps


def _reaches(
    context: KernelContext, dim: str, size: int, given: int, out_size: int
) -> Iterator[tuple[int, slice, slice]]:
    """Yield the taps of one dim with the outputs and inputs that meet there."""
    stride, pad = (int(context.attributes[f"{name}_{dim}"]) for name in ("stride", "pad"))
    dilation = int(context.attributes.get(f"dilation_{dim}", 1))
    for tap in range(size):
        offset = tap * dilation - pad
        first = max(0, -(offset // stride))
        stop = min(out_size, (given - 1 - offset) // stride + 1)
        if first < stop:
            start = first * stride + offset
            end = (stop - 1) * stride + offset + 1
            yield tap, slice(first, stop), slice(start, end, stride)
