"""Windows over an image: which input every tap of every window reads.

Shape legend: b samples, y x rows and columns of the input, j i of the output, q p of a window.
"""

from collections.abc import Iterator
from typing import NamedTuple

from millrace.executor.kernels.context import KernelContext


class Tap(NamedTuple):
    """One place of a window: outputs [j, i] whose windows have it in the image, inputs [y, x]."""

    row: int
    column: int
    outputs: tuple[slice, slice]
    inputs: tuple[slice, slice]


def taps(
    context: KernelContext, size: tuple[int, int], given: tuple[int, int], made: tuple[int, int]
) -> list[Tap]:
    """Return the taps of windows, row by row, without those that lie in the padding everywhere.

    Parameters
    ----------
    context
        Holds strides, padding and dilation.
    size, given, made
        Rows and columns of a window, of the input and of the output.
    """
    found = []
    across = list(_reaches(context, "x", size[1], given[1], made[1]))
    for row, outputs_y, inputs_y in _reaches(context, "y", size[0], given[0], made[0]):
        for column, outputs_x, inputs_x in across:
            found.append(Tap(row, column, (outputs_y, outputs_x), (inputs_y, inputs_x)))
    return found


def _reaches(
    context: KernelContext, dim: str, size: int, given: int, made: int
) -> Iterator[tuple[int, slice, slice]]:
    """Yield the taps of one dim with the outputs and inputs that meet there."""
    stride, pad = (int(context.attributes[f"{name}_{dim}"]) for name in ("stride", "pad"))
    dilation = int(context.attributes.get(f"dilation_{dim}", 1))
    for tap in range(size):
        offset = tap * dilation - pad
        first = max(0, -(offset // stride))
        stop = min(made, (given - 1 - offset) // stride + 1)
        if first < stop:
            start = first * stride + offset
            end = (stop - 1) * stride + offset + 1
            yield tap, slice(first, stop), slice(start, end, stride)
