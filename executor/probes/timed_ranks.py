"""Timed ranks: a job that runs `probe_timing.py`, its timings and their quality."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Protocol

import msgspec

from millrace.executor.hosts.rank_runs import run_ranks
from millrace.executor.probes.machine_load import MachineLoad
from millrace.executor.probes.probe_timing import ProbeRequest, Timings
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


class RoundTimings(Protocol):
    """Rounds of one rank's timings, on a core or a GPU."""

    @property
    def rounds(self) -> int:
        """Times that every checked probe was timed."""

    @property
    def spreads(self) -> Mapping[str, Sequence[float]]:
        """Shares by which the rounds of every probe differed, by table."""

    @property
    def load(self) -> MachineLoad | None:
        """Share that others took meanwhile; None where it is not known."""

    @property
    def frequency(self) -> float | None:
        """Share of its highest clock at which the device ran; None where it is not known."""


def quality_of(rank_timings: Sequence[RoundTimings]) -> MeasurementQuality:
    """Quality of what ranks have timed: how far their rounds differed, and what others took.

    Where ranks differ in what others took of their device, or in its clock, the worst counts.

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
    loads = [timings.load for timings in rank_timings if timings.load is not None]
    load = max(loads, key=lambda load: load.others + load.steal, default=None)
    frequencies = [timings.frequency for timings in rank_timings if timings.frequency is not None]
    return MeasurementQuality(
        rounds=min(timings.rounds for timings in rank_timings),
        spread=_rounded(median(every)) if every else None,
        spread_max=_rounded(usual_by_table[worst]) if worst else None,
        spread_max_of=worst,
        others=None if load is None else _rounded(load.others),
        steal=None if load is None else _rounded(load.steal),
        frequency=_rounded(min(frequencies)) if frequencies else None,
    )


def _rounded(share: float) -> float:
    """Share to a thousandth: what follows is not known."""
    return round(share, 3)
