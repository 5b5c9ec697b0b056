"""Patterns: functions that programs spell out in several calls, found backwards from the last one.

A pattern is a number, the name of a variable, or a tuple: a kind of call and its operands. Sums and
products have theirs in either order; a variable stands for one value wherever it occurs. Casts are
looked through.

Notes
-----
GELU: Hendrycks and Gimpel, arXiv 1606.08415, section 2 (both forms).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from math import isclose, pi, sqrt
from typing import Any, NamedTuple, Protocol

DEPTH_MAX = 6  # calls of a product that is written out; the longest pattern has four
_CUBIC = 0.044715  # Hendrycks and Gimpel 2016, section 2

Pattern = Any
Bound = Mapping[str, Any]


class ProgramCalls(Protocol):
    """Calls of a program, whatever its format."""

    @property
    def tolerance(self) -> float:
        """Relative difference between two numbers that are taken as one."""

    def uncast(self, value: Any) -> Any:
        """Value behind casts."""

    def number(self, value: Any) -> float | None:
        """Number that a value is everywhere, None for others."""

    def call(self, value: Any) -> tuple[str, tuple[Any, ...]] | None:
        """Kind and operands of the call that makes a value, None for kinds of no pattern."""


class Number(NamedTuple):
    """Any number, by the name that it is to have."""

    name: str


class Either(NamedTuple):
    """The first pattern that matches."""

    patterns: tuple[Pattern, ...]


class Product(NamedTuple):
    """A number times values, however bracketed: a pattern, and variables that it has bound."""

    number: float
    factors: tuple[Pattern, ...]


def matched(calls: ProgramCalls, pattern: Pattern, value: Any) -> Bound | None:
    """Return the values of a pattern's variables where the call of a value ends it, else None.

    Parameters
    ----------
    calls
        The program.
    pattern
        One of its last call, with variables.
    value
        Value that the last call makes.
    """
    if calls.uncast(value) != value:
        return None
    return next(_matches(calls, pattern, value, {}), None)


def _matches(calls: ProgramCalls, pattern: Pattern, value: Any, bound: Bound) -> Iterator[Bound]:
    match pattern:
        case float() | int():
            number = calls.number(value)
            if number is not None and isclose(number, pattern, rel_tol=calls.tolerance):
                yield bound
        case str():
            if calls.uncast(bound.get(pattern, value)) == calls.uncast(value):
                yield {pattern: value, **bound}
        case Number(name):
            number = calls.number(value)
            if number is not None:
                yield {**bound, name: number}
        case Either(patterns):
            for alternative in patterns:
                yield from _matches(calls, alternative, value, bound)
        case Product(number, factors):
            yield from _products(calls, number, factors, value, bound)
        case (kind, *operands):
            call = calls.call(value)
            if call is None or call[0] != kind or len(call[1]) != len(operands):
                return
            yield from _all_match(calls, operands, call[1], bound)
            if kind in ("add", "mul"):
                yield from _all_match(calls, operands, call[1][::-1], bound)


def _all_match(
    calls: ProgramCalls, patterns: list[Pattern], values: tuple[Any, ...], bound: Bound
) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for binding in _matches(calls, patterns[0], values[0], bound):
        yield from _all_match(calls, patterns[1:], values[1:], binding)


def _products(
    calls: ProgramCalls, number: float, factors: tuple[Pattern, ...], value: Any, bound: Bound
) -> Iterator[Bound]:
    first, *others = factors
    plain = frozenset(map(calls.uncast, bound.values()))
    for factor in dict.fromkeys(product_of(calls, value, plain).factors):
        for binding in _matches(calls, first, factor, bound):
            # What is bound may be a product itself, which is then not taken apart.
            stops = {factor, *map(calls.uncast, binding.values())}
            product = product_of(calls, value, stops)
            wanted = Counter([factor, *(calls.uncast(binding[name]) for name in others)])
            close = isclose(product.number, number, rel_tol=calls.tolerance)
            if close and Counter(product.factors) == wanted:
                yield binding


class MatchedProduct(NamedTuple):
    """A product taken apart: a number and the values multiplied."""

    number: float
    factors: tuple[Any, ...]


def product_of(
    calls: ProgramCalls, value: Any, stops: Set[Any] = frozenset(), depth: int = DEPTH_MAX
) -> MatchedProduct:
    """Take a product (or quotient by a number) apart down to values that are none, or `stops`.

    Parameters
    ----------
    calls
        The program.
    value
        A number, or a value of the program.
    stops
        Values that are not taken apart, behind their casts.
    depth
        Calls that are taken apart at most, one inside another.
    """
    number = calls.number(value)
    if number is not None:
        return MatchedProduct(number, ())
    plain = calls.uncast(value)
    kind, operands = calls.call(plain) or ("", ())
    if len(operands) != {"mul": 2, "div": 2, "neg": 1}.get(kind) or plain in stops or not depth:
        return MatchedProduct(1.0, (plain,))
    left = product_of(calls, operands[0], stops, depth - 1)
    if kind == "neg":
        return MatchedProduct(-left.number, left.factors)
    if kind == "div":
        divisor = calls.number(operands[1])
        if not divisor:
            return MatchedProduct(1.0, (plain,))
        return MatchedProduct(left.number / divisor, left.factors)
    right = product_of(calls, operands[1], stops, depth - 1)
    return MatchedProduct(left.number * right.number, left.factors + right.factors)


def _scaled(pattern: Pattern, number: float) -> Pattern:
    return Either((("mul", pattern, number), ("div", pattern, 1 / number)))


_SQUARE = Either((("pow", "x", 2), ("square", "x"), ("mul", "x", "x")))
_SPREAD = ("add", ("mean", _SQUARE), Number("epsilon"))
_ROOT = ("sqrt", _SPREAD)
_INVERSE_ROOT = Either(
    (("rsqrt", _SPREAD), ("pow", _SPREAD, -0.5), ("reciprocal", _ROOT), ("div", 1, _ROOT))
)
_NORMED = Either((("mul", "x", _INVERSE_ROOT), ("div", "x", _ROOT)))
WEIGHTED_RMS_NORM = ("mul", "weight", _NORMED)
RMS_NORM = Either((_NORMED, WEIGHTED_RMS_NORM))
"""weight x / sqrt(mean(x^2) + epsilon), the mean over the last dim; the weight may be missing."""

_CUBE = Either((Product(_CUBIC, ("x", "x", "x")), Product(_CUBIC, (("pow", "x", 3),))))
_TANH = ("tanh", _scaled(("add", "x", _CUBE), sqrt(2 / pi)))
ACTIVATIONS: dict[str, Pattern] = {
    "silu": Product(1.0, (("sigmoid", "x"), "x")),
    "gelu_erf": Product(0.5, (("add", ("erf", _scaled("x", 1 / sqrt(2))), 1), "x")),
    "gelu": Product(0.5, (("add", _TANH, 1), "x")),
}
"""Kind of an op of the graph to the pattern of its input `x`."""
