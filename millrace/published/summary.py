"""Summary of the predictions of many rows: errors, by group, and of memory.

An error is predicted over measured, less one. Its mean is of magnitudes, its bias is signed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import fmean, median
from typing import Any

from millrace.planner.memory import device_overhead_bytes
from millrace.planner.memory.reserve import DEFAULT_RESERVE
from millrace.published import dlperf
from millrace.published.prediction import Predicted
from millrace.published.reading import LINE, MALFORMED, Row, TableFormat
from millrace.published.single_setting_pairs import differences, pairs
from millrace.published.validation import RowOutcome, source

WITHIN = 0.1
STATE_WITHIN = 0.01  # nothing in state is a matter of opinion
WORST_ROWS = 12
BEYOND_RESERVE = 0.05  # of peaks may lie above their prediction and a reserve

Key = Callable[[Row], str]

# Tables group rows by these keys.
GROUPS: dict[TableFormat, dict[str, Key]] = {
    TableFormat.LANGUAGE: {
        "source": source,
        "framework × gpu": lambda row: f"{row['framework'] or '?'} × {row['gpu']}",
    },
    TableFormat.DLPERF: {
        "framework": dlperf.framework_name,
        "model × dtype": lambda row: f"{row['model']} × {row['dtype']}",
    },
    TableFormat.NAMED: {"source": source, "model": lambda row: row["model"]},
    TableFormat.TESTS: {},
}
# Words of the column `fitted`: whether figures were fitted to a row. Its groups come where it is.
FITTED = {"1": "fitted to", "0": "never fitted to"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors of some rows; None where there are no rows."""

    rows: int
    mape: float | None = None
    median_error: float | None = None
    bias: float | None = None
    within_10_percent: float | None = None


def figures(errors: Iterable[float]) -> Figures:
    """Figures of errors: mean, median and share within ten percent of magnitudes, and the bias.

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


def judged(outcomes: Sequence[RowOutcome]) -> list[RowOutcome]:
    """Outcomes of the rows of tier A; all where there are none."""
    return _of_tier(outcomes, "A") or list(outcomes)


def _of_tier(outcomes: Sequence[RowOutcome], tier: str) -> list[RowOutcome]:
    return [outcome for outcome in outcomes if outcome.row_question.row["tier"] == tier]


def points(outcomes: Sequence[RowOutcome], key: Key) -> dict[str, list[tuple[float, float]]]:
    """Measured and predicted step times of the rows that are judged, by group."""
    points_by_group: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for outcome in judged(outcomes):
        if outcome.predicted is not None and outcome.error is not None:
            pair = (outcome.row_question.measured_s or 0.0, outcome.predicted.step_time_s)
            points_by_group[key(outcome.row_question.row)].append(pair)
    return dict(points_by_group)


def worst(outcomes: Iterable[RowOutcome], count: int = WORST_ROWS) -> list[RowOutcome]:
    """Outcomes that are furthest off, by the ratio of predicted and measured, the worst first."""

    def distance(outcome: RowOutcome) -> float:
        ratio = 1 + (outcome.error or 0.0)
        return max(ratio, 1 / ratio)

    judged_outcomes = [outcome for outcome in outcomes if outcome.error is not None]
    return sorted(judged_outcomes, key=distance, reverse=True)[:count]


def memory_error(outcome: RowOutcome) -> float | None:
    """Error of the predicted peak of memory; None where no peak is known."""
    if outcome.predicted is None or outcome.row_question.peak_bytes is None:
        return None
    return outcome.predicted.peak_bytes / outcome.row_question.peak_bytes - 1


def state_error(outcome: RowOutcome) -> float | None:
    """Error of the memory that is predicted between steps; None where none is known."""
    predicted, measured = outcome.predicted, outcome.row_question.state_bytes
    if predicted is None or predicted.state_bytes is None or not measured:
        return None
    return predicted.state_bytes / measured - 1


def above_reserve(outcome: RowOutcome) -> bool | None:
    """True if a measured peak lies above its prediction and the reserve; None without a peak."""
    asked, predicted = outcome.row_question, outcome.predicted
    if predicted is None or asked.peak_bytes is None or asked.cluster is None:
        return None
    reserve = DEFAULT_RESERVE.bytes_of(asked.cluster.device.memory_bytes)
    return asked.peak_bytes > predicted.peak_bytes + reserve


def account_error(outcome: RowOutcome) -> float | None:
    """Error of the same peak by the plan's own account; None where no peak is known."""
    if outcome.predicted is None or outcome.row_question.peak_bytes is None:
        return None
    return outcome.predicted.account_bytes / outcome.row_question.peak_bytes - 1


