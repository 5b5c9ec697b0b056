"""Error waterfall: the causes for which a step takes longer or shorter; and both critical paths.

Both are tables with bars in them, so that they need no script and a reader hears every figure.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from millrace.comparison.comparison import (
    Comparison,
    CriticalPaths,
    ErrorCause,
    PathRow,
    PathSegment,
)
from millrace.comparison_page.cost_tables import html_table, signed_seconds
from millrace.units import format_seconds

SHOWN_SEGMENTS = 20  # of each path; those between are one row
SHOWN_ROWS = 40  # of the actors on either path
SHOWN_ITEMS = 12  # of a cause
LEAST_WIDTH = 0.2  # percent of the width, of a bar
WIDEST_BASE = 0.5  # share of the width that steps may have in common before it is cut off


class FallRow(NamedTuple):
    """Row of the waterfall: the bar from one time to another, in seconds."""

    name: str
    text: str
    low_s: float
    high_s: float
    style: str  # class of the bar
    cause: ErrorCause | None = None


def fall_rows(comparison: Comparison) -> list[FallRow]:
    """Rows from the predicted step time, by what every cause adds or takes, to the measured one."""
    predicted_s = comparison.predicted_step_time_s
    rows = [FallRow("predicted", format_seconds(predicted_s), 0.0, predicted_s, "predicted")]
    level_s = predicted_s
    for cause in comparison.error_causes:
        if not cause.seconds and not cause.items:
            continue
        after_s = level_s + cause.seconds
        rows.append(
            FallRow(
                cause.name,
                signed_seconds(cause.seconds),
                min(level_s, after_s),
                max(level_s, after_s),
                "longer" if cause.seconds > 0 else "shorter",
                cause,
            )
        )
        level_s = after_s
    measured_s = comparison.measured_step_time_s
    rows.append(FallRow("measured", format_seconds(measured_s), 0.0, measured_s, "measured"))
    return rows


def waterfall(comparison: Comparison) -> list[str]:
    """Section of the causes of the error; empty where the comparison has none."""
    if not comparison.error_causes:
        return []
    rows = fall_rows(comparison)
    begin_s = _axis_begin_s(rows)
    scale_s = max(row.high_s for row in rows) - begin_s
    body = "".join(_fall_row(row, begin_s, scale_s) for row in rows)
    cut = f", from {format_seconds(begin_s)} on" if begin_s else ""
    return [
        "<h2>From the predicted to the measured step</h2>",
        '<div class="wide"><table class="fall"><thead><tr><th scope="col">cause</th>'
        f'<th scope="col">adds</th><th scope="col" class="left">step time{cut}</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>",
    ]


def _axis_begin_s(rows: Sequence[FallRow]) -> float:
    """Time at which bars begin: 0, or later where all that differs would be too small to read."""
    causes = [row for row in rows if row.cause is not None]
    low_s = min(row.low_s for row in causes)
    high_s = max(row.high_s for row in rows)
    if low_s < WIDEST_BASE * high_s:
        return 0.0
    return max(low_s - 0.3 * (high_s - low_s), 0.0)


def _fall_row(row: FallRow, begin_s: float, scale_s: float) -> str:
    width = max(100 * (row.high_s - max(row.low_s, begin_s)) / scale_s, LEAST_WIDTH)
    left = min(100 * max(row.low_s - begin_s, 0.0) / scale_s, 100 - width)
    name = escape(row.name)
    if row.cause is not None and row.cause.items:
        name = f"<details><summary>{name}</summary>{_items(row.cause)}</details>"
    emphasis = ' class="sum"' if row.cause is None else ""
    return (
        f'<tr{emphasis}><th scope="row">{name}</th><td>{row.text}</td><td class="left bar">'
        f'<i class="{row.style}" style="left:{left:.2f}%;width:{width:.2f}%"></i></td></tr>'
    )


def _items(cause: ErrorCause) -> str:
    """List of a cause's largest items, the others in one line."""
    ordered = sorted(cause.items, key=lambda item: -abs(item.seconds))
    lines = [(item.name, item.seconds) for item in ordered[:SHOWN_ITEMS]]
    if rest := ordered[SHOWN_ITEMS:]:
        lines.append((f"{len(rest):,} others", sum(item.seconds for item in rest)))
    return "".join(
        ["<ul>"]
        + [f"<li>{escape(name)} <b>{signed_seconds(s)}</b></li>" for name, s in lines]
        + ["</ul>"]
    )


