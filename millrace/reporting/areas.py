"""Areas of memory over one step, stacked per stage, with the bytes laid out and the limit."""

from collections.abc import Mapping
from itertools import pairwise
from math import ceil, log2

from millrace.comparison_page import time_axis
from millrace.palette import MEMORY_KINDS
from millrace.simulator.account import MemoryTimeline
from millrace.units import format_bytes

RUNTIME = ("context", "resident", "workspace", "slack")
LEFT_PX, PLOT_PX, HEIGHT_PX = 66, 470, 150
POINTS = 400  # steps of a curve that are drawn
NEAR = 0.3  # of the limit; what stays below is drawn on its own scale


def drawn_bytes(course: MemoryTimeline) -> dict[str, list[int]]:
    """Bytes of a course by the kinds that are drawn, from below."""
    rows: dict[str, list[int]] = {}
    for kind, row in course.bytes_by_kind.items():
        name = "runtime" if kind in RUNTIME else kind
        before = rows.get(name, [0] * len(row))
        rows[name] = [a + b for a, b in zip(before, row, strict=True)]
    return {kind: rows[kind] for kind in MEMORY_KINDS if any(rows.get(kind, ()))}


def height_bytes(reserved_bytes: int, limit_bytes: int) -> float:
    """Bytes that the height of a plot stands for: the limit is in it unless it is far away."""
    if reserved_bytes >= NEAR * limit_bytes:
        return 1.12 * max(limit_bytes, reserved_bytes)
    return 1.2 * reserved_bytes


def area_svg(course: MemoryTimeline, reserved: int, step_ns: int, scale: float) -> str:
    """Stacked area of one stage, as SVG.

    Times of the course count from the step's begin. The dashed line is at the `reserved` bytes that
    a device has to have. The width stands for `step_ns`, the height for `scale` bytes.
    """
    rows = drawn_bytes(course)
    limit = course.limit_bytes
    columns = _columns(course, rows, step_ns)
    parts = [
        f'<svg viewBox="0 0 {LEFT_PX + PLOT_PX + 24} {HEIGHT_PX + 26}" role="img" '
        f'aria-label="memory of stage {course.stage} over one step">'
    ]
    base = [0] * len(columns[0][1])
    for kind, (xs, heights) in zip(rows, columns, strict=True):
        upper = [a + b for a, b in zip(base, heights, strict=True)]
        most = format_bytes(max(heights))
        parts.append(
            f'<path d="{_path(xs, base, upper, scale)}" fill="var(--{MEMORY_KINDS[kind]})">'
            f"<title>{kind}: at most {most}</title></path>"
        )
        base = upper
    parts.append(_line(reserved, scale, "var(--ink)", f"planned {format_bytes(reserved)}"))
    if limit <= scale:
        parts.append(_line(limit, scale, "var(--alarm)", f"limit {format_bytes(limit)}"))
    parts += [_mark(size, scale) for size in _marks(scale)]
    parts.append(
        f'<line x1="{LEFT_PX}" x2="{LEFT_PX}" y1="0" y2="{HEIGHT_PX}" stroke="var(--rule)"/>'
    )
    parts.append(time_axis(LEFT_PX, PLOT_PX, HEIGHT_PX, step_ns, 4))
    return "".join([*parts, "</svg>"])


def _columns(
    course: MemoryTimeline, rows: Mapping[str, list[int]], step_ns: int
) -> list[tuple[list[float], list[int]]]:
    """Places of the steps per kind, and their heights; of a column the fullest moment."""
    moments = fullest_moments(course, rows, step_ns)
    xs = [LEFT_PX + PLOT_PX * column / POINTS for column in moments] + [float(LEFT_PX + PLOT_PX)]
    return [(xs, [row[moment] for moment in moments.values()]) for row in rows.values()]


def fullest_moments(
    course: MemoryTimeline, rows: Mapping[str, list[int]], step_ns: int
) -> dict[int, int]:
    """Index of the fullest moment in each of the `POINTS` columns that have one, in their order.

    Parameters
    ----------
    course : MemoryTimeline
        Its times count from the step's begin.
    rows : mapping
        Bytes at every time, by the kinds that are drawn.
    step_ns : int
        Nanoseconds that all columns stand for.
    """
    chosen: dict[int, int] = {}
    totals = [sum(column) for column in zip(*rows.values(), strict=True)]
    for moment, ns in enumerate(course.times_ns):
        column = ns * POINTS // max(step_ns, 1)
        if column not in chosen or totals[moment] >= totals[chosen[column]]:
            chosen[column] = moment
    return dict(sorted(chosen.items()))


def _path(xs: list[float], base: list[int], upper: list[int], scale: float) -> str:
    """Outline of a row of steps between two heights."""

    def edge(heights: list[int]) -> list[str]:
        corners = []
        for (left, right), height in zip(pairwise(xs), heights, strict=True):
            y = HEIGHT_PX * (1 - height / scale)
            corners += [f"{left:.1f} {y:.1f}", f"{right:.1f} {y:.1f}"]
        return corners

    return "M" + "L".join([*edge(upper), *reversed(edge(base))]) + "Z"


def _line(size: int, scale: float, colour: str, text: str) -> str:
    y = HEIGHT_PX * (1 - size / scale)
    return (
        f'<line x1="{LEFT_PX}" x2="{LEFT_PX + PLOT_PX}" y1="{y:.1f}" y2="{y:.1f}" '
        f'stroke="{colour}" stroke-dasharray="5 3"/>'
        f'<text x="{LEFT_PX + PLOT_PX - 3}" y="{y - 3:.1f}" text-anchor="end" '
        f'style="fill:{colour}">{text}</text>'
    )


def _marks(scale: float) -> list[float]:
    """Round sizes up to a scale, three to six of them."""
    step = 2.0 ** ceil(log2(max(scale, 1.0) / 6))
    return [step * multiple for multiple in range(int(scale // step) + 1)]


def _mark(size: float, scale: float) -> str:
    y = HEIGHT_PX * (1 - size / scale)
    text = format_bytes(size).replace(".00", "") if size else "0"
    return (
        f'<line x1="{LEFT_PX - 4}" x2="{LEFT_PX}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--rule)"/>'
        f'<text x="{LEFT_PX - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    )
