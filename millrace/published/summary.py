"""What predictions of many rows say together: errors, by group, and of memory.

An error is predicted over measured, less one. Its mean is of magnitudes, its bias is signed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from millrace.published import dlperf
from millrace.published.pairs import differences, pairs
from millrace.published.reading import LINE, MALFORMED, Layout, Row
from millrace.published.validation import Outcome, source

WITHIN = 0.1
WORST_ROWS = 12

Key = Callable[[Row], str]

# How rows are grouped in tables.
GROUPS: dict[Layout, dict[str, Key]] = {
    Layout.LANGUAGE: {
        "source": source,
        "framework × gpu": lambda row: f"{row['framework'] or '?'} × {row['gpu']}",
    },
    Layout.DLPERF: {
        "framework": dlperf.framework_name,
        "model × dtype": lambda row: f"{row['model']} × {row['dtype']}",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors of some rows; None where there are no rows."""

    rows: int
    mape: float | None = None
    median_error: float | None = None
    bias: float | None = None
    within_10_percent: float | None = None


def figures(errors: Iterable[float]) -> Figures:
    """Return the mean, median and share within ten percent of errors' magnitudes, and their mean.

    Examples
    --------
    >>> figures([0.05, -0.25]).mape
    0.15
    """
    signed = list(errors)
    if not signed:
        return Figures(rows=0)
    sizes = [abs(error) for error in signed]
    return Figures(
        rows=len(sizes),
        mape=fmean(sizes),
        median_error=median(sizes),
        bias=fmean(signed),
        within_10_percent=sum(size <= WITHIN for size in sizes) / len(sizes),
    )


def judged(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Rows of tier A; all where there are none."""
    return _of_tier(outcomes, "A") or list(outcomes)


def _of_tier(outcomes: Sequence[Outcome], tier: str) -> list[Outcome]:
    return [one for one in outcomes if one.asked.row["tier"] == tier]


def points(outcomes: Sequence[Outcome], key: Key) -> dict[str, list[tuple[float, float]]]:
    """Measured and predicted step times of the rows that are judged, by group."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in judged(outcomes):
        if one.predicted is not None:
            pair = (one.asked.measured_s, one.predicted.step_time_s)
            found[key(one.asked.row)].append(pair)
    return dict(found)


def worst(outcomes: Iterable[Outcome], count: int = WORST_ROWS) -> list[Outcome]:
    """Rows that are furthest off, by the ratio of predicted and measured."""

    def distance(one: Outcome) -> float:
        ratio = 1 + (one.error or 0.0)
        return max(ratio, 1 / ratio)

    known = [one for one in outcomes if one.error is not None]
    return sorted(known, key=distance, reverse=True)[:count]


def memory_error(one: Outcome) -> float | None:
    """Predicted over published peak of memory, less one."""
    if one.predicted is None or one.asked.peak_bytes is None:
        return None
    return one.predicted.peak_bytes / one.asked.peak_bytes - 1


def document(outcomes: Sequence[Outcome], layout: Layout) -> dict[str, Any]:
    """Return what `millrace validate --json` prints: rows in order, and what they say together.

    The figures are those of tier A, with `tier_b` beside them; of a file of B alone, those of B.
    """
    rows = judged(outcomes)
    memory = [error for one in rows if (error := memory_error(one)) is not None]
    return {
        **_tier(rows),
        "tier_b": _tier(_of_tier(outcomes, "B")),
        "groups": {name: _groups(rows, key) for name, key in GROUPS[layout].items()},
        "memory": asdict(figures(memory)),
        "differences": differences(pairs(rows)) if layout is Layout.LANGUAGE else None,
        "rows": [row_document(one) for one in outcomes],
    }


def _tier(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    known = asdict(figures(one.error for one in outcomes if one.error is not None))
    return {"count": len(outcomes), "expressed": known.pop("rows")} | known


def _groups(outcomes: Iterable[Outcome], key: Key) -> dict[str, Any]:
    """Figures of each group of rows, in the order of their first rows."""
    groups: dict[str, list[float]] = defaultdict(list)
    for one in outcomes:
        if one.error is not None:
            groups[key(one.asked.row)].append(one.error)
    return {name: asdict(figures(errors)) for name, errors in groups.items()}


def row_document(one: Outcome) -> dict[str, Any]:
    """A row's columns and what is predicted of it, or the reason why nothing is."""
    columns = {name: value for name, value in one.asked.row.items() if name != MALFORMED}
    found: dict[str, Any] = columns | {LINE: int(columns[LINE])}
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