def fits_device(outcome: RowOutcome) -> bool | None:
    """True if a device of the row holds its plan by the plan's own account; None without a plan."""
    if outcome.predicted is None or outcome.row_question.cluster is None:
        return None
    return outcome.predicted.device_bytes <= outcome.row_question.cluster.device.memory_bytes


def ran_out(outcome: RowOutcome) -> bool:
    """True if a run that is expressed ended for want of memory."""
    return outcome.predicted is not None and outcome.row_question.measured_s == 0


def needs_more(outcome: RowOutcome) -> bool | None:
    """True if a run needs more memory than a device has, as its framework uses it.

    What its process takes of a device besides counts too. None without a plan.
    """
    cluster = outcome.row_question.cluster
    if outcome.predicted is None or cluster is None:
        return None
    besides = device_overhead_bytes(outcome.predicted.peak_bytes, cluster)
    return outcome.predicted.peak_bytes + sum(besides.values()) > cluster.device.memory_bytes


def reserve_fraction(outcomes: Iterable[RowOutcome], by_account: bool = False) -> float | None:
    """Least share of a device's memory that most measured peaks exceed their prediction by at most.

    Of the peaks no more than `BEYOND_RESERVE` lie above the prediction and that share of their
    device; never less than 0, and None where no peak is known.

    Parameters
    ----------
    outcomes : iterable of RowOutcome
        Rows; those without a peak or a prediction are left out.
    by_account : bool
        Take the plan's own account for the prediction, without the framework's habits.
    """
    shares = []
    for outcome in outcomes:
        asked, predicted = outcome.row_question, outcome.predicted
        if predicted is None or asked.peak_bytes is None or asked.cluster is None:
            continue
        expected = predicted.account_bytes if by_account else predicted.peak_bytes
        shares.append((asked.peak_bytes - expected) / asked.cluster.device.memory_bytes)
    if not shares:
        return None
    return max(0.0, sorted(shares)[ceil((1 - BEYOND_RESERVE) * len(shares)) - 1])


def document(outcomes: Sequence[RowOutcome], layout: TableFormat) -> dict[str, Any]:
    """Document of `millrace validate --json`: rows in order, and what they say together.

    The figures are those of tier A, with `tier_b` beside them; of a file of B alone, those of B.
    """
    rows = judged(outcomes)
    memory = [error for outcome in rows if (error := memory_error(outcome)) is not None]
    account = [error for outcome in rows if (error := account_error(outcome)) is not None]
    beyond = sum(
        memory_error(outcome) is not None and fits_device(outcome) is False for outcome in rows
    )
    return {
        **_tier(rows),
        "tier_b": _tier(_of_tier(outcomes, "B")),
        "groups": groups(rows, layout),
        "memory": asdict(figures(memory))
        | {"reserve_fraction": reserve_fraction(rows), "above_reserve": _share(rows)},
        "state": _state(rows),
        "memory_account": asdict(figures(account))
        | {"reserve_fraction": reserve_fraction(rows, by_account=True), "beyond_device": beyond},
        "out_of_memory": _out_of_memory(rows),
        "differences": differences(pairs(rows)) if layout is TableFormat.LANGUAGE else None,
        "rows": [row_document(outcome) for outcome in outcomes],
    }


def _share(outcomes: Iterable[RowOutcome]) -> float | None:
    """Share of the peaks that lie above their predictions and the reserve; None without peaks."""
    told = [above for outcome in outcomes if (above := above_reserve(outcome)) is not None]
    return sum(told) / len(told) if told else None


