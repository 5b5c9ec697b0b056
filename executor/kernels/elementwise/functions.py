"""Functions of every element as formulas: `FUNCTIONS`, one value and one slope each.

A formula `f(x, out, spare, *numbers)` reads a chunk x, leaves its result in `out` and may spoil the
`SPARES` arrays of `spare`; numbers are the function's attributes in the op table's order. All are
written as a sequence of passes over arrays that lie in the cache.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import erfc, exp, pi, sqrt
from typing import NamedTuple

import numpy as np

from millrace.executor.kernels.context import Array

Formula = Callable[..., None]
Spare = Sequence[Array]

SPARES = 3
_GELU_SCALE = sqrt(2 / pi)  # tanh form of GELU: Hendrycks and Gimpel 2016, section 2
_GELU_CUBIC = 0.044715  # the same


class Function(NamedTuple):
    """A function's value and slope, both of x."""

    value: Formula
    slope: Formula


def _relu(x: Array, out: Array, spare: Spare) -> None:
    np.maximum(x, 0, out=out)


def _relu_slope(x: Array, out: Array, spare: Spare) -> None:
    np.greater(x, 0, out=out)


def _leaky_relu(x: Array, out: Array, spare: Spare, slope: float) -> None:
    np.minimum(x, 0, out=spare[0])
    np.multiply(spare[0], slope, out=spare[0])
    np.maximum(x, 0, out=out)
    np.add(out, spare[0], out=out)


def _leaky_relu_slope(x: Array, out: Array, spare: Spare, slope: float) -> None:
    np.greater(x, 0, out=out)
    np.multiply(out, 1 - slope, out=out)
    np.add(out, slope, out=out)


def _tanh_of_gelu(x: Array, out: Array, square: Array) -> None:
    """Leave x² in `square` and tanh(√(2/π) (x + 0.044715 x³)) in `out`; no power is taken."""
    np.multiply(x, x, out=square)
    np.multiply(square, _GELU_SCALE * _GELU_CUBIC, out=out)
    np.add(out, _GELU_SCALE, out=out)
    np.multiply(out, x, out=out)
    np.tanh(out, out=out)


def _gelu(x: Array, out: Array, spare: Spare) -> None:
    tanh = spare[1]
    _tanh_of_gelu(x, tanh, spare[0])
    np.add(tanh, 1, out=tanh)
    np.multiply(tanh, 0.5, out=tanh)
    np.multiply(tanh, x, out=out)


def _gelu_slope(x: Array, out: Array, spare: Spare) -> None:
    """(1 + tanh u) / 2 · (1 + x (1 − tanh u) u'), u' = √(2/π) (1 + 3 · 0.044715 x²)."""
    square, tanh, slope = spare
    _tanh_of_gelu(x, tanh, square)
    np.multiply(square, 3 * _GELU_CUBIC * _GELU_SCALE, out=square)
    np.add(square, _GELU_SCALE, out=square)
    np.multiply(square, x, out=square)
    np.subtract(1, tanh, out=slope)
    np.multiply(slope, square, out=slope)
    np.add(slope, 1, out=slope)
    np.add(tanh, 1, out=tanh)
    np.multiply(tanh, 0.5, out=tanh)
    np.multiply(slope, tanh, out=out)


class _Tail(NamedTuple):
    """Phi(−x) exp(x²/2) for x > 0: a polynomial of w = scale / (x + start) + shift."""

    start: float
    scale: float
    shift: float
    coefficients: tuple[float, ...]


