"""The comparison as one self-contained HTML page: two timelines under each other, and the tables.

No script, font, image or style comes from elsewhere, so the page can be mailed or archived.
"""

from collections.abc import Iterable, Mapping
from html import escape
from math import floor, log10
from pathlib import Path

from millrace.compare import ActorRow, CauseRow, Comparison, join
from millrace.drawing import headline
from millrace.models.documents import write_bytes
from millrace.planner.actors.trace import Trace
from millrace.planner.plan import Plan
from millrace.traces.timeline import COLOURS, Timeline, timeline
from millrace.units import format_percent, format_seconds

LABEL_PX = 190
PLOT_PX = 970
ROW_PX = 15
SHOWN_ACTORS = 40

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px;
       color: #1b1b1b; background: #fff; padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p { margin: .3rem 0; } .key { display: inline-block; margin-right: 1.1rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .9rem .15rem 0; text-align: right; border-bottom: 1px solid #e4e4e4; }
th:first-child, td:first-child { text-align: left; } td code { font-size: 12.5px; }
svg { display: block; width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; }
footer { margin-top: 2rem; color: #666; font-size: 12px; }
"""


def write_page(path: Path, plan: Plan, predicted: Trace, measured: Trace) -> None:
    """Write the page that compares two traces of a plan.

    Parameters
    ----------
    path : Path
        The HTML file.
    plan : Plan
        The plan, for the headline.
    predicted : Trace
        Its simulated trace.
    measured : Trace
        Its measured trace.

    Raises
    ------
    FileError
        The file cannot be written.
    PlanError
        The traces do not belong together, as `millrace.compare.join` says.
    """
    drawn = [timeline(predicted), timeline(measured)]
    page = comparison_page(headline(plan), join(predicted, measured), drawn)
    write_bytes(path, page.encode())


def comparison_page(title: str, comparison: Comparison, timelines: Iterable[Timeline]) -> str:
    """HTML page of one comparison.

    Parameters
    ----------
    title : str
        The model and how it was split.
    comparison : Comparison
        The join that the tables show.
    timelines : iterable of Timeline
        Drawn under each other on one scale: the predicted one, then the measured one.
    """
    drawn = list(timelines)
    longest = max(drawn_timeline.duration_ns for drawn_timeline in drawn)
    error = format_percent(comparison.step_time_error, signed=True)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>Step time: predicted <b>{format_seconds(comparison.predicted_step_time_s)}</b>, "
        f"measured <b>{format_seconds(comparison.measured_step_time_s)}</b>, "
        f"error <b>{error}</b> (predicted / measured − 1).</p>",
        legend({what.replace("_", " "): colour for what, colour in COLOURS.items()}),
    ]
    for drawn_timeline in drawn:
        parts.append(
            f"<h2>{escape(drawn_timeline.source.capitalize())}: step {drawn_timeline.step}, "
            f"{format_seconds(drawn_timeline.duration_ns / 1e9)}</h2>"
        )
        parts.append(timeline_svg(drawn_timeline, longest))
    parts.append("<h2>Where the time goes, per step on the average rank</h2>")
    parts.append(_table("cause", comparison.causes))
    parts.append(f"<h2>The {SHOWN_ACTORS} actors that differ most</h2>")
    parts.append(_table("actor", comparison.actors[:SHOWN_ACTORS]))
    parts.append(f"<footer>Millrace · plan {escape(comparison.plan_digest)}</footer>")
    return document(title, parts)


def document(title: str, parts: Iterable[str], style: str = "") -> str:
    """Self-contained HTML page.

    Parameters
    ----------
    title : str
        Plain text, escaped here.
    parts : iterable of str
        HTML of the body, piece by piece.
    style : str
        CSS that is added to that of all pages.
    """
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n<body>\n{body}\n"
        f"</body></html>\n"
    )


def timeline_svg(timeline: Timeline, scale_ns: int) -> str:
    """Inline SVG of one timeline.

    Bars under half a pixel that touch one of the same colour are drawn together.

    Parameters
    ----------
    timeline : Timeline
        Rows and bars of one step.
    scale_ns : int
        Nanoseconds that the width of the plot stands for.
    """
    height = ROW_PX * len(timeline.rows) + 26
    parts = [
        f'<svg viewBox="0 0 {LABEL_PX + PLOT_PX + 10} {height}" role="img" '
        f'aria-label="{escape(timeline.source)} timeline">'
    ]
    for position, row in enumerate(timeline.rows):
        top = position * ROW_PX
        shade = "#f6f6f6" if row.rank % 2 else "#fff"
        parts.append(
            f'<rect x="0" y="{top}" width="{LABEL_PX + PLOT_PX}" height="{ROW_PX}" fill="{shade}"/>'
            f'<text x="4" y="{top + 11}">{escape(f"rank {row.rank} · {row.queue}")}</text>'
        )
    per_ns = PLOT_PX / max(scale_ns, 1)
    for bar in _merged(timeline, scale_ns / PLOT_PX / 2):
        line, start, end, what, name = bar
        left = LABEL_PX + max(start, 0) * per_ns
        width = max((end - max(start, 0)) * per_ns, 0.3)
        tip = f"{name}: {format_seconds((end - start) / 1e9)}"
        parts.append(
            f'<rect x="{left:.2f}" y="{line * ROW_PX + 2}" width="{width:.2f}" '
            f'height="{ROW_PX - 4}" fill="{COLOURS.get(what, "#555")}">'
            f"<title>{escape(tip)}</title></rect>"
        )
    axis_top, x = height - 22, LABEL_PX + PLOT_PX * timeline.duration_ns / max(scale_ns, 1)
    parts.append(time_axis(LABEL_PX, PLOT_PX, axis_top, scale_ns, 6))
    parts.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{axis_top}" stroke="#c00" '
        'stroke-dasharray="3 2"/></svg>'
    )
    return "".join(parts)


def _merged(timeline: Timeline, least_ns: float) -> list[tuple[int, int, int, str, str]]:
    """Bars with the invisibly small ones joined to their neighbour."""
    merged: list[tuple[int, int, int, str, str]] = []
    for bar in timeline.bars:
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last[0], last[3]) == (bar.row, bar.what)
            and bar.start_ns - last[2] < least_ns
            and min(bar.end_ns - bar.start_ns, last[2] - last[1]) < least_ns
        ):
            name = last[4] if last[4].endswith(" …") else f"{last[4]} …"
            merged[-1] = (bar.row, last[1], max(bar.end_ns, last[2]), bar.what, name)
        else:
            merged.append((bar.row, bar.start_ns, bar.end_ns, bar.what, bar.name))
    return merged


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
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + 5}" stroke="#888"/>'
            f'<text x="{x:.1f}" y="{top + 17}" text-anchor="middle">'
            f"{format_seconds(mark * step_ns / 1e9)}</text>"
        )
    return "".join(parts)


def round_step(least_ns: float) -> float:
    """Smallest of 1, 2, 5 × 10ⁿ ns that is at least `least_ns`."""
    power = 10.0 ** floor(log10(max(least_ns, 1.0)))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least_ns)


def legend(colours: Mapping[str, str]) -> str:
    """Paragraph that says what each colour means."""
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(what)}</span>'
        for what, colour in colours.items()
    )
    return f"<p>{keys}</p>"


def _table(first: str, rows: Iterable[CauseRow | ActorRow]) -> str:
    """Table of causes or actors, as HTML."""
    lines = [
        f"<table><tr><th>{first}</th><th>predicted</th><th>measured</th><th>difference</th></tr>"
    ]
    for row in rows:
        cells = [
            "not there" if value is None else format_seconds(value)
            for value in (row.predicted_s, row.measured_s)
        ]
        difference = (row.predicted_s or 0.0) - (row.measured_s or 0.0)
        sign = "−" if difference < 0 else "+"
        lines.append(
            f"<tr><td><code>{escape(row.name)}</code></td><td>{cells[0]}</td><td>{cells[1]}</td>"
            f"<td>{sign}{format_seconds(abs(difference))}</td></tr>"
        )
    return "".join([*lines, "</table>"])
