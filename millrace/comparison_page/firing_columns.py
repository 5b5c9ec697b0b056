"""Firing columns: two timelines as typed columns of numbers, which the page's script draws.

A column is one list of integers; an object for every bar would be ten times as long. Times count in
units of `unit_ns` from the start of the step. In a row of bars `gap` is the time from the end of
the bar before to the start of the bar, and `actor` the difference from the number of the actor
before: mostly small numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import floor, log10
from typing import Any

from millrace.comparison import ActorRow
from millrace.palette import PHASES
from millrace.planner.collectives import COLLECTIVES
from millrace.traces.timeline import Bar, Timeline

RESOLUTION = 1e7  # units of time in a step, at least
COMMUNICATION = "communication"  # the colour of all collectives


def time_unit_ns(longest_ns: int) -> int:
    """Power of ten of nanoseconds of which `longest_ns` holds at least ten million, or 1 ns.

    Examples
    --------
    >>> time_unit_ns(349_000_000), time_unit_ns(20_000_000_000)
    (10, 1000)
    """
    return int(10 ** max(floor(log10(max(longest_ns, 1) / RESOLUTION)), 0))


def actor_columns(
    actors: Sequence[ActorRow], medians: Sequence[Mapping[str, float]], firings: Mapping[str, int]
) -> dict[str, Any]:
    """Columns of the actors' names and figures; texts that repeat are numbers into a list.

    Parameters
    ----------
    actors : sequence of ActorRow
        Rows of the comparison; an actor's number is its place among them.
    medians : sequence of mapping
        Median nanoseconds of a firing by name, predicted and measured.
    firings : mapping
        Firings a step by name.
    """
    kinds = list(dict.fromkeys(row.kind for row in actors))
    phases = list(dict.fromkeys(row.phase for row in actors))
    kind_numbers = {kind: number for number, kind in enumerate(kinds)}
    phase_numbers = {phase: number for number, phase in enumerate(phases)}
    colours = list(PHASES)
    return {
        "kinds": kinds,
        "phases": phases,
        "name": [row.name for row in actors],
        "kind": [kind_numbers[row.kind] for row in actors],
        "phase": [phase_numbers[row.phase] for row in actors],
        "colour": [colours.index(_colour(row)) for row in actors],
        "firings": [firings.get(row.name, 1) for row in actors],
        "predicted_ns": [_nanoseconds(row.predicted_s) for row in actors],
        "measured_ns": [_nanoseconds(row.measured_s) for row in actors],
        "predicted_median_ns": [_rounded(medians[0].get(row.name)) for row in actors],
        "measured_median_ns": [_rounded(medians[1].get(row.name)) for row in actors],
    }


def _colour(row: ActorRow) -> str:
    """Key of `PHASES` of an actor's bars."""
    if row.kind in COLLECTIVES:
        return COMMUNICATION
    return row.phase if row.phase in PHASES else "begin"


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _rounded(nanoseconds: float | None) -> int | None:
    return None if nanoseconds is None else round(nanoseconds)


def firings_per_step(timelines: Iterable[Timeline]) -> dict[str, int]:
    """Firings a step of every actor, by name, as far as bars show them."""
    firings: dict[str, int] = {}
    for drawn_timeline in timelines:
        for bar in drawn_timeline.bars:
            if bar.firing >= firings.get(bar.name, 0):
                firings[bar.name] = bar.firing + 1
    return firings


def timeline_columns(
    timeline: Timeline, actor_numbers: Mapping[str, int], unit_ns: int
) -> dict[str, Any]:
    """Columns of one timeline: its rows, and the bars of each row in the order of their starts.

    Parameters
    ----------
    timeline : Timeline
        Its bars follow one another row by row.
    actor_numbers : mapping
        Number of every actor, by name.
    unit_ns : int
        Nanoseconds that a unit of time stands for.
    """
    bars_by_row = {row: list(bars) for row, bars in groupby(timeline.bars, lambda bar: bar.row)}
    return {
        "source": timeline.source,
        "step": timeline.step,
        "duration": round(timeline.duration_ns / unit_ns),
        "rank": [row.rank for row in timeline.rows],
        "stage": [row.stage for row in timeline.rows],
        "queue": [row.queue for row in timeline.rows],
        "bars": [
            _bar_columns(bars_by_row.get(position, []), actor_numbers, unit_ns)
            for position in range(len(timeline.rows))
        ],
    }


def _bar_columns(
    bars: Sequence[Bar], actor_numbers: Mapping[str, int], unit_ns: int
) -> dict[str, list[int]]:
    """Columns of a row's bars."""
    columns: dict[str, list[int]] = {"gap": [], "duration": [], "actor": [], "firing": []}
    end = actor = 0
    for bar in bars:
        start, number = round(bar.start_ns / unit_ns), actor_numbers[bar.name]
        duration = round(bar.end_ns / unit_ns) - start
        columns["gap"].append(start - end)
        columns["duration"].append(duration)
        columns["actor"].append(number - actor)
        columns["firing"].append(bar.firing)
        end, actor = start + duration, number
    return columns