@lru_cache
def _tail(dtype: str) -> _Tail:
    """Fit the tail of the normal distribution at Chebyshev points, to what the dtype can hold.

    The error of Phi is 2e-7 (float32) and 3e-15 (float64) up to `largest`; beyond, where the
    polynomial is not fitted, exp(−x²/2) leaves less than that of it.
    """
    largest, degree = (5.9, 6) if dtype == "float32" else (8.5, 18)
    start = 2.5  # found by trial: the smallest error for these degrees
    low, high = start / (largest + start), 1.0

    def scaled_tail(part: Array) -> Array:
        return np.array([erfc(x / sqrt(2)) / 2 * exp(x * x / 2) for x in start / part - start])

    fit = np.polynomial.Chebyshev.interpolate(scaled_tail, degree, [low, high])
    monomials = np.polynomial.chebyshev.cheb2poly(fit.coef)
    return _Tail(
        start=start,
        scale=2 * start / (high - low),
        shift=-(high + low) / (high - low),
        coefficients=tuple(float(coefficient) for coefficient in monomials),
    )


def erf_fit(dtype: str) -> tuple[float, ...]:
    """Numbers of the fit of the normal distribution's tail: start, scale, shift, coefficients."""
    tail = _tail(dtype)
    return tail.start, tail.scale, tail.shift, *tail.coefficients


def _normal_tail(x: Array, out: Array, size: Array, density: Array) -> None:
    """Leave Phi(−|x|) in `out`, |x| in `size` and exp(−x²/2) in `density`."""
    tail = _tail(str(x.dtype))
    np.absolute(x, out=size)
    np.add(size, tail.start, out=density)
    np.divide(tail.scale, density, out=density)
    np.add(density, tail.shift, out=density)
    *rest, second, first = tail.coefficients
    np.multiply(density, first, out=out)
    np.add(out, second, out=out)
    for coefficient in reversed(rest):
        np.multiply(out, density, out=out)
        np.add(out, coefficient, out=out)
    np.multiply(x, x, out=density)
    np.multiply(density, -0.5, out=density)
    np.exp(density, out=density)
    np.multiply(out, density, out=out)


def _gelu_erf(x: Array, out: Array, spare: Spare) -> None:
    """X Phi(x), as max(x, 0) − |x| Phi(−|x|)."""
    tail, size = spare[0], spare[1]
    _normal_tail(x, tail, size, spare[2])
    np.multiply(tail, size, out=tail)
    np.maximum(x, 0, out=out)
    np.subtract(out, tail, out=out)


def _gelu_erf_slope(x: Array, out: Array, spare: Spare) -> None:
    """Phi(x) + x phi(x): below 0 r = Phi(−|x|) − |x| phi(x), above 0 it is 1 − r."""
    tail, size, density = spare
    _normal_tail(x, tail, size, density)
    np.multiply(density, 1 / sqrt(2 * pi), out=density)
    np.multiply(density, size, out=density)
    np.subtract(tail, density, out=tail)
    np.greater(x, 0, out=out)
    np.multiply(out, -2, out=size)
    np.add(size, 1, out=size)
    np.multiply(tail, size, out=tail)
    np.add(out, tail, out=out)


def sigmoid(x: Array, out: Array, spare: Spare) -> None:
    """1 / (1 + exp(−x)); far below zero exp overflows to infinity, whose inverse is the 0 meant."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def _sigmoid_slope(x: Array, out: Array, spare: Spare) -> None:
    sigmoid(x, spare[0], spare)
    np.subtract(1, spare[0], out=out)
    np.multiply(out, spare[0], out=out)


def silu(x: Array, out: Array, spare: Spare) -> None:
    """X / (1 + exp(−x))."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.divide(x, out, out=out)


def silu_slope(x: Array, out: Array, spare: Spare) -> None:
    """S (1 + x (1 − s)), with s = sigmoid(x)."""
    gate = spare[0]
    sigmoid(x, gate, spare)
    np.subtract(1, gate, out=out)
    np.multiply(out, x, out=out)
    np.add(out, 1, out=out)
    np.multiply(out, gate, out=out)


def _tanh(x: Array, out: Array, spare: Spare) -> None:
    np.tanh(x, out=out)


def _tanh_slope(x: Array, out: Array, spare: Spare) -> None:
    np.tanh(x, out=out)
    np.multiply(out, out, out=out)
    np.subtract(1, out, out=out)


