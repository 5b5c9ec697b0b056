"""Timings of a job of ranks that `probe_timing.py` runs in, and what they say of their quality."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from millrace.executor.probes.probe_timing import ProbeRequest, Timings
from millrace.executor.processes import run_ranks
from millrace.planner.cluster import MeasurementQuality


def timed_ranks(ranks: int, order: ProbeRequest) -> list[Timings]:
    """Timings of so many ranks, started for this.

    Parameters
    ----------
    ranks
        Number of processes.
    order
        What each of them times.

    Raises
    ------
    ExecutorError
        A process failed.
    """
    with TemporaryDirectory(prefix="millrace-") as name:
        folder = Path(name)
        (folder / "order.json").write_bytes(msgspec.json.encode(order))
        run_ranks("millrace.executor.probes.probe_timing", ranks, folder)
        return [
            msgspec.json.decode((folder / f"timings.{rank}.json").read_bytes(), type=Timings)
            for rank in range(ranks)
        ]


def quality_of(rank_timings: list[Timings]) -> MeasurementQuality:
    """Quality of what ranks have timed: how far their rounds differed, and what others took.

    Parameters
    ----------
    rank_timings
        Timings of every rank.
    """
    spread_by_table: dict[str, list[float]] = {}
    for timings in rank_timings:
        for table, shares in timings.spreads.items():
            spread_by_table.setdefault(table, []).extend(shares)
    usual_by_table = {table: median(shares) for table, shares in spread_by_table.items() if shares}
    worst = max(sorted(usual_by_table), key=usual_by_table.__getitem__, default="")
    every = [share for shares in spread_by_table.values() for share in shares]
    first = rank_timings[0]
    return MeasurementQuality(
        rounds=first.rounds,
        spread=_rounded(median(every)) if every else None,
        spread_max=_rounded(usual_by_table[worst]) if worst else None,
        spread_max_of=worst,
        others=None if first.load is None else _rounded(first.load.others),
        steal=None if first.load is None else _rounded(first.load.steal),
        frequency=None if first.frequency is None else _rounded(first.frequency),
    )


def _rounded(share: float) -> float:
    """Share to a thousandth: what follows is not known."""
    return round(share, 3)
