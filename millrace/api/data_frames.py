"""DataFrames of results, where pandas is installed."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

    from millrace.planner.actors.trace import Trace

NANOSECONDS_PER_S = 1e9


class MissingPandasError(ImportError):
    """A DataFrame was asked for where pandas is not installed; says what to install."""


def data_frame(rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    """DataFrame with a column for every key of the rows.

    Parameters
    ----------
    rows : iterable of mapping
        Rows, all with the same keys.

    Raises
    ------
    MissingPandasError
        pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingPandasError(
            "a DataFrame needs pandas, which is not installed: pip install 'millrace[notebook]'"
        ) from None
    return pandas.DataFrame(list(rows))


def firings_frame(trace: "Trace") -> "DataFrame":
    """DataFrame of a trace, a row for every firing.

    Parameters
    ----------
    trace : Trace
        With spans; without them there are no rows.

    Returns
    -------
    DataFrame
        `rank`, `stage`, `queue`, `actor`, `kind`, `phase`, `block`, `step`, `firing` (counted in
        its step), `start_s` and `duration_s`.
    """
    lanes = {lane.rank: lane for lane in trace.lanes}
    rows = []
    for span in trace.spans:
        lane = lanes[span.rank]
        step, firing = divmod(span.firing, lane.firings[span.actor])
        rows.append(
            {
                "rank": span.rank,
                "stage": lane.stage,
                "queue": lane.queues[span.actor],
                "actor": lane.actors[span.actor],
                "kind": lane.kinds[span.actor],
                "phase": lane.phases[span.actor],
                "block": lane.blocks[span.actor],
                "step": step,
                "firing": firing,
                "start_s": span.start_ns / NANOSECONDS_PER_S,
                "duration_s": (span.end_ns - span.start_ns) / NANOSECONDS_PER_S,
            }
        )
    return data_frame(rows)