def softplus(x: Array, out: Array, spare: Spare) -> None:
    """max(x, 0) + log(1 + exp(−|x|)), where nothing overflows."""
    np.absolute(x, out=spare[0])
    np.negative(spare[0], out=spare[0])
    np.exp(spare[0], out=spare[0])
    np.log1p(spare[0], out=spare[0])
    np.maximum(x, 0, out=out)
    np.add(out, spare[0], out=out)


def _exp(x: Array, out: Array, spare: Spare) -> None:
    np.exp(x, out=out)


def _log(x: Array, out: Array, spare: Spare) -> None:
    np.log(x, out=out)


def _reciprocal(x: Array, out: Array, spare: Spare) -> None:
    np.reciprocal(x, out=out)


def _reciprocal_slope(x: Array, out: Array, spare: Spare) -> None:
    np.multiply(x, x, out=out)
    np.divide(-1, out, out=out)


def _sqrt(x: Array, out: Array, spare: Spare) -> None:
    np.sqrt(x, out=out)


def _sqrt_slope(x: Array, out: Array, spare: Spare) -> None:
    np.sqrt(x, out=out)
    np.divide(0.5, out, out=out)


def _rsqrt(x: Array, out: Array, spare: Spare) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


def _rsqrt_slope(x: Array, out: Array, spare: Spare) -> None:
    np.sqrt(x, out=out)
    np.multiply(out, x, out=out)
    np.divide(-0.5, out, out=out)


def _power(x: Array, out: Array, spare: Spare, exponent: float) -> None:
    if exponent == 2:
        np.multiply(x, x, out=out)
    else:
        np.power(x, exponent, out=out)


def _power_slope(x: Array, out: Array, spare: Spare, exponent: float) -> None:
    if exponent == 2:
        np.multiply(x, 2, out=out)
    else:
        np.power(x, exponent - 1, out=out)
        np.multiply(out, exponent, out=out)


def _sin(x: Array, out: Array, spare: Spare) -> None:
    np.sin(x, out=out)


def _cos(x: Array, out: Array, spare: Spare) -> None:
    np.cos(x, out=out)


def _cos_slope(x: Array, out: Array, spare: Spare) -> None:
    np.sin(x, out=out)
    np.negative(out, out=out)


def _clip(x: Array, out: Array, spare: Spare, low: float, high: float) -> None:
    np.maximum(x, low, out=out)
    np.minimum(out, high, out=out)


def _clip_slope(x: Array, out: Array, spare: Spare, low: float, high: float) -> None:
    np.greater_equal(x, low, out=out)
    np.less_equal(x, high, out=spare[0])
    np.multiply(out, spare[0], out=out)


def _zero(x: Array, out: Array, spare: Spare) -> None:
    out.fill(0)


FUNCTIONS: dict[str, Function] = {
    "relu": Function(_relu, _relu_slope),
    "leaky_relu": Function(_leaky_relu, _leaky_relu_slope),
    "gelu": Function(_gelu, _gelu_slope),
    "gelu_erf": Function(_gelu_erf, _gelu_erf_slope),
    "silu": Function(silu, silu_slope),
    "sigmoid": Function(sigmoid, _sigmoid_slope),
    "tanh": Function(_tanh, _tanh_slope),
    "softplus": Function(softplus, sigmoid),
    "exp": Function(_exp, _exp),
    "log": Function(_log, _reciprocal),
    "sqrt": Function(_sqrt, _sqrt_slope),
    "rsqrt": Function(_rsqrt, _rsqrt_slope),
    "reciprocal": Function(_reciprocal, _reciprocal_slope),
    "power": Function(_power, _power_slope),
    "sin": Function(_sin, _cos),
    "cos": Function(_cos, _cos_slope),
    "clip": Function(_clip, _clip_slope),
    "is_positive": Function(_relu_slope, _zero),
}
