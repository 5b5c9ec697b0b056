"""Rotary positions: the angle by which each pair of features turns from one position to the next.

The `rotary` op's attributes decide: `base` and `dims`, and, where a model was stretched to longer
sequences after its first training, `scaling` (linear, llama3 or yarn) with `factor` and what that
way needs; and `step`, where positions are so far apart. Every backend takes its angles from here.

Notes
-----
Su et al., "RoFormer", arXiv 2104.09864 (2021), section 3.2.2: pair i of n turns by base^(-i / n).
Linear: Chen et al., arXiv 2306.15595 (2023), all angles divided by the factor. Llama 3.1: "The
Llama 3 Herd of Models", arXiv 2407.21783 (2024), and its released code: pairs that turn rarely
within the original length are divided, those that turn often are kept. YaRN: Peng et al., arXiv
2309.00071 (2023), section 3.2: the same idea with a ramp over the pairs' indexes.
"""

from collections.abc import Callable
from math import ceil, floor, log, pi

from millrace.models.errors import ModelError
from millrace.models.ops import Attributes


def rotary_frequencies(attributes: Attributes) -> tuple[float, ...]:
    """Radians by which each of the `dims` / 2 pairs turns per position.

    Parameters
    ----------
    attributes : mapping
        `base` and `dims` of a `rotary` op; optionally `scaling` with `factor` and, for llama3,
        `low_freq_factor`, `high_freq_factor` and `original_positions`, for yarn `beta_fast`,
        `beta_slow`, `original_positions` and `truncate`; optionally `step`, the distance of a
        position from the next one (1).

    Raises
    ------
    ModelError
        The way of scaling is unknown.

    Examples
    --------
    >>> rotary_frequencies({"base": 100.0, "dims": 4})
    (1.0, 0.1)
    """
    base, dims = float(attributes["base"]), int(attributes["dims"])
    plain = [base ** (-2 * pair / dims) for pair in range(dims // 2)]
    step, scaling = int(attributes.get("step", 1)), str(attributes.get("scaling", ""))
    if not scaling:
        return tuple(step * frequency for frequency in plain)
    if scaling not in SCALINGS:
        choices = ", ".join(SCALINGS)
        raise ModelError(f"there is no rotary scaling `{scaling}`; choose one of {choices}")
    unscaled_shares = SCALINGS[scaling](attributes, plain)
    factor = float(attributes["factor"])
    return tuple(
        step * f * (k + (1 - k) / factor) for f, k in zip(plain, unscaled_shares, strict=True)
    )


def _linear(attributes: Attributes, plain: list[float]) -> list[float]:
    return [0.0] * len(plain)


def _llama3(attributes: Attributes, plain: list[float]) -> list[float]:
    """Share of each pair's angle that stays: it grows with the turns in the original length."""
    low, high = float(attributes["low_freq_factor"]), float(attributes["high_freq_factor"])
    turns = [frequency * float(attributes["original_positions"]) / (2 * pi) for frequency in plain]
    if low == high:  # Llama 4
        return [float(turn >= low) for turn in turns]
    return [_clamp_to_unit((turn - low) / (high - low)) for turn in turns]


def _yarn(attributes: Attributes, plain: list[float]) -> list[float]:
    """Share of each pair's angle that stays: 1 up to the pair that turns `beta_fast` times.

    Turns are those within the original length; at `beta_slow` turns the share is 0, between the
    two it falls with the pair's index.
    """
    base, dims = float(attributes["base"]), int(attributes["dims"])
    original = float(attributes["original_positions"])

    def pair_turning(turns: float) -> float:
        return dims * log(original / (turns * 2 * pi)) / (2 * log(base))

    first = pair_turning(float(attributes["beta_fast"]))
    last = pair_turning(float(attributes["beta_slow"]))
    if attributes.get("truncate", True):
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    if first == last:
        last += 0.001  # the released code's way out of a ramp of no length
    return [1 - _clamp_to_unit((pair - first) / (last - first)) for pair in range(len(plain))]


def _clamp_to_unit(share: float) -> float:
    return min(max(share, 0.0), 1.0)


SCALINGS: dict[str, Callable[[Attributes, list[float]], list[float]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
