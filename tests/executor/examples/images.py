"""Examples of convolution, pooling and batch norm."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from millrace.executor.kernels.context import Array
from millrace.models.labels import parse, write
from tests.executor.examples.example import Example
from tests.models.oracle import evaluate

Attributes = dict[str, int | float | str | bool]
Sizes = dict[str, int]
Place = tuple[int, int]


def window(stride: Place, pad: Place, dilation: Place | None = None) -> Attributes:
    """Attributes of windows, by (y, x)."""
    attributes = {"stride_y": stride[0], "stride_x": stride[1], "pad_y": pad[0], "pad_x": pad[1]}
    if dilation is not None:
        attributes |= {"dilation_y": dilation[0], "dilation_x": dilation[1]}
    return dict(attributes)


_CONVOLUTIONS: tuple[tuple[Attributes, Sizes], ...] = (
    (window((1, 1), (1, 1)), {"y": 5, "x": 4, "q": 3, "p": 3, "j": 5, "i": 4}),
    (window((2, 1), (1, 0)), {"y": 6, "x": 4, "q": 3, "p": 2, "j": 3, "i": 3, "b": 8}),
    (window((2, 3), (2, 0), (2, 1)), {"y": 7, "x": 5, "q": 3, "p": 2, "j": 4, "i": 2}),
    (window((1, 1), (0, 0)), {"y": 3, "x": 4, "q": 1, "p": 1, "j": 3, "i": 4}),
    (window((2, 2), (0, 0)), {"y": 5, "x": 4, "q": 1, "p": 1, "j": 3, "i": 2}),
    (window((1, 2), (1, 1)), {"g": 2, "y": 4, "x": 5, "q": 3, "p": 3, "j": 4, "i": 3}),
    (window((1, 1), (1, 1)), {"g": 6, "c": 1, "n": 1, "y": 3, "x": 3, "q": 3, "p": 3, "j": 3,
                              "i": 3}),
)  # fmt: skip
_LARGE_IMAGES = {"y": 64, "x": 64, "j": 64, "i": 64, "b": 8, "c": 8, "n": 8}


def convolutions(
    attributes: Attributes, sizes: Sizes, large: Sizes | None = None
) -> Iterator[Example]:
    """A convolution and its gradients."""
    c, n = ("(g c)", "(g n)") if "g" in sizes else ("c", "n")
    x, w, y = f"b {c} y! x!", f"{n} c q! p!", f"b {n} j! i!"
    for kind, labels in (
        ("conv", f"{x}, {w} -> {y}"),
        ("conv_grad_input", f"{y}, {w} -> {x}"),
        ("conv_grad_weight", f"{x}, {y} -> {w}"),
    ):
        yield Example(
            kind=kind, labels=labels, attributes=attributes, sizes={"n": 4} | sizes,
            large=large or {},
        )  # fmt: skip


_POOLINGS: tuple[tuple[Attributes, Sizes], ...] = (
    (window((2, 2), (1, 1)) | {"size_y": 3, "size_x": 3}, {"y": 5, "x": 6, "j": 3, "i": 3}),
    (window((1, 2), (0, 1)) | {"size_y": 2, "size_x": 3}, {"y": 4, "x": 3, "j": 3, "i": 2}),
    (window((1, 1), (0, 0)) | {"size_y": 4, "size_x": 3}, {"y": 4, "x": 3, "j": 1, "i": 1}),
)


def poolings(attributes: Attributes, sizes: Sizes, large: Sizes | None = None) -> Iterator[Example]:
    """Both kinds of pooling and their gradients."""
    x, y = "b c y! x!", "b c j! i!"
    for kind, labels in (
        ("max_pool", f"{x} -> {y}"),
        ("max_pool_grad", f"{x}, {y} -> {x}"),
        ("avg_pool", f"{x} -> {y}"),
        ("avg_pool_grad", f"{y} -> {x}"),
    ):
        yield Example(
            kind=kind, labels=labels, attributes=attributes, sizes=sizes, large=large or {},
            # few different values, so that windows hold equal ones
            derive=lambda *inputs: (np.round(inputs[0]), *inputs[1:]),
        )  # fmt: skip


_LARGE_POOLED = {"y": 128, "x": 128, "j": 64, "i": 64, "b": 4, "c": 4}


def batch_norms(x: str) -> Iterator[Example]:
    """Parts of a batch norm of images with these labels."""

    def statistics(values: Array) -> tuple[Array, Array]:
        (sums,) = evaluate("channel_sums", f"{x} -> c", [values])
        return sums, *evaluate("channel_squares", f"{x}, c -> c", [values, sums])

    def with_sums(dy: Array, values: Array, *rest: Array) -> tuple[Array, ...]:
        given = dy, values, *statistics(values)
        return *given, rest[2], *evaluate("batch_norm_grad_sums", sums_labels, given, (), epsilon)

    epsilon: Attributes = {"epsilon": 1e-5}
    sums_labels = f"{x}, {x}, c, c -> c, c"
    forms: tuple[tuple[str, str, Callable[..., tuple[Array, ...]]], ...] = (
        ("channel_sums", f"{x} -> c", lambda x: (x,)),
        ("channel_squares", f"{x}, c -> c", lambda x, _: (x, statistics(x)[0])),
        ("batch_norm", f"{x}, c, c, c, c -> {x}", lambda x, *rest: (x, *statistics(x), *rest[2:])),
        ("batch_norm_grad_sums", sums_labels, lambda dy, x, *_: (dy, x, *statistics(x))),
        ("batch_norm_grad_input", f"{x}, {x}, c, c, c, c, c -> {x}", with_sums),
    )
    for kind, labels, derive in forms:
        yield Example(
            kind=kind, labels=labels, sizes={"b": 4, "c": 6, "y": 3, "x": 2},
            large={"b": 16, "c": 64, "y": 32, "x": 32}, derive=derive,
            attributes={} if kind.startswith("channel") else epsilon,
        )  # fmt: skip


def channels_last(example: Example) -> Example:
    """Example with images `b y x c` and weights `n q p c`."""
    expression = parse(example.labels)
    inputs, outputs = (
        [(*operand[:1], *operand[2:], operand[1]) if len(operand) == 4 else operand
         for operand in side]
        for side in (expression.inputs, expression.outputs)
    )  # fmt: skip
    return replace(example, labels=write(inputs, outputs, expression.whole_labels))


_CHANNELS_FIRST = (
    *(
        example
        for number, (attributes, sizes) in enumerate(_CONVOLUTIONS)
        for example in convolutions(attributes, sizes, _LARGE_IMAGES if number in (0, 3) else {})
    ),
    *(
        example
        for number, (attributes, sizes) in enumerate(_POOLINGS)
        for example in poolings(attributes, sizes, {} if number else _LARGE_POOLED)
    ),
)
EXAMPLES = (
    *_CHANNELS_FIRST,
    *batch_norms("b c y x"),
    *batch_norms("b c"),
    *map(channels_last, _CHANNELS_FIRST),
    *batch_norms("b y x c"),
)
