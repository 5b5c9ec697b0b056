"""Ranks' timings merged by their median: one table for every kind."""

from collections import Counter
from statistics import fmean, median

from millrace.executor.probes.probe_rounds import Points


def merged(tables: list[Points]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Points of every kind: the median over ranks, then the mean over probes of equal work."""
    points_by_kind: dict[str, tuple[tuple[int, int], ...]] = {}
    for key in sorted({key for table in tables for key in table}):
        by_probe: dict[tuple[int, int], list[int]] = {}
        for table in tables:
            seen: Counter[int] = Counter()
            for work, duration_ns in table.get(key, []):
                by_probe.setdefault((work, seen[work]), []).append(duration_ns)
                seen[work] += 1
        by_work: dict[int, list[int]] = {}
        for (work, _), durations in by_probe.items():
            by_work.setdefault(work, []).append(round(median(durations)))
        points_by_kind[key] = tuple(
            (work, max(1, round(fmean(durations)))) for work, durations in sorted(by_work.items())
        )
    return points_by_kind
