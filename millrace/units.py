"""Units where text is formatted or read: GiB, ms and % exist only here."""

import re
from math import inf

from millrace.planner.errors import PlanError
from millrace.planner.formatting import UNITS

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 365 * 86400.0}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES[f"{_letter}b"] = 1000**_power
    _BYTES[f"{_letter}ib"] = 1024**_power


def parse_bytes(text: str) -> int:
    """Read `80GiB`, `512MB` or a plain number of bytes.

    Raises
    ------
    PlanError
        The text is not a positive size, or a number so small that its unit was left out.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    scale = _BYTES.get(match.group(2).lower()) if match else None
    if match is None or scale is None or not 0 < float(match.group(1)) * scale < 2**63:
        raise PlanError(f"`{text}` is not a size in bytes: write 80GiB, 512MB or 1073741824")
    count = round(float(match.group(1)) * scale)
    if not match.group(2) and count < 1024**2:
        raise PlanError(f"`{text}` is {count} bytes: write {text.strip()}GiB, or {count}B if meant")
    return count


def parse_duration_s(text: str) -> float:
    """Read `30d`, `12h` or `90min`, as seconds.

    Raises
    ------
    PlanError
        The text is no duration above zero with its unit.

    Examples
    --------
    >>> parse_duration_s("1.5h"), parse_duration_s("30d")
    (5400.0, 2592000.0)
    """
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([a-zA-Z]+)\s*", text)
    scale = _SECONDS.get(match.group(2).lower()) if match else None
    if match is None or scale is None or not 0 < float(match.group(1)) * scale < inf:
        raise PlanError(f"`{text}` is not a duration: write 30d, 12h, 90min, 2w or 1y")
    return float(match.group(1)) * scale


def parse_count(text: str, example: str = "500k, 2M or 1.5e6") -> float:
    """Read `500k`, `2M`, `15T`, `$2M` or `1e12`, as a number.

    Parameters
    ----------
    text : str
        The number; K, M, B and T are powers of a thousand, a dollar before it changes nothing.
    example : str
        How it is written instead, for the refusal.

    Raises
    ------
    PlanError
        The text is no number above zero.

    Examples
    --------
    >>> parse_count("2M"), parse_count("$1.5b"), parse_count("1e12")
    (2000000.0, 1500000000.0, 1000000000000.0)
    """
    match = re.fullmatch(rf"\s*\$?\s*{_NUMBER}\s*([a-zA-Z]?)\s*", text)
    scale = _COUNTS.get(match.group(2).lower()) if match else None
    if match is None or scale is None or not 0 < float(match.group(1)) * scale < inf:
        raise PlanError(f"`{text}` is not a number above 0: write {example}")
    return float(match.group(1)) * scale


def format_bytes(count: float) -> str:
    """Write a size in the largest binary unit that leaves at least one: `1.50 GiB`."""
    unit, scale = byte_unit(count)
    return f"{count / scale:.2f} {unit}" if scale > 1 else f"{count:.0f} B"


def byte_unit(count: float) -> tuple[str, int]:
    """Largest binary unit of which `count` bytes are at least one, and its bytes."""
    for unit, scale in UNITS:
        if abs(count) >= scale:
            return unit, scale
    return "B", 1


def format_seconds(seconds: float) -> str:
    """Write a duration in s, ms, µs or ns with three significant digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{seconds / 1e-9:.0f} ns" if seconds else "0 s"


def format_rate(per_second: float, unit: str) -> str:
    """Write a rate with a decimal prefix: `312 TFLOP/s`, `2.0 GB/s`.

    Parameters
    ----------
    per_second : float
        The rate, in `unit` per second.
    unit : str
        What is counted, such as `FLOP` or `B`.
    """
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(per_second) >= scale:
            return f"{_three(per_second / scale)} {prefix}{unit}/s"
    return f"{_three(per_second)} {unit}/s"


def format_percent(fraction: float, signed: bool = False) -> str:
    """Write a fraction as a percentage with one decimal.

    Parameters
    ----------
    fraction : float
        1.0 is 100 %.
    signed : bool
        Write a plus before what is not negative.
    """
    return f"{fraction * 100:+.1f} %" if signed else f"{fraction * 100:.1f} %"


def format_count(count: float) -> str:
    """Write a large count with three digits and K, M, B or T: `124M`, `1.56B`."""
    for letter, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(count) >= scale:
            return f"{_three(count / scale)}{letter}"
    return f"{count:.0f}"


def _three(value: float) -> str:
    """Number with three significant digits, never in scientific notation."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
