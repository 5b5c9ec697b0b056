"""Convolution, pooling and batch norm.

Shape legend: as in `classifier.py`; c n channels, y x rows and columns (j i after the op), q p rows
and columns of a window.
"""

from functools import partial
from typing import Any

from millrace.models.builder import GraphBuilder, dense
from tests.models.gradient_cases.classifier import B, Body, K, T

CHANNELS, ROWS, COLUMNS = 4, 5, 6
PLAIN = {"stride_y": 1, "stride_x": 1, "pad_y": 0, "pad_x": 0}
UNEVEN = {"stride_y": 1, "stride_x": 2, "pad_y": 2, "pad_x": 1}


def _image(builder: GraphBuilder, x: str) -> str:
    sizes = {"c": CHANNELS, "y": ROWS, "x": COLUMNS}
    return dense(builder, "image", x, "b t k, t k c y x -> b c y x", sizes, std=1.0, bias=False)


def _back(builder: GraphBuilder, image: str) -> str:
    sizes = {"t": T, "k": K}
    return dense(builder, "back", image, "b c y x, c y x t k -> b t k", sizes, bias=False)


def _places(size: int, dim: str, form: dict[str, Any], window: int) -> int:
    reach = form.get(f"dilation_{dim}", 1) * (window - 1) + 1
    return int((size + 2 * form[f"pad_{dim}"] - reach) // form[f"stride_{dim}"] + 1)


def convolved(form: dict[str, Any], groups: int, builder: GraphBuilder, x: str) -> str:
    window, out_channels = (3, 2), 6
    shape = (out_channels, CHANNELS // groups, *window)
    weight = builder.parameter("weight", "n c q p", shape)
    labels = "b c y! x!, n c q! p! -> b n j! i!"
    if groups > 1:
        labels = "b (g c) y! x!, (g n) c q! p! -> b (g n) j! i!"
    out = (
        B,
        out_channels,
        _places(ROWS, "y", form, window[0]),
        _places(COLUMNS, "x", form, window[1]),
    )
    inputs = (_image(builder, x), weight)
    return _back(
        builder, builder.apply("conv", "conv", inputs, labels, shapes=(out,), attributes=form)
    )


def pooled(kind: str, form: dict[str, Any], builder: GraphBuilder, x: str) -> str:
    size = {"size_y": 3, "size_x": 2}
    out = (B, CHANNELS, _places(ROWS, "y", form, 3), _places(COLUMNS, "x", form, 2))
    pool = builder.apply(
        kind,
        "pool",
        (_image(builder, x),),
        "b c y! x! -> b c j! i!",
        shapes=(out,),
        attributes=form | size,
    )
    return _back(builder, pool)


def _normed(builder: GraphBuilder, x: str, dims: str, channel: str, size: int) -> str:
    sums = builder.apply("channel_sums", "bn.sums", (x,), f"{dims} -> {channel}")
    labels = f"{dims}, {channel} -> {channel}"
    squares = builder.apply("channel_squares", "bn.squares", (x, sums), labels)
    gamma = builder.parameter("bn.gamma", channel, (size,))
    beta = builder.parameter("bn.beta", channel, (size,))
    four = ", ".join([channel] * 4)
    return builder.apply(
        "batch_norm",
        "bn",
        (x, sums, squares, gamma, beta),
        f"{dims}, {four} -> {dims}",
        attributes={"epsilon": 0.1},
    )


def batch_normed_images(builder: GraphBuilder, x: str) -> str:
    normed = _normed(builder, _image(builder, x), "b c y x", "c", CHANNELS)
    return _back(builder, builder.apply("tanh", "act", (normed,), "b c y x -> b c y x"))


def batch_normed_rows(builder: GraphBuilder, x: str) -> str:
    return _normed(builder, x, "b t k", "k", K)


def batch_normed_data(builder: GraphBuilder, x: str) -> str:
    """Batch norm of data that needs no gradient, so that only scale and shift have one."""
    data = builder.input("data", "b t k", (B, T, K), source="features")
    normed = _normed(builder, data, "b t k", "k", K)
    return builder.apply("add", "both", (x, normed), "b t k, b t k -> b t k")


CASES: dict[str, Body] = {
    "conv": partial(convolved, PLAIN, 1),
    "conv, stride and padding": partial(convolved, UNEVEN, 1),
    "conv, dilation": partial(convolved, PLAIN | {"dilation_y": 2, "dilation_x": 3}, 1),
    "conv, groups": partial(convolved, PLAIN | {"pad_y": 1}, 2),
    "conv, depthwise": partial(convolved, UNEVEN, CHANNELS // 2),
    "max_pool": partial(pooled, "max_pool", UNEVEN | {"pad_y": 1}),
    "avg_pool": partial(pooled, "avg_pool", UNEVEN | {"pad_y": 1}),
    "batch_norm": batch_normed_images,
    "batch_norm of rows": batch_normed_rows,
    "batch_norm of data": batch_normed_data,
}
