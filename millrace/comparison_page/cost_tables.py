"""Tables of the comparison page, as HTML: causes, peaks of memory, actors."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from millrace.comparison import CauseRow
from millrace.comparison_page.memory_curves import MemoryCurve
from millrace.units import format_bytes, format_percent, format_seconds

SHOWN_ACTORS = 200  # without a script; with it all of them

# Columns of the actors' table: the key by which the script sorts, and the head.
ACTOR_COLUMNS = {
    "name": "actor",
    "kind": "kind",
    "phase": "phase",
    "firings": "firings",
    "predicted_median": "predicted firing",
    "measured_median": "measured firing",
    "ratio": "ratio",
    "predicted": "predicted a step",
    "measured": "measured a step",
    "difference": "difference",
}
TEXT_COLUMNS = ("name", "kind", "phase")


def cause_table(rows: Iterable[CauseRow]) -> str:
    """Table of the causes that a step of the average rank is split into."""
    return html_table(
        ("cause", "predicted", "measured", "difference"),
        (
            (
                f"<code>{escape(row.name)}</code>",
                format_seconds(row.predicted_s),
                format_seconds(row.measured_s),
                signed_seconds(row.difference_s),
            )
            for row in rows
        ),
    )


def memory_table(predicted: Sequence[MemoryCurve], measured: Sequence[MemoryCurve]) -> str:
    """Table of the peaks of every rank; a rank that was not simulated has those of its stage."""
    by_rank = {curve.rank: curve for curve in predicted}
    by_stage = {curve.stage: curve for curve in reversed(predicted)}
    rows = []
    for curve in measured or predicted:
        before = by_rank.get(curve.rank, by_stage.get(curve.stage))
        peaks = [
            before.peak_bytes if before else None,
            curve.peak_bytes if measured else None,
        ]
        rows.append(
            (
                f"rank {curve.rank}",
                str(curve.stage),
                *("–" if peak is None else format_bytes(peak) for peak in peaks),
                ""
                if peaks[0] is None or not peaks[1]
                else format_percent(peaks[0] / peaks[1] - 1, signed=True),
            )
        )
    heads = ("peak of", "stage", "predicted", "measured", "error")
    return _folded(f"Peaks of {len(rows)} ranks", html_table(heads, rows), len(rows) <= 8)


def _folded(summary: str, table: str, unfolded: bool) -> str:
    return f"<details{' open' if unfolded else ''}><summary>{summary}</summary>{table}</details>"


def actor_table(actors: Mapping[str, Any]) -> str:
    """Table of actors with the filter above it; the script fills it with all rows.

    Parameters
    ----------
    actors : mapping
        Columns as `actor_columns` gives them.
    """
    heads = "".join(
        f'<th scope="col" data-key="{key}"{_left(key)}>{head}</th>'
        for key, head in ACTOR_COLUMNS.items()
    )
    count = len(actors["name"])
    body = "".join(_actor_row(actors, number) for number in range(min(count, SHOWN_ACTORS)))
    note = (
        f"<noscript><p>The {SHOWN_ACTORS} that differ most; a browser that runs the page's script "
        f"shows all {count:,}.</p></noscript>"
        if count > SHOWN_ACTORS
        else ""
    )
    return (
        '<div class="interactive" hidden><p class="controls"><label>filter '
        '<input id="filter" type="search" placeholder="name, phase, kind:matmul" '
        'autocomplete="off" spellcheck="false"></label>'
        '<span id="matches" aria-live="polite"></span></p></div>'
        f'{note}<div class="wide"><table id="actors"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        '<p class="interactive" hidden><button type="button" id="more"></button></p>'
    )


def _left(key: str) -> str:
    return ' class="left"' if key in TEXT_COLUMNS else ""


def _actor_row(actors: Mapping[str, Any], number: int) -> str:
    """Row of one actor, by its number."""
    predicted_ns, measured_ns = actors["predicted_ns"][number], actors["measured_ns"][number]
    kind = actors["kinds"][actors["kind"][number]]
    phase = actors["phases"][actors["phase"][number]].replace("_", " ")
    medians_ns = [actors[f"{name}_median_ns"][number] for name in ("predicted", "measured")]
    cells = [
        str(actors["firings"][number]),
        *map(_time, medians_ns),
        _ratio(medians_ns[0] / medians_ns[1]) if all(medians_ns) else "–",
        _time(predicted_ns),
        _time(measured_ns),
        signed_seconds(((predicted_ns or 0) - (measured_ns or 0)) / 1e9),
    ]
    return (
        f"<tr><td><code>{escape(actors['name'][number])}</code></td>"
        f'<td class="left">{escape(kind)}</td><td class="left">{escape(phase)}</td>'
        f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    )


def _ratio(ratio: float) -> str:
    return "&lt; 0.01" if ratio < 0.01 else f"{ratio:.2f}"


def _time(nanoseconds: int | None) -> str:
    return "–" if nanoseconds is None else format_seconds(nanoseconds / 1e9)


def signed_seconds(seconds: float) -> str:
    """Difference of two durations, with its sign: `+1.20 ms`, `−30.0 µs`."""
    return f"{'−' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Table as HTML, in a box that scrolls sideways where the screen is narrow.

    Parameters
    ----------
    heads : sequence of str
        Heads of the columns.
    rows : iterable of sequence of str
        HTML of the cells.
    """
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )
