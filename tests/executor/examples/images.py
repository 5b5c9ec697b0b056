"""Examples of convolution, pooling and batch norm, by loops over places and taps."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from millrace.executor.kernels.context import Array
from millrace.models.labels import parse, write
from tests.executor.examples.example import Example

Attributes = dict[str, int | float | str | bool]
Sizes = dict[str, int]
Place = tuple[int, int]


def window(stride: Place, pad: Place, dilation: Place | None = None) -> Attributes:
    """Attributes of windows, by (y, x)."""
    attributes = {"stride_y": stride[0], "stride_x": stride[1], "pad_y": pad[0], "pad_x": pad[1]}
    if dilation is not None:
        attributes |= {"dilation_y": dilation[0], "dilation_x": dilation[1]}
    return dict(attributes)


def window_taps(
    input_size: Place, output_size: Place, size: Place, attributes: Attributes
) -> Iterator[tuple[Place, Place, Place]]:
    """Yield (output, tap, input) of every tap of every window that is inside the image."""
    for indexes in product(
        range(output_size[0]), range(output_size[1]), range(size[0]), range(size[1])
    ):
        source = []
        for dim, output, tap in (("y", indexes[0], indexes[2]), ("x", indexes[1], indexes[3])):
            dilation = int(attributes.get(f"dilation_{dim}", 1))
            place = output * int(attributes[f"stride_{dim}"]) + tap * dilation
            source.append(place - int(attributes[f"pad_{dim}"]))
        if 0 <= source[0] < input_size[0] and 0 <= source[1] < input_size[1]:
            yield indexes[:2], indexes[2:], (source[0], source[1])


def convolution(attributes: Attributes, sizes: Sizes) -> tuple[Callable[..., Array], ...]:
    """Formulas of conv, conv_grad_input and conv_grad_weight."""
    input_size, output_size = (sizes["y"], sizes["x"]), (sizes["j"], sizes["i"])
    size, g = (sizes["q"], sizes["p"]), sizes.get("g", 1)

    def apart(array: Array) -> Array:
        return array.reshape(array.shape[0], g, -1, *array.shape[2:])

    def weights(w: Array) -> Array:
        return w.reshape(g, -1, *w.shape[1:])

    def forward(x: Array, w: Array) -> Array:
        out = np.zeros((x.shape[0], g, w.shape[0] // g, *output_size))
        for (j, i), (q, p), (y, z) in window_taps(input_size, output_size, size, attributes):
            tap = weights(w)[..., q, p]
            out[..., j, i] += np.einsum("bgc,gnc->bgn", apart(x)[..., y, z], tap)
        return out.reshape(x.shape[0], -1, *output_size)

    def grad_input(dy: Array, w: Array) -> Array:
        dx = np.zeros((dy.shape[0], g, w.shape[1], *input_size))
        for (j, i), (q, p), (y, z) in window_taps(input_size, output_size, size, attributes):
            tap = weights(w)[..., q, p]
            dx[..., y, z] += np.einsum("bgn,gnc->bgc", apart(dy)[..., j, i], tap)
        return dx.reshape(dy.shape[0], -1, *input_size)

    def grad_weight(x: Array, dy: Array) -> Array:
        dw = np.zeros((g, dy.shape[1] // g, x.shape[1] // g, *size))
        for (j, i), (q, p), (y, z) in window_taps(input_size, output_size, size, attributes):
            parts = apart(dy)[..., j, i], apart(x)[..., y, z]
            dw[..., q, p] += np.einsum("bgn,bgc->gnc", *parts)
        return dw.reshape(-1, *dw.shape[2:])

    return forward, grad_input, grad_weight


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


def _convolutions() -> Iterator[Example]:
    for number, (attributes, sizes) in enumerate(_CONVOLUTIONS):
        c, n = ("(g c)", "(g n)") if "g" in sizes else ("c", "n")
        x, w, y = f"b {c} y! x!", f"{n} c q! p!", f"b {n} j! i!"
        forms = (("conv", f"{x}, {w} -> {y}"), ("conv_grad_input", f"{y}, {w} -> {x}"),
                 ("conv_grad_weight", f"{x}, {y} -> {w}"))  # fmt: skip
        large = _LARGE_IMAGES if number in (0, 3) else {}
        for (kind, labels), formula in zip(forms, convolution(attributes, sizes), strict=True):
            yield Example(
                kind=kind, labels=labels, formula=formula, attributes=attributes,
                sizes={"n": 4} | sizes, large=large,
            )  # fmt: skip


def pooling(attributes: Attributes, sizes: Sizes) -> tuple[Callable[..., Array], ...]:
    """Formulas of max_pool, max_pool_grad, avg_pool and avg_pool_grad."""
    input_size, output_size = (sizes["y"], sizes["x"]), (sizes["j"], sizes["i"])
    size = int(attributes["size_y"]), int(attributes["size_x"])
    count = size[0] * size[1]
    visits = list(window_taps(input_size, output_size, size, attributes))

    def places(output: Place) -> list[Place]:
        return [source for place, _, source in visits if place == output]

    def largest(x: Array) -> Array:
        out = np.zeros((*x.shape[:2], *output_size))
        for output in product(*map(range, output_size)):
            out[..., *output] = np.max([x[..., *source] for source in places(output)], axis=0)
        return out

    def largest_grad(x: Array, dy: Array) -> Array:
        dx = np.zeros(x.shape)
        for b, c in np.ndindex(x.shape[:2]):
            for output in product(*map(range, output_size)):
                # `max` returns the first of equals
                first = max(places(output), key=lambda source: x[b, c, *source])
                dx[b, c, *first] += dy[b, c, *output]
        return dx

    def mean(x: Array) -> Array:
        out = np.zeros((*x.shape[:2], *output_size))
        for output, _, source in visits:
            out[..., *output] += x[..., *source] / count
        return out

    def mean_grad(dy: Array) -> Array:
        dx = np.zeros((*dy.shape[:2], *input_size))
        for output, _, source in visits:
            dx[..., *source] += dy[..., *output] / count
        return dx

    return largest, largest_grad, mean, mean_grad


_POOLINGS: tuple[tuple[Attributes, Sizes], ...] = (
    (window((2, 2), (1, 1)) | {"size_y": 3, "size_x": 3}, {"y": 5, "x": 6, "j": 3, "i": 3}),
    (window((1, 2), (0, 1)) | {"size_y": 2, "size_x": 3}, {"y": 4, "x": 3, "j": 3, "i": 2}),
    (window((1, 1), (0, 0)) | {"size_y": 4, "size_x": 3}, {"y": 4, "x": 3, "j": 1, "i": 1}),
)


def _poolings() -> Iterator[Example]:
    x, y = "b c y! x!", "b c j! i!"
    forms = (("max_pool", f"{x} -> {y}"), ("max_pool_grad", f"{x}, {y} -> {x}"),
             ("avg_pool", f"{x} -> {y}"), ("avg_pool_grad", f"{y} -> {x}"))  # fmt: skip
    for number, (attributes, sizes) in enumerate(_POOLINGS):
        large = {"y": 128, "x": 128, "j": 64, "i": 64, "b": 4, "c": 4} if number == 0 else {}
        for (kind, labels), formula in zip(forms, pooling(attributes, sizes), strict=True):
            yield Example(
                kind=kind, labels=labels, formula=formula, attributes=attributes, sizes=sizes,
                large=large,
                # few different values, so that windows hold equal ones
                derive=lambda *inputs: (np.round(inputs[0]), *inputs[1:]),
            )  # fmt: skip


def others(x: Array) -> tuple[int, ...]:
    """The dims of x but the channel's."""
    return tuple(dim for dim in range(x.ndim) if dim != 1)


