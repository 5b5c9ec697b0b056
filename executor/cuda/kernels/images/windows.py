"""Windows over images in numbers, as `sources/windows.cuh` reads them.

Shape legend: b samples, g groups, c input and n output channels of a group, y x rows and columns of
the input, j i of the output, q p of a window.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, KernelContext
from millrace.executor.kernels.images.order import convolved


class WindowsStruct(NamedTuple):
    """The struct of that name, field by field."""

    groups: int
    depth: int
    target_channels: int
    rows: int
    columns: int
    target_rows: int
    target_columns: int
    samples: int
    places_y: int
    places_x: int
    window_y: int
    window_x: int
    first_y: int
    first_x: int
    place_y: int
    place_x: int
    tap_y: int
    tap_x: int
    target_first_y: int
    target_first_x: int
    target_y: int
    target_x: int
    weight_group: int
    weight_target: int
    weight_depth: int
    weight_first: int
    weight_y: int
    weight_x: int

    @property
    def places(self) -> int:
        """Places of all samples."""
        return self.samples * self.places_y * self.places_x

    @property
    def taps(self) -> int:
        """Values that a window reads."""
        return self.depth * self.window_y * self.window_x


class Dim(NamedTuple):
    """One dim of windows: sizes of input, output and window, and how the window moves."""

    input_size: int
    output_size: int
    size: int
    stride: int
    pad: int
    dilation: int

    @property
    def reach(self) -> int:
        """Inputs from a window's first tap to its last."""
        return (self.size - 1) * self.dilation + 1

    @property
    def cells(self) -> int:
        """Groups of `stride` inputs, from a window's first to the next one's."""
        return (self.input_size - 1 + self.pad) // self.stride + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionSizes:
    """Sizes of a convolution, by the letters of the shape legend."""

    b: int
    g: int
    c: int
    n: int
    y: Dim
    x: Dim
    dtype: str
    channels_last: bool = False

    @property
    def is_pointwise(self) -> bool:
        """True if every output place reads its own input place, in one group."""
        return self.g == 1 and all(
            (dim.size, dim.stride, dim.pad) == (1, 1, 0) for dim in (self.y, self.x)
        )

    @property
    def places(self) -> int:
        """Places of a sample's output."""
        return self.y.output_size * self.x.output_size


def dim_of_windows(context: KernelContext, dim: str, inputs: int, outputs: int, size: int) -> Dim:
    """One dim of windows, `y` or `x`, by the op's attributes."""
    stride, pad = (int(context.attributes[f"{name}_{dim}"]) for name in ("stride", "pad"))
    dilation = int(context.attributes.get(f"dilation_{dim}", 1))
    return Dim(inputs, outputs, size, stride, pad, dilation)


def sizes_of(context: KernelContext) -> ConvolutionSizes:
    """Sizes of a convolution or of a gradient, read off its shards.

    Raises
    ------
    ExecutorError
        Image, weight and output have different dtypes, or dims in another order than the two.
    """
    operands = convolved(context)
    image, weight, output = operands.image, operands.weight, operands.output
    dtypes = [shard.dtype for shard in (image, weight, output)]
    if len(set(dtypes)) > 1:
        raise ExecutorError(
            f"{context.kind} computes in one dtype; image, weight and output have "
            f"{', '.join(dtypes)}: cast them to one",
            actor=context.name,
        )
    channel_axis, rows = operands.channels, operands.rows
    n, c = weight.shape[0], weight.shape[channel_axis]
    groups = image.shape[channel_axis] // c
    y, x = (
        dim_of_windows(context, dim, *(shard.shape[side] for shard in (image, output, weight)))
        for dim, side in (("y", rows), ("x", rows + 1))
    )
    return ConvolutionSizes(
        b=image.shape[0],
        g=groups,
        c=c,
        n=n // groups,
        y=y,
        x=x,
        dtype=image.dtype,
        channels_last=operands.is_channels_last,
    )


def forward_windows(sizes: ConvolutionSizes) -> WindowsStruct:
    """Windows over the input, which make the output."""
    y, x, window = sizes.y, sizes.x, sizes.y.size * sizes.x.size
    apart = sizes.c if sizes.channels_last else 1
    return WindowsStruct(
        groups=sizes.g, depth=sizes.c, target_channels=sizes.n,
        rows=y.input_size, columns=x.input_size,
        target_rows=y.output_size, target_columns=x.output_size,
        samples=sizes.b, places_y=y.output_size, places_x=x.output_size,
        window_y=y.size, window_x=x.size,
        first_y=-y.pad, first_x=-x.pad, place_y=y.stride, place_x=x.stride,
        tap_y=y.dilation, tap_x=x.dilation,
        target_first_y=0, target_first_x=0, target_y=1, target_x=1,
        weight_group=sizes.n * sizes.c * window, weight_target=sizes.c * window,
        weight_depth=1 if sizes.channels_last else window, weight_first=0,
        weight_y=x.size * apart, weight_x=apart,
    )  # fmt: skip


def backward_windows(sizes: ConvolutionSizes) -> tuple[WindowsStruct, ...]:
    """Windows over the output's gradient, which make the input's, by class of inputs."""
    window = sizes.y.size * sizes.x.size
    apart = sizes.c if sizes.channels_last else 1
    return tuple(
        WindowsStruct(
            groups=sizes.g, depth=sizes.n, target_channels=sizes.c,
            rows=sizes.y.output_size, columns=sizes.x.output_size,
            target_rows=sizes.y.input_size, target_columns=sizes.x.input_size,
            samples=sizes.b, places_y=y.places, places_x=x.places,
            window_y=y.taps, window_x=x.taps,
            first_y=y.first, first_x=x.first, place_y=1, place_x=1, tap_y=y.step, tap_x=x.step,
            target_first_y=y.rest, target_first_x=x.rest,
            target_y=sizes.y.stride, target_x=sizes.x.stride,
            weight_group=sizes.n * sizes.c * window,
            weight_target=1 if sizes.channels_last else window,
            weight_depth=sizes.c * window, weight_first=(y.tap * sizes.x.size + x.tap) * apart,
            weight_y=y.tap_step * sizes.x.size * apart, weight_x=x.tap_step * apart,
        )
        for y in _classes(sizes.y)
        for x in _classes(sizes.x)
    )  # fmt: skip


class _Class(NamedTuple):
    """Inputs `rest`, `rest` + stride, …: the first reads output `first` by the first tap.

    `tap`, `tap_step` and `taps` say which taps these inputs meet; a tap later means `step` outputs
    on.
    """

    rest: int
    places: int
    tap: int
    tap_step: int
    taps: int
    first: int
    step: int


def _classes(dim: Dim) -> Iterator[_Class]:
    for rest in range(min(dim.stride, dim.input_size)):
        places = -((rest - dim.input_size) // dim.stride)
        met = [
            tap
            for tap in range(dim.size)
            if (rest + dim.pad - tap * dim.dilation) % dim.stride == 0
        ]
        tap = met[0] if met else 0
        tap_step = met[1] - tap if len(met) > 1 else 0
        yield _Class(
            rest=rest,
            places=places,
            tap=tap,
            tap_step=tap_step,
            taps=len(met),
            first=(rest + dim.pad - tap * dim.dilation) // dim.stride,
            step=-tap_step * dim.dilation // dim.stride,
        )


def windows_table(*windows: WindowsStruct) -> Array:
    """Windows as an array of structs."""
    return np.array(windows, np.int64)