def path_columns(paths: CriticalPaths | None, actor_numbers: dict[str, int]) -> list[Any]:
    """Columns of both paths for the script: the rank, actor and firing of every segment."""
    if paths is None:
        return []
    return [
        {
            "rank": [segment.rank for segment in segments],
            "actor": [actor_numbers[segment.actor] for segment in segments],
            "firing": [segment.firing for segment in segments],
        }
        for segments in (paths.predicted, paths.measured)
    ]


def path_tables(paths: CriticalPaths | None) -> list[str]:
    """Section of both critical paths beside each other; empty where there are none."""
    if paths is None:
        return []
    columns = "".join(
        f"<div><h3>{name}: {len(segments):,} firings, "
        f"{format_seconds(sum(segment.seconds for segment in segments))}, waits "
        f"{format_seconds(sum(segment.idle_s for segment in segments))}</h3>"
        f"{_path_table(segments)}</div>"
        for name, segments in (("predicted", paths.predicted), ("measured", paths.measured))
    )
    return [
        "<h2>The two critical paths</h2>",
        f"<p>The chain of firings that the step takes as long as, in order of time; the "
        f"{SHOWN_SEGMENTS} that add most, with what comes between them.</p>",
        f'<div class="paths">{columns}</div>',
        _path_rows(paths.rows),
    ]


def _path_rows(rows: Sequence[PathRow]) -> str:
    """Table of what each actor adds to either path, folded away."""
    if not rows:
        return ""
    table = html_table(
        ("actor", "rank", "predicted path", "measured path", "difference"),
        (
            (
                f"<code>{escape(row.actor)}</code>",
                str(row.rank),
                format_seconds(row.predicted_s),
                format_seconds(row.measured_s),
                signed_seconds(row.predicted_s - row.measured_s),
            )
            for row in rows[:SHOWN_ROWS]
        ),
    )
    count = f"{min(len(rows), SHOWN_ROWS):,} actors that differ most"
    return f"<details><summary>Both paths by actor: the {count}</summary>{table}</details>"


def _path_table(segments: Sequence[PathSegment]) -> str:
    """Table of a path's longest segments in order of time, and of what lies between them."""
    order = sorted(range(len(segments)), key=lambda index: -segments[index].seconds)
    shown = set(order[:SHOWN_SEGMENTS])
    lines, between = [], []
    for index, segment in enumerate(segments):
        if index not in shown:
            between.append(segment)
            continue
        lines += _between(between)
        between = []
        lines.append(
            f"<tr><td>{format_seconds(segment.start_s)}</td><td>{segment.rank}</td>"
            f'<td class="left"><code>{escape(segment.actor)}</code></td>'
            f"<td>{format_seconds(segment.seconds)}</td>"
            f"<td>{format_seconds(segment.idle_s) if segment.idle_s else ''}</td></tr>"
        )
    lines += _between(between)
    heads = ("at", "rank", "actor", "adds", "wait")
    head = "".join(
        f'<th scope="col"{" class=left" if name == "actor" else ""}>{name}</th>' for name in heads
    )
    return (
        f'<div class="wide"><table class="path"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _between(segments: Sequence[PathSegment]) -> list[str]:
    """Row of the shorter segments between two that are shown."""
    if not segments:
        return []
    idle_s = sum(segment.idle_s for segment in segments)
    noun = "firing" if len(segments) == 1 else "firings"
    return [
        f'<tr class="between"><td></td><td></td><td class="left">{len(segments):,} shorter {noun}'
        f"</td><td>{format_seconds(sum(segment.seconds for segment in segments))}</td>"
        f"<td>{format_seconds(idle_s) if idle_s else ''}</td></tr>"
    ]
