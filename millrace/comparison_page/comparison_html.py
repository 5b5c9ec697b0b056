"""Comparison HTML: a page of an error's causes, timelines, memory, critical paths, costs of ops.

With scripts switched off it shows every table and a picture of both timelines.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from millrace.comparison import Comparison, join
from millrace.comparison_page.cost_tables import (
    actor_table,
    cause_table,
    memory_table,
)
from millrace.comparison_page.error_waterfall import path_columns, path_tables, waterfall
from millrace.comparison_page.firing_columns import (
    actor_columns,
    firings_per_step,
    time_unit_ns,
    timeline_columns,
)
from millrace.comparison_page.firing_medians import firing_medians_ns
from millrace.comparison_page.inlined_script import (
    data_block,
    policy,
    script,
    script_block,
    style,
)
from millrace.comparison_page.memory_curves import MemoryCurve, curve_columns, memory_curves
from millrace.comparison_page.static_page import document, legend
from millrace.comparison_page.static_timeline import timeline_svg
from millrace.drawing import headline
from millrace.models.documents import write_bytes
from millrace.palette import HUES, PHASES, ink_on
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from millrace.traces.timeline import Timeline, timeline
from millrace.units import format_percent, format_seconds

PICTURE_ROWS = 24  # of each timeline, in the picture that needs no script
PICTURE_BARS = 3000  # of each

_HINT = (
    '<p class="hint">Wheel or pinch zooms at the pointer, dragging pans, a double click shows all; '
    "with <kbd>Shift</kbd> the wheel scrolls through the rows. Click a bar to mark it. Keys: "
    "<kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> pan, <kbd>+</kbd> <kbd>−</kbd> zoom, "
    "<kbd>0</kbd> all, <kbd>[</kbd> <kbd>]</kbd> the firing before and after the marked one, "
    "<kbd>Esc</kbd> unmarks.</p>"
)

_PATHS = '<label><input id="paths" type="checkbox" checked> underline the critical path</label>'


def write_page(
    path: Path,
    plan: Plan,
    predicted: Trace,
    measured: Trace,
    comparison: Comparison | None = None,
) -> None:
    """Write the page that compares two traces of a plan.

    Parameters
    ----------
    path : Path
        The HTML file.
    plan : Plan
        The plan, for the headline and for the registers of its actors.
    predicted : Trace
        Its simulated trace.
    measured : Trace
        Its measured trace.
    comparison : Comparison, optional
        Their join, if it is at hand.

    Raises
    ------
    FileError
        The file cannot be written.
    PlanError
        The traces do not belong together, as `millrace.comparison.join` says.
    """
    if comparison is None:
        comparison = join(predicted, measured, plan)
    registers = (compile_plan(plan), plan.cluster)
    page = comparison_page(headline(plan), comparison, (predicted, measured), registers)
    write_bytes(path, page.encode())


def comparison_page(
    title: str,
    comparison: Comparison,
    traces: tuple[Trace, Trace],
    registers: tuple[ActorGraph, Cluster] | None = None,
) -> str:
    """HTML page of one comparison.

    Parameters
    ----------
    title : str
        The model and how it was split.
    comparison : Comparison
        The join that the tables show.
    traces : tuple of Trace
        The predicted one, then the measured one.
    registers : tuple of ActorGraph and Cluster, optional
        What ran, and where: without it the page has no memory over time.
    """
    drawn = (timeline(traces[0]), timeline(traces[1]))
    curves: list[tuple[MemoryCurve, ...]] = [
        memory_curves(*registers, trace) if registers else () for trace in traces
    ]
    script_text, inlined = script(), page_data(comparison, drawn, traces, curves)
    parts = [
        *_summary(title, comparison),
        *waterfall(comparison),
        *_timelines(drawn, comparison.critical_paths is not None),
        *_memory(curves),
        *path_tables(comparison.critical_paths),
        "<h2>Where the time goes, per step on the average rank</h2>",
        cause_table(comparison.causes),
        *_costs(inlined["actors"]),
        f"<footer>Millrace · plan {escape(comparison.plan_digest)} · step "
        f"{drawn[0].step} of the simulation, step {drawn[1].step} of the run</footer>",
        data_block(inlined),
        script_block(script_text),
    ]
    return document(title, parts, style(), policy(script_text))


def page_data(
    comparison: Comparison,
    timelines: Sequence[Timeline],
    traces: Sequence[Trace],
    curves: Sequence[Sequence[MemoryCurve]],
) -> dict[str, Any]:
    """Data that the page's script draws, as columns of numbers.

    Parameters
    ----------
    comparison : Comparison
        Its actors; an actor's number is its place among them.
    timelines, traces, curves : sequence
        Those of the prediction, then those of the run.
    """
    unit_ns = time_unit_ns(max(drawn.duration_ns for drawn in timelines))
    numbers = {row.name: number for number, row in enumerate(comparison.actors)}
    medians = [firing_medians_ns(trace) for trace in traces]
    return {
        "unit_ns": unit_ns,
        "colours": [HUES[hue] for hue in PHASES.values()],
        "inks": [ink_on(HUES[hue]) for hue in PHASES.values()],
        "actors": actor_columns(comparison.actors, medians, firings_per_step(timelines)),
        "timelines": [timeline_columns(drawn, numbers, unit_ns) for drawn in timelines],
        "paths": path_columns(comparison.critical_paths, numbers),
        "memory": [[curve_columns(curve, unit_ns) for curve in row] for row in curves],
    }


def _summary(title: str, comparison: Comparison) -> list[str]:
    """Title and the three figures of the step time."""
    figures = {
        "predicted step time": format_seconds(comparison.predicted_step_time_s),
        "measured step time": format_seconds(comparison.measured_step_time_s),
        "error (predicted / measured − 1)": format_percent(comparison.step_time_error, signed=True),
    }
    cards = "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in figures.items())
    return [f"<h1>{escape(title)}</h1>", f'<dl class="figures">{cards}</dl>']


def _timelines(timelines: Sequence[Timeline], paths: bool) -> list[str]:
    """Section of both timelines: a canvas for the script, else a picture."""
    longest = max(drawn.duration_ns for drawn in timelines)
    description = "; ".join(
        f"{drawn.source}: {len(drawn.bars):,} firings on {len({row.rank for row in drawn.rows})} "
        f"ranks in {format_seconds(drawn.duration_ns / 1e9)}"
        for drawn in timelines
    )
    pictures = "".join(
        f"<h3>{escape(drawn.source.capitalize())}: step {drawn.step}, "
        f"{format_seconds(drawn.duration_ns / 1e9)}</h3>"
        f"{timeline_svg(_first_rows(drawn), longest, PICTURE_BARS)}"
        for drawn in timelines
    )
    used = {bar.what for drawn in timelines for bar in drawn.bars}
    return [
        "<h2>One step, predicted and measured</h2>",
        legend({what.replace("_", " "): hue for what, hue in PHASES.items() if what in used}),
        '<div class="interactive" hidden><p class="controls">'
        '<label>rows <select id="order"><option value="rank">predicted above measured</option>'
        '<option value="trace">all predicted, then all measured</option></select></label>'
        f"{_PATHS if paths else ''}"
        '<button type="button" id="reset">show all</button>'
        '<span id="range"></span></p>'
        '<div id="rows" class="scroller"><canvas id="timelines" tabindex="0" role="img" '
        'aria-describedby="mark" '
        f'aria-label="Timelines of one step. {escape(description)}. The tables below hold the '
        'figures."></canvas><div id="rows-height"></div></div>'
        '<p id="mark" class="mark" aria-live="polite"></p>'
        f'{_HINT}<div id="tip" class="tip" hidden></div></div>',
        f"<noscript>{pictures}</noscript>",
    ]


def _first_rows(drawn: Timeline) -> Timeline:
    """Timeline without rows that a picture has no room for."""
    bars = tuple(bar for bar in drawn.bars if bar.row < PICTURE_ROWS)
    return drawn._replace(rows=drawn.rows[:PICTURE_ROWS], bars=bars)


def _memory(curves: Sequence[Sequence[MemoryCurve]]) -> list[str]:
    """Section of memory over time: a canvas on the timelines' axis, and a table of peaks."""
    if not any(curves):
        return []
    ranks = sorted({curve.rank for row in curves for curve in row})
    options = "".join(f'<option value="{rank}">rank {rank}</option>' for rank in ranks)
    return [
        "<h2>Memory over the step</h2>",
        "<p>Bytes of register versions that are alive: from the start of the firing that writes a "
        "version to the end of the last that reads it, by the times of either trace.</p>",
        '<div class="interactive" hidden><p class="controls">'
        f'<label>in front <select id="memory-rank">{options}</select></label> '
        '<span class="key"><i class="line predicted"></i>predicted</span>'
        '<span class="key"><i class="line measured"></i>measured</span></p>'
        '<canvas id="memory" tabindex="0" role="img" aria-label="Memory of every rank over the '
        'step, predicted and measured. The table below holds the peaks."></canvas></div>',
        memory_table(*curves),
    ]


def _costs(actors: Mapping[str, Any]) -> list[str]:
    """Section of actors: scatter of their costs and the table that it filters."""
    return [
        f"<h2>Costs of {len(actors['name']):,} actors</h2>",
        '<div class="interactive scatter" hidden><div><canvas id="scatter" tabindex="0" role="img" '
        'aria-label="Median duration of every actor, predicted against measured, on logarithmic '
        'axes. The table below holds the figures."></canvas></div><div><p>Median duration of a '
        "firing, predicted against measured, one point an actor; its area grows with the time "
        "that the actor takes of a step. The band is ±20 %: points below it are predicted too "
        'slow, points above it too fast.</p><p id="kinds" class="kinds"></p>'
        '<p id="point" class="mark" aria-live="polite"></p></div></div>',
        actor_table(actors),
    ]
