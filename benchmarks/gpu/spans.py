"""Times of every kind of actor in a step on a GPU, beside what was predicted and its bound.

A step is fired actor by actor with events around each; an actor's time is the median of several
such steps. Events cost a little themselves, some microseconds an actor.
"""

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.gpu.roofline import RooflineWork, kind_of, works
from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.gpu.driver import Mark
from millrace.planner.plan import Plan

Figures = dict[str, Any]
Span = tuple[int, int]
STEPS = 3


def spans_by_kind(device: Any, run: DeviceRun, plan: Plan) -> Figures:
    """Fire some steps eagerly; return the times of kinds of actors, and of all from first to last.

    Returns
    -------
    Figures
        `busy_s`: in which any actor was at work, `idle_share`: in which none was, between the first
        one's begin and the last one's end. `kinds`: one row per kind of actor, that which is
        furthest above its prediction first, with `kind`, `actors`, `measured_s`, `predicted_s` and
        `bound_s` (by the data sheet), seconds of a step.
    """
    steps = [_fired(device, run, step) for step in range(STEPS)]
    busy, total = zip(*(_busy(each.values()) for each in steps), strict=True)
    busy_ns, whole_ns = map(statistics.median, (busy, total))
    rows: dict[str, Figures] = {}
    for actor, work in enumerate(works(plan)):
        row = rows.setdefault(kind_of(work), _blank(work))
        row["actors"] += 1
        row["predicted_s"] += work.predicted_s * work.firings
        row["bound_s"] += work.bound_s * work.firings
        for firing in range(work.firings):
            took = [end - begin for begin, end in (each[actor, firing] for each in steps)]
            row["measured_s"] += statistics.median(took) / 1e9
    return {
        "busy_s": busy_ns / 1e9,
        "idle_share": 1 - busy_ns / whole_ns,
        "kinds": sorted(rows.values(), key=lambda row: row["predicted_s"] - row["measured_s"]),
    }


def _blank(work: RooflineWork) -> Figures:
    zeros = dict.fromkeys(("measured_s", "predicted_s", "bound_s"), 0.0)
    return {"kind": kind_of(work), "actors": 0} | zeros


def _fired(device: Any, run: DeviceRun, step: int) -> dict[tuple[int, int], Span]:
    """Nanoseconds from the step's start at which every firing of every actor began and ended."""
    start, end = device.event(timed=True), device.event(timed=True)
    device.record(start, run.driver.origin)
    marks: list[Mark] = run.driver.fire(step, timed=True)
    device.record(end, run.driver.origin)
    device.synchronize(end)
    device.check()
    return {
        (mark.actor, mark.firing): (
            device.elapsed_ns(start, mark.start),
            device.elapsed_ns(start, mark.end),
        )
        for mark in marks
    }


def _busy(spans: Iterable[Span]) -> tuple[int, int]:
    """Nanoseconds in which any actor was at work, and of all from first to last."""
    ordered = sorted(spans)
    return union_ns(ordered), max(end for _, end in ordered) - ordered[0][0]


def union_ns(spans: Iterable[Span]) -> int:
    """Nanoseconds that the union of some spans lasts, given in the order of their begins.

    Where streams work at once they count once.

    Examples
    --------
    >>> union_ns([(0, 4), (1, 3), (6, 7)])
    5
    """
    total, reached = 0, None
    for begin, end in spans:
        if reached is None or begin > reached:
            total, reached = total + end - begin, end
        elif end > reached:
            total, reached = total + end - reached, end
    return total
