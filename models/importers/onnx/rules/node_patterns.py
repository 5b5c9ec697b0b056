"""Patterns: activations and attention that exporters spell out in several nodes.

A pattern is looked for backwards from the node that ends it. The ops added for its earlier nodes
stay unread and are removed at the end of the import.

Notes
-----
GELU: Hendrycks and Gimpel, arXiv 1606.08415, section 2 (both forms).
"""

from math import isclose, pi, sqrt
from typing import NamedTuple

from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode

DEPTH_MAX = 6  # nodes of a product that is written out; the longest pattern has four
_CUBIC = 0.044715  # Hendrycks and Gimpel 2016, section 2


class MatchedProduct(NamedTuple):
    """A product taken apart: a number and the tensors multiplied."""

    number: float
    factors: tuple[str, ...]


def product_of(
    low: OnnxLowering, name: str, stop: str = "", depth: int = DEPTH_MAX
) -> MatchedProduct:
    """Take a product (Mul, Div by a number, Neg) apart down to tensors that are none, or `stop`."""
    number = low.scalar(name)
    if number is not None:
        return MatchedProduct(number, ())
    node = low.producer(name, "Mul", "Div", "Neg", "Cast", "Identity")
    if node is None or name == stop or not depth:
        return MatchedProduct(1.0, (name,))
    left = product_of(low, node.inputs[0], stop, depth - 1)
    if node.kind == "Neg":
        return MatchedProduct(-left.number, left.factors)
    if len(node.inputs) < 2:
        return left
    if node.kind == "Div":
        divisor = low.scalar(node.inputs[1])
        if not divisor:
            return MatchedProduct(1.0, (name,))
        return MatchedProduct(left.number / divisor, left.factors)
    right = product_of(low, node.inputs[1], stop, depth - 1)
    return MatchedProduct(left.number * right.number, left.factors + right.factors)


def activation(low: OnnxLowering, node: OnnxNode) -> tuple[str, str] | None:
    """Return (kind, input) where the product that `node` ends is a GELU or a SiLU."""
    for name in dict.fromkeys(product_of(low, node.outputs[0]).factors):
        sigmoid = low.producer(name, "Sigmoid")
        if sigmoid is not None and _is_product(low, node, sigmoid.inputs[0], name, 1.0):
            return "silu", sigmoid.inputs[0]
        inner = _plus_one(low, name)
        erf = low.producer(inner, "Erf") if inner else None
        if erf is not None:
            x = _scaled(low, erf.inputs[0], 1 / sqrt(2))
            if x and _is_product(low, node, x, name, 0.5):
                return "gelu_erf", x
        tanh = low.producer(inner, "Tanh") if inner else None
        if tanh is not None:
            x = _cubic(low, tanh.inputs[0])
            if x and _is_product(low, node, x, name, 0.5):
                return "gelu", x
    return None


def _is_product(low: OnnxLowering, node: OnnxNode, x: str, other: str, number: float) -> bool:
    """True if `node` makes number * x * other."""
    node_product = product_of(low, node.outputs[0], stop=x)
    return sorted(node_product.factors) == sorted((x, other)) and _close(
        node_product.number, number
    )


def _close(number: float, expected: float) -> bool:
    return isclose(number, expected, rel_tol=1e-3)


def _plus(low: OnnxLowering, name: str) -> tuple[str, float] | None:
    """Return (x, number) of x + number."""
    node = low.producer(name, "Add")
    if node is None or len(node.inputs) != 2:
        return None
    for side, other in (node.inputs, node.inputs[::-1]):
        number = low.scalar(other)
        if number is not None and low.scalar(side) is None:
            return side, number
    return None


def _plus_one(low: OnnxLowering, name: str) -> str:
    addition = _plus(low, name)
    return addition[0] if addition is not None and _close(addition[1], 1.0) else ""


def _scaled(low: OnnxLowering, name: str, number: float) -> str:
    """Return x of number * x, however x itself came about."""
    node = low.producer(name, "Mul", "Div")
    if node is None or len(node.inputs) != 2:
        return ""
    left, right = (low.scalar(n) for n in node.inputs)
    if right is not None and _close(1 / right if node.kind == "Div" and right else right, number):
        return node.inputs[0]
    if left is not None and node.kind == "Mul" and _close(left, number):
        return node.inputs[1]
    return ""


