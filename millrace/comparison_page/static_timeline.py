"""A timeline as inline SVG: what a page shows without a script."""

from collections import defaultdict
from html import escape
from math import floor, log10

from millrace.palette import PHASES
from millrace.traces.timeline import Bar, Timeline
from millrace.units import format_seconds

LABEL_PX = 190
PLOT_PX = 970
ROW_PX = 15
TIP_PX = 2  # bars that are narrower have no tip


def timeline_svg(timeline: Timeline, scale_ns: int, bars_max: int | None = None) -> str:
    """Inline SVG of one timeline.

    Bars under half a pixel that touch one of the same colour are drawn together.

    Parameters
    ----------
    timeline : Timeline
        Rows and bars of one step.
    scale_ns : int
        Nanoseconds that the width of the plot stands for.
    bars_max : int, optional
        Bars that are drawn at most: where there are more, the shortest are drawn with their
        neighbours, in the colour of the longest of them.
    """
    height = ROW_PX * len(timeline.rows) + 26
    parts = [
        f'<svg viewBox="0 0 {LABEL_PX + PLOT_PX + 10} {height}" role="img" '
        f'aria-label="{escape(timeline.source)} timeline">'
    ]
    for position, row in enumerate(timeline.rows):
        top = position * ROW_PX
        shade = "var(--card)" if row.rank % 2 else "var(--paper)"
        parts.append(
            f'<rect x="0" y="{top}" width="{LABEL_PX + PLOT_PX}" height="{ROW_PX}" fill="{shade}"/>'
            f'<text x="4" y="{top + 11}">{escape(f"rank {row.rank} · {row.queue}")}</text>'
        )
    bars = _merged(timeline.bars, scale_ns / PLOT_PX / 2)
    if bars_max is not None:
        bars = _at_most(bars, bars_max, scale_ns / PLOT_PX / 2)
    parts += [_rect(bar, PLOT_PX / max(scale_ns, 1), bars_max is not None) for bar in bars]
    axis_top, x = height - 22, LABEL_PX + PLOT_PX * timeline.duration_ns / max(scale_ns, 1)
    parts.append(time_axis(LABEL_PX, PLOT_PX, axis_top, scale_ns, 6))
    parts.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{axis_top}" stroke="var(--alarm)" '
        'stroke-dasharray="3 2"/></svg>'
    )
    return "".join(parts)


def _rect(bar: Bar, per_ns: float, limited: bool) -> str:
    """Rectangle of a bar; its tip is left out of a limited picture where the bar is narrow."""
    left = LABEL_PX + max(bar.start_ns, 0) * per_ns
    width = max((bar.end_ns - max(bar.start_ns, 0)) * per_ns, 0.3)
    tip = f"{bar.name}: {format_seconds((bar.end_ns - bar.start_ns) / 1e9)}"
    title = "" if limited and width < TIP_PX else f"<title>{escape(tip)}</title>"
    return (
        f'<rect x="{left:.2f}" y="{bar.row * ROW_PX + 2}" width="{width:.2f}" '
        f'height="{ROW_PX - 4}" fill="var(--{PHASES.get(bar.what, "stone")})">{title}</rect>'
    )


def _merged(bars: tuple[Bar, ...], least_ns: float) -> list[Bar]:
    """Bars with the invisibly small ones joined to their neighbour."""
    merged: list[Bar] = []
    for bar in bars:
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last.row, last.what) == (bar.row, bar.what)
            and bar.start_ns - last.end_ns < least_ns
            and min(bar.end_ns - bar.start_ns, last.end_ns - last.start_ns) < least_ns
        ):
            name = last.name if last.name.endswith(" …") else f"{last.name} …"
            merged[-1] = last._replace(end_ns=max(bar.end_ns, last.end_ns), name=name)
        else:
            merged.append(bar)
    return merged


def _at_most(bars: list[Bar], bars_max: int, least_ns: float) -> list[Bar]:
    """Bars of which neighbours are drawn as one, over ever longer stretches, until so few are left.

    The colour and the name are those of the bars that take most of the stretch.
    """
    stretch_ns = least_ns
    while len(bars) > bars_max and stretch_ns < 2**62:
        stretch_ns *= 2
        merged: list[Bar] = []
        weights: dict[str, int] = {}
        for bar in bars:
            last = merged[-1] if merged else None
            length = bar.end_ns - bar.start_ns
            if (
                last is not None
                and last.row == bar.row
                and bar.end_ns - last.start_ns <= stretch_ns
                and bar.start_ns - last.end_ns < stretch_ns / 2
            ):
                weights[bar.what] = weights.get(bar.what, 0) + length
                what = max(weights, key=weights.__getitem__)
                name = last.name if last.name.endswith(" …") else f"{last.name} …"
                end_ns = max(last.end_ns, bar.end_ns)
                merged[-1] = last._replace(end_ns=end_ns, what=what, name=name)
            else:
                weights = defaultdict(int, {bar.what: length})
                merged.append(bar)
        bars = merged
    return bars


def time_axis(left: float, width: float, top: float, whole_ns: int, marks: int) -> str:
    """Round times under a plot, as SVG.

    Parameters
    ----------
    left, width, top : float
        Where the plot begins, how wide it is and where it ends.
    whole_ns : int
        Nanoseconds that the width of the plot stands for.
    marks : int
        Steps between marks at most.
    """
    parts = []
    step_ns = round_step(whole_ns / marks)
    for mark in range(int(whole_ns // step_ns) + 1):
        x = left + width * mark * step_ns / max(whole_ns, 1)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + 5}" stroke="var(--rule)"/>'
            f'<text x="{x:.1f}" y="{top + 17}" text-anchor="middle">'
            f"{format_seconds(mark * step_ns / 1e9)}</text>"
        )
    return "".join(parts)


def round_step(least_ns: float) -> float:
    """Smallest of 1, 2, 5 × 10ⁿ ns that is at least `least_ns`."""
    power = 10.0 ** floor(log10(max(least_ns, 1.0)))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least_ns)
