"""What predictions of many rows say together: errors, by group, and of memory.

An error is predicted over measured, less one. Its mean is of magnitudes, its bias is signed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from millrace.published.question import InexpressibleError
from millrace.published.reading import Row, number
from millrace.published.validation import Outcome, source

WITHIN = 0.1
WORST_ROWS = 12

# Sources that print what the allocator had reserved, not what was allocated at the peak
# (their own words: torchtitan's metrics), and how much more that is: 3 to 9 %, 5 % in the mean of
# 43 runs (SimuMax's published runs, 2025).
RESERVED = {"torchtitan": 1.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors of some rows; None where there are no rows."""

    rows: int
    mape: float | None
    median_error: float | None
    bias: float | None
    within_10_percent: float | None

    @property
    def document(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "rows": self.rows,
            "mape": self.mape,
            "median_error": self.median_error,
            "bias": self.bias,
            "within_10_percent": self.within_10_percent,
        }


def figures(errors: Iterable[float]) -> Figures:
    """Return the mean, median and share within ten percent of errors' magnitudes, and their mean.

    Examples
    --------
    >>> figures([0.1, -0.3]).mape
    0.2
    """
    signed = list(errors)
    if not signed:
        return Figures(rows=0, mape=None, median_error=None, bias=None, within_10_percent=None)
    sizes = [abs(error) for error in signed]
    return Figures(
        rows=len(sizes),
        mape=fmean(sizes),
        median_error=median(sizes),
        bias=fmean(signed),
        within_10_percent=sum(size <= WITHIN for size in sizes) / len(sizes),
    )


def of_tier(outcomes: Sequence[Outcome], tier: str) -> list[Outcome]:
    """Rows of one tier."""
    return [one for one in outcomes if one.asked.row["tier"] == tier]


def errors(outcomes: Iterable[Outcome]) -> list[float]:
    """Errors of step time of the rows that are expressed."""
    return [one.error for one in outcomes if one.error is not None]


def by(outcomes: Iterable[Outcome], key: Callable[[Row], str]) -> dict[str, Figures]:
    """Figures of each group of rows, in the order of their first rows."""
    groups: dict[str, list[float]] = defaultdict(list)
    for one in outcomes:
        if one.error is not None:
            groups[key(one.asked.row)].append(one.error)
    return {name: figures(found) for name, found in groups.items()}


def published_peak_bytes(row: Row) -> float | None:
    """The peak of allocated memory that a row prints, in bytes; None where it prints none."""
    try:
        size = number(row, "peak_mem_gb")
    except InexpressibleError:
        return None
    unit = 2**30 if "GiB" in row["notes"] else 1e9
    return size * unit / RESERVED.get(row.get("source", ""), 1.0)


def memory_error(one: Outcome) -> float | None:
    """Predicted over published peak of memory, less one."""
    published = published_peak_bytes(one.asked.row)
    if one.predicted is None or published is None:
        return None
    return one.predicted.peak_bytes / published - 1


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what `millrace validate --json` prints: rows in order, and what they say together.

    The figures are those of tier A, with `tier_b` beside them; of a file of B alone, those of B.
    """
    judged = of_tier(outcomes, "A") or list(outcomes)
    found = [memory for one in judged if (memory := memory_error(one)) is not None]
    return {
        **_tier(judged),
        "memory": figures(found).document,
        "by_source": _documents(by(judged, source)),
        "by_framework_and_gpu": _documents(by(judged, framework_and_gpu)),
        "tier_b": _tier(of_tier(outcomes, "B")),
        "rows": [row_document(one) for one in outcomes],
    }


def _tier(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    known = figures(errors(outcomes)).document
    return {"count": len(outcomes), "expressed": known.pop("rows")} | known


def _documents(groups: dict[str, Figures]) -> dict[str, Any]:
    return {name: one.document for name, one in groups.items()}


def framework_and_gpu(row: Row) -> str:
    """Which software on which device a row ran."""
    return f"{row['framework'] or '?'} × {row.get('gpu') or '?'}"


def row_document(one: Outcome) -> dict[str, Any]:
    """A row's columns and what is predicted of it, or the reason why nothing is."""
    found: dict[str, Any] = {k: v for k, v in one.asked.row.items() if k != "malformed"}
    if one.predicted is None:
        return found | {"predicted_s": None, "error": None, "reason": one.reason}
    return found | {
        "measured_s": one.asked.measured_s,
        "predicted_s": one.predicted.step_time_s,
        "error": one.error,
        "predicted_peak_gb": one.predicted.peak_bytes / 1e9,
        "memory_error": memory_error(one),
        "bubble_fraction": one.predicted.bubble_fraction,
        "exposed_communication_s": one.predicted.exposed_communication_s,
        "note": "; ".join(one.notes),
    }


def worst(outcomes: Iterable[Outcome], count: int = WORST_ROWS) -> list[Outcome]:
    """Rows that are furthest off, by the ratio of predicted and measured."""
    known = [one for one in outcomes if one.error is not None]

    def distance(one: Outcome) -> float:
        assert one.error is not None
        return max(1 + one.error, 1 / (1 + one.error))

    return sorted(known, key=distance, reverse=True)[:count]