def _cubic(low: OnnxLowering, name: str) -> str:
    """Return x of sqrt(2 / pi) (x + 0.044715 x^3), the cube a power or a product."""
    inner = _scaled(low, name, sqrt(2 / pi))
    node = low.producer(inner, "Add") if inner else None
    if node is None or len(node.inputs) != 2:
        return ""
    for x, other in (node.inputs, node.inputs[::-1]):
        cube = product_of(low, other, stop=x)
        if not _close(cube.number, _CUBIC):
            continue
        if cube.factors == (x, x, x):
            return x
        power = low.producer(cube.factors[0], "Pow") if len(cube.factors) == 1 else None
        if power is not None and power.inputs[0] == x and low.scalar(power.inputs[1]) == 3:
            return x
    return ""


def root_mean_square(low: OnnxLowering, node: OnnxNode) -> tuple[str, str, float] | None:
    """Return (x, weight, epsilon) where `node` makes weight * x / sqrt(mean(x^2) + epsilon).

    The mean is over the last dim; the weight may be missing ("").
    """
    plain = _unweighted(low, node.outputs[0])
    if plain is not None:
        return plain[0], "", plain[1]
    if node.kind != "Mul" or len(node.inputs) != 2:
        return None
    for weight, normed in (node.inputs, node.inputs[::-1]):
        plain = _unweighted(low, _uncast(low, normed))
        if plain is not None:
            return plain[0], weight, plain[1]
    return None


def _unweighted(low: OnnxLowering, name: str) -> tuple[str, float] | None:
    factors = _factors(low, name)
    for x, other in (factors, factors[::-1]):
        epsilon = _reciprocal_root(low, other, x)
        if epsilon is not None:
            return x, epsilon
    return None


def _factors(low: OnnxLowering, name: str) -> tuple[str, str]:
    """Return both factors of a product; those of x / sqrt(y) are x and the quotient's own node."""
    node = low.producer(name, "Mul", "Div")
    if node is None or len(node.inputs) != 2:
        return "", ""
    if node.kind == "Div":
        return _uncast(low, node.inputs[0]), name
    return _uncast(low, node.inputs[0]), _uncast(low, node.inputs[1])


def _uncast(low: OnnxLowering, name: str) -> str:
    for _ in range(DEPTH_MAX):
        node = low.producer(name, "Cast", "Identity")
        if node is None:
            break
        name = node.inputs[0]
    return name


def _reciprocal_root(low: OnnxLowering, name: str, x: str) -> float | None:
    """Return epsilon where `name` is 1 / sqrt(mean(x^2) + epsilon), or x divided by that root."""
    if not x:
        return None
    node = low.producer(name, "Reciprocal", "Div", "Pow")
    if node is None:
        return None
    if node.kind == "Pow":
        if low.scalar(node.inputs[1]) != -0.5:
            return None
        under = node.inputs[0]
    else:
        if node.kind == "Div" and not (
            low.scalar(node.inputs[0]) == 1.0 or _uncast(low, node.inputs[0]) == x
        ):
            return None
        root = low.producer(node.inputs[-1], "Sqrt")
        if root is None:
            return None
        under = root.inputs[0]
    shifted = _plus(low, under)
    mean = low.producer(shifted[0], "ReduceMean") if shifted is not None else None
    if mean is None or shifted is None or not _over_last(low, mean):
        return None
    square = low.producer(mean.inputs[0], "Pow", "Mul")
    if square is None or len(square.inputs) != 2 or _uncast(low, square.inputs[0]) != x:
        return None
    if square.kind == "Pow":
        return shifted[1] if low.scalar(square.inputs[1]) == 2 else None
    return shifted[1] if _uncast(low, square.inputs[1]) == x else None


def _over_last(low: OnnxLowering, mean: OnnxNode) -> bool:
    axes = mean.integers("axes")
    if axes is None and len(mean.inputs) > 1:
        number = low.scalar(mean.inputs[1])
        axes = None if number is None else (int(number),)
    value = low.values.get(mean.inputs[0])
    rank = len(getattr(value, "dims", ()))
    return axes is not None and len(axes) == 1 and axes[0] in (-1, rank - 1)
