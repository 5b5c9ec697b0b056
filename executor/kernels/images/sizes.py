"""Sizes of a convolution on its shards, by the letters of `convolution.py`'s shape legend."""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.images.order import convolved
from millrace.executor.kernels.images.windows import WindowTap, taps

COLUMNS_ELEMENTS = 1 << 19
"""Elements of the columns that are made at a time, at least one sample's: 2 MiB in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSizes:
    """Sizes here; `step` samples are taken at a time."""

    b: int
    g: int
    c: int
    n: int
    image: tuple[int, int]
    output: tuple[int, int]
    window: tuple[int, int]
    step: int
    dtype: str
    taps: tuple[WindowTap, ...]
    pointwise: bool
    channels_last: bool

    @property
    def places(self) -> int:
        """Places of a sample's output."""
        return self.output[0] * self.output[1]

    @property
    def depth(self) -> int:
        """Values under a window, of a group."""
        return self.c * self.window[0] * self.window[1]

    def parts(self) -> Iterator[slice]:
        """Cut the samples."""
        for start in range(0, self.b, self.step):
            yield slice(start, min(start + self.step, self.b))


def sizes_of(context: KernelContext) -> ImageSizes:
    """Read the sizes off the shards; raises ExecutorError where dims are in another order."""
    operands = convolved(context)
    (n, c), window = _apart(operands.weight.shape, operands.channels, operands.rows)
    (b, channels), given = _apart(operands.image.shape, operands.channels, operands.rows)
    _, places = _apart(operands.output.shape, operands.channels, operands.rows)
    groups = channels // c
    plain = all(
        context.attributes[f"{name}_{dim}"] == usual
        for name, usual in (("stride", 1), ("pad", 0))
        for dim in "yx"
    )
    sample = groups * c * window[0] * window[1] * places[0] * places[1]
    return ImageSizes(
        b=b,
        g=groups,
        c=c,
        n=n // groups,
        image=given,
        output=places,
        window=window,
        step=max(1, min(b, COLUMNS_ELEMENTS // max(sample, 1))),
        dtype=operands.image.dtype,
        taps=tuple(taps(context, window, given, places)),
        pointwise=window == (1, 1) and plain,
        channels_last=operands.is_channels_last,
    )


def _apart(
    shape: tuple[int, ...], channels: int, rows: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Sizes of dim 0 and of the channels, and those of rows and columns."""
    return (shape[0], shape[channels]), (shape[rows], shape[rows + 1])
