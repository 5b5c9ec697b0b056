"""Counters of memory in a Chrome trace: one track per stage, stacked by kind of memory."""

from collections.abc import Iterable
from typing import Any

from millrace.simulator.account import MemoryTimeline

MIB = 2**20


def memory_counters(courses: Iterable[MemoryTimeline]) -> list[dict[str, Any]]:
    """Counter events (`C`) in MiB, on the process of the rank that was followed."""
    return [
        {
            "ph": "C",
            "name": "memory (MiB)",
            "pid": course.rank,
            "ts": ns / 1000,
            "args": {
                kind: round(row[moment] / MIB, 3) for kind, row in course.bytes_by_kind.items()
            },
        }
        for course in courses
        for moment, ns in enumerate(course.times_ns)
    ]