def _state(outcomes: Iterable[RowOutcome]) -> dict[str, Any]:
    """Errors of what is allocated between steps, and the share of runs within one percent."""
    errors = [error for outcome in outcomes if (error := state_error(outcome)) is not None]
    near = sum(abs(error) <= STATE_WITHIN for error in errors)
    return asdict(figures(errors)) | {"within_1_percent": near / len(errors) if errors else None}


def groups(outcomes: Sequence[RowOutcome], layout: TableFormat) -> dict[str, dict[str, Any]]:
    """Figures of rows by each key of a layout; by `fitted` too, where a row has that column."""
    keys = GROUPS[layout]
    if any(outcome.row_question.row.get("fitted", "") in FITTED for outcome in outcomes):
        keys = keys | {"fit": fitted_to}
    return {name: _groups(outcomes, key) for name, key in keys.items()}


def fitted_to(row: Row) -> str:
    """Words on whether figures were fitted to a row."""
    return FITTED.get(row.get("fitted", ""), "not told")


def _out_of_memory(outcomes: Sequence[RowOutcome]) -> dict[str, int]:
    """Number of runs that ended for want of memory, and of those whose plan needs too much."""
    ended = [outcome for outcome in outcomes if ran_out(outcome)]
    return {"rows": len(ended), "predicted": sum(bool(needs_more(each)) for each in ended)}


def _tier(outcomes: Sequence[RowOutcome]) -> dict[str, Any]:
    errors = asdict(figures(outcome.error for outcome in outcomes if outcome.error is not None))
    errors["rows"] = sum(outcome.predicted is not None for outcome in outcomes)
    return {"count": len(outcomes), "expressed": errors.pop("rows")} | errors


def _groups(outcomes: Iterable[RowOutcome], key: Key) -> dict[str, Any]:
    """Figures of each group of rows, in the order of their first rows."""
    groups: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.error is not None:
            groups[key(outcome.row_question.row)].append(outcome.error)
    return {name: asdict(figures(errors)) for name, errors in groups.items()}


def row_document(outcome: RowOutcome) -> dict[str, Any]:
    """Columns of a row and what is predicted of it, or the reason why nothing is."""
    columns = {name: value for name, value in outcome.row_question.row.items() if name != MALFORMED}
    row: dict[str, Any] = columns | {LINE: int(columns[LINE])}
    if outcome.predicted is None:
        return row | {"predicted_s": None, "error": None, "reason": outcome.reason}
    state = outcome.predicted.state_bytes
    return row | {
        "measured_s": outcome.row_question.measured_s or None,
        "predicted_s": outcome.predicted.step_time_s,
        "error": outcome.error,
        **_rates(outcome, outcome.predicted),
        "predicted_peak_gb": outcome.predicted.peak_bytes / 1e9,
        "memory_error": memory_error(outcome),
        "above_reserve": above_reserve(outcome),
        "predicted_state_gb": state and state / 1e9,
        "state_error": state_error(outcome),
        "account_peak_gb": outcome.predicted.account_bytes / 1e9,
        "account_error": account_error(outcome),
        "fits_device": fits_device(outcome),
        "needs_more": needs_more(outcome),
        "bubble_fraction": outcome.predicted.bubble_fraction,
        "exposed_communication_s": outcome.predicted.exposed_communication_s,
        "note": "; ".join(outcome.notes),
    }


def _rates(outcome: RowOutcome, predicted: Predicted) -> dict[str, float]:
    """Predicted tokens, and FLOPs as the row's source counts them, of a device in a second."""
    asked, row = outcome.row_question, outcome.row_question.row
    assert asked.question is not None, "a row without a question has no prediction"
    question = asked.question
    tokens = question.global_batch * question.model.seq_len
    rates = {
        "predicted_tokens_per_s_per_gpu": tokens / question.cluster.devices / predicted.step_time_s
    }
    if row.get("tflops_per_gpu", "") and outcome.error is not None:
        measured = float(row["tflops_per_gpu"])
        rates["predicted_tflops_per_gpu"] = measured / (1 + outcome.error)
    return rates