def along(values: Array, x: Array) -> Array:
    """Values of channels, to be broadcast over x."""
    return values.reshape([-1 if dim == 1 else 1 for dim in range(x.ndim)])


def points(x: Array) -> int:
    """Number of values of a channel."""
    return int(x.size // x.shape[1])


def squares(x: Array, sums: Array) -> Array:
    return ((x - along(sums / points(x), x)) ** 2).sum(others(x))


def normal(x: Array, sums: Array, squared: Array) -> Array:
    count = points(x)
    return (x - along(sums / count, x)) / np.sqrt(along(squared / count, x) + 1e-5)


def batch_norm(x: Array, sums: Array, squared: Array, gamma: Array, beta: Array) -> Array:
    return normal(x, sums, squared) * along(gamma, x) + along(beta, x)


def batch_norm_grad_sums(dy: Array, x: Array, *statistics: Array) -> tuple[Array, ...]:
    return (dy * normal(x, *statistics)).sum(others(x)), dy.sum(others(x))


def batch_norm_grad_input(dy: Array, x: Array, *rest: Array) -> Array:
    """dx by the Jacobian of a channel's values, r (I - 1/N - x̂ x̂ᵀ / N), written out."""
    sums, squared, gamma, _, _ = rest
    moved = np.moveaxis(normal(x, sums, squared), 1, 0)
    flat = moved.reshape(x.shape[1], -1)
    slope = np.moveaxis(dy, 1, 0).reshape(flat.shape)
    count = points(x)
    rstd = 1 / np.sqrt(squared / count + 1e-5)
    dx = np.zeros(flat.shape)
    for channel, (row, upper) in enumerate(zip(flat, slope, strict=True)):
        jacobian = np.eye(count) - 1 / count - np.outer(row, row) / count
        dx[channel] = gamma[channel] * rstd[channel] * jacobian @ upper
    return np.moveaxis(dx.reshape(moved.shape), 0, 1)


def statistics_of(x: Array) -> tuple[Array, Array]:
    """Sums and squares of the channels."""
    sums = x.sum(others(x))
    return sums, squares(x, sums)


def _with_sums(dy: Array, x: Array, *rest: Array) -> tuple[Array, ...]:
    """Make all sums those of dy and x."""
    statistics = statistics_of(x)
    return dy, x, *statistics, rest[2], *batch_norm_grad_sums(dy, x, *statistics)


def _batch_norms() -> Iterator[Example]:
    sizes = {"b": 4, "c": 6, "y": 3, "x": 2}
    large = {"b": 16, "c": 64, "y": 32, "x": 32}
    epsilon: Attributes = {"epsilon": 1e-5}
    for x in ("b c y x", "b c"):
        forms: tuple[tuple[str, str, Callable[..., Array | tuple[Array, ...]]], ...] = (
            ("channel_sums", f"{x} -> c", lambda x: x.sum(others(x))),
            ("channel_squares", f"{x}, c -> c", squares),
            ("batch_norm", f"{x}, c, c, c, c -> {x}", batch_norm),
            ("batch_norm_grad_sums", f"{x}, {x}, c, c -> c, c", batch_norm_grad_sums),
            ("batch_norm_grad_input", f"{x}, {x}, c, c, c, c, c -> {x}", batch_norm_grad_input),
        )
        derive: dict[str, Callable[..., tuple[Array, ...]]] = {
            "channel_squares": lambda x, _: (x, x.sum(others(x))),
            "batch_norm": lambda x, *rest: (x, *statistics_of(x), *rest[2:]),
            "batch_norm_grad_sums": lambda dy, x, *_: (dy, x, *statistics_of(x)),
            "batch_norm_grad_input": _with_sums,
        }
        for kind, labels, formula in forms:
            yield Example(
                kind=kind, labels=labels, formula=formula, sizes=sizes, large=large,
                attributes={} if kind.startswith("channel") else epsilon,
                derive=derive.get(kind, lambda *inputs: inputs),
            )  # fmt: skip


def channels_last(example: Example) -> Example:
    """Example with images `b y x c` and weights `n q p c`."""
    expression = parse(example.labels)
    inputs, outputs = (
        [(*operand[:1], *operand[2:], operand[1]) if len(operand) == 4 else operand
         for operand in side]
        for side in (expression.inputs, expression.outputs)
    )  # fmt: skip

    def first(*arrays: Array) -> list[Array]:
        return [np.moveaxis(array, -1, 1) if array.ndim == 4 else array for array in arrays]

    def last(*arrays: Array) -> tuple[Array, ...]:
        return tuple(np.moveaxis(array, 1, -1) if array.ndim == 4 else array for array in arrays)

    def formula(*arrays: Array) -> tuple[Array, ...]:
        computed = example.formula(*first(*arrays))
        return last(*(computed if isinstance(computed, tuple) else (computed,)))

    return replace(
        example,
        labels=write(inputs, outputs, expression.whole),
        formula=formula,
        derive=lambda *arrays: last(*example.derive(*first(*arrays))),
    )


_CHANNELS_FIRST = (*_convolutions(), *_poolings(), *_batch_norms())
EXAMPLES = (
    *_CHANNELS_FIRST,
    *(channels_last(example) for example in _CHANNELS_FIRST if "b c ->" not in example.labels),
)
