"""Convolution, batch norm and pooling as parts of models, each with its weights.

A batch norm takes its statistics over the whole microbatch. Running averages of them, which only
inference reads, are no part of a training graph.

Channels come last, in images and in weights: matrix units take those of one place together.

Shape legend: b batch, c channels read, n channels made, y x rows and columns of an image, j i those
after a window has passed over it, q p those of the window, g groups of channels.
"""

from math import sqrt

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError

SAME = "b y x c -> b y x c"


def convolution(
    builder: GraphBuilder,
    name: str,
    x: str,
    channels: int,
    *,
    size: int = 3,
    stride: int = 1,
    padding: int | None = None,
    depthwise: bool = False,
) -> str:
    """Add a convolution without bias, whose weight is `<block>.<name>.weight`.

    Weights start at He et al.'s deviation sqrt(2 / inputs of an output) (arXiv 1502.01852, section
    2.2).

    Parameters
    ----------
    x : str
        Images, b y x c.
    channels : int
        Channels made; a depthwise convolution makes as many as it reads.
    size, stride : int
        Rows and columns of the square window, and how far it moves.
    padding : int, optional
        Zeros on every side; half the window by default.
    depthwise : bool
        Every channel is convolved by itself.

    Raises
    ------
    ModelError
        The window is larger than the padded image.
    """
    batch, rows, columns, read = builder.tensors[x].shape
    pad = size // 2 if padding is None else padding
    window_counts = tuple(places(n, size, stride, pad, name) for n in (rows, columns))
    inputs = 1 if depthwise else read
    weight = builder.parameter(
        f"{name}.weight",
        "n q p c",
        (channels, size, size, inputs),
        std=sqrt(2 / (inputs * size * size)),
    )
    labels = "b y! x! c, n q! p! c -> b j! i! n"
    if depthwise:
        labels = "b y! x! (g c), (g n) q! p! c -> b j! i! (g n)"
    return builder.apply(
        "conv",
        name,
        (x, weight),
        labels,
        shapes=((batch, *window_counts, channels),),
        attributes={"stride_y": stride, "stride_x": stride, "pad_y": pad, "pad_x": pad},
    )


def places(pixels: int, size: int, stride: int, pad: int, name: str) -> int:
    """Places of a window along a side of `pixels`; raises ModelError where it has none.

    Examples
    --------
    >>> places(224, 7, 2, 3, "stem")
    112
    """
    if pixels + 2 * pad < size:
        raise ModelError(
            f"op `{name}`: a window of {size} does not fit {pixels} pixels padded by {pad}; use "
            f"larger images"
        )
    return (pixels + 2 * pad - size) // stride + 1


def max_pool(builder: GraphBuilder, name: str, x: str, *, size: int, stride: int, pad: int) -> str:
    """Add the largest value of every square window."""
    batch, rows, columns, channels = builder.tensors[x].shape
    window_counts = tuple(places(n, size, stride, pad, name) for n in (rows, columns))
    return builder.apply(
        "max_pool",
        name,
        (x,),
        "b y! x! c -> b j! i! c",
        shapes=((batch, *window_counts, channels),),
        attributes={
            "stride_y": stride,
            "stride_x": stride,
            "pad_y": pad,
            "pad_x": pad,
            "size_y": size,
            "size_x": size,
        },
    )


def batch_norm(
    builder: GraphBuilder, name: str, x: str, *, epsilon: float = 1e-5, scaled: bool = True
) -> str:
    """Add a batch norm over the channels (the last dim) of images b y x c or of features b c.

    Its scale starts at one and its shift at zero; where not `scaled` the scale stays one.
    """
    shape = builder.tensors[x].shape
    channels = shape[-1:]
    dims = "b y x c" if len(shape) == 4 else "b c"
    sums = builder.apply("channel_sums", f"{name}.sums", (x,), f"{dims} -> c")
    squares = builder.apply("channel_squares", f"{name}.squares", (x, sums), f"{dims}, c -> c")
    if scaled:
        scale = builder.parameter(f"{name}.weight", "c", channels, init="ones", decay=False)
    else:
        scale = _ones(builder, f"{name}.weight", channels)
    shift = builder.parameter(f"{name}.bias", "c", channels, init="zeros", decay=False)
    return builder.apply(
        "batch_norm",
        name,
        (x, sums, squares, scale, shift),
        f"{dims}, c, c, c, c -> {dims}",
        attributes={"epsilon": epsilon},
    )


def _ones(builder: GraphBuilder, name: str, shape: tuple[int, ...]) -> str:
    once = builder.apply(
        "constant", name, (), "-> c", shapes=(shape,), attributes={"value": 1.0, "data": ""}
    )
    return builder.repeat(once, name, "c")


def images(builder: GraphBuilder, name: str, size: int, channels: int) -> str:
    """Add a batch of square images of the data, b y x c."""
    shape = (builder.batch, size, size, channels)
    return builder.input(name, "b y x c", shape, source="images", channels_last=True)


def prelu(builder: GraphBuilder, name: str, x: str) -> str:
    """Add a rectifier whose negative slope is learned per channel, from zero (a plain one) on.

    He et al., arXiv 1502.01852, section 2.1.
    """
    channels = builder.tensors[x].shape[-1:]
    slope = builder.parameter(f"{name}.weight", "c", channels, init="zeros", decay=False)
    return builder.apply("prelu", name, (x, slope), "b y x c, c -> b y x c")


def global_mean(builder: GraphBuilder, name: str, x: str) -> str:
    """Add the mean of every channel over its image: b y x c -> b c."""
    _, rows, columns, _ = builder.tensors[x].shape
    total = builder.apply("sum", f"{name}.sum", (x,), "b y x c -> b c")
    attributes = {"factor": 1 / (rows * columns)}
    return builder.apply("scale", name, (total,), "b c -> b c", attributes=attributes)
