"""The page of one simulated step: figures, bars, tables, memory and the timeline.

It holds no script and takes nothing from elsewhere, so it can be mailed or archived.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from millrace.comparison_page import document, legend, timeline_svg
from millrace.drawing import headline
from millrace.palette import MEMORY_KINDS, PHASES
from millrace.planner.plan import Plan
from millrace.reporting.areas import area_svg, drawn_bytes, height_bytes
from millrace.reporting.bars import (
    bar_hues,
    bars_svg,
    step_timeline,
)
from millrace.simulator.account import Account, MemoryTimeline
from millrace.simulator.account.memory import window_of
from millrace.simulator.simulate import Simulated
from millrace.units import format_bytes, format_percent, format_seconds

SHOWN_KINDS = 14  # of ops; the others are one row
SHOWN_STAGES = 8  # whose memory is drawn

PARTS = (
    '<p class="note">Whole parts of chunks: communication inside them is drawn as the part, a '
    "backward pass that does both its halves at once as backward input.</p>"
)

_STYLE = """
.cards { display: flex; flex-wrap: wrap; gap: .5rem; margin: .8rem 0 0; }
.cards div { border: 1px solid var(--grid); border-radius: 6px; padding: .35rem .7rem; }
.cards b { display: block; font-size: 1.05rem; }
.cards span { color: var(--soft); font-size: 12px; }
.areas { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem 1.4rem; }
.areas h3 { font-size: 13px; font-weight: 600; margin: 0 0 .3rem; }
.note { color: var(--soft); font-size: 12.5px; } td.meter { width: 190px; }
.meter i { display: inline-block; height: .7rem; vertical-align: -1px; }
th.left, td.left { text-align: left; } tr.sum td { font-weight: 600; }
"""


def report_page(
    plan: Plan, simulated: Simulated, account: Account, figures: Iterable[tuple[str, str]]
) -> str:
    """HTML page of one step, simulated with `detailed=True`; the figures stand at its top."""
    cards = "".join(
        f"<div><span>{escape(name)}</span><b>{escape(value)}</b></div>" for name, value in figures
    )
    timeline = step_timeline(simulated)
    drawn = {bar.what for bar in timeline.bars}
    bars = {what.replace("_", " "): hue for what, hue in PHASES.items() if what in drawn}
    return document(
        headline(plan),
        [
            f"<h1>{escape(headline(plan))}</h1>",
            f'<div class="cards">{cards}</div>',
            "<h2>Where the step of each stage goes</h2>",
            legend(bar_hues(account)),
            bars_svg(account),
            "<h2>Communication: what hides and what shows</h2>",
            _communication(account),
            "<h2>Computation by kind of op</h2>",
            _compute(account),
            *_memory(account),
            f"<h2>The step: one rank of each stage, "
            f"{format_seconds(account.step_time_ns / 1e9)}</h2>",
            legend(bars),
            *([] if simulated.fidelity == "op" else [PARTS]),
            timeline_svg(timeline, timeline.duration_ns),
            f"<footer>Millrace · plan {escape(plan.digest())} · {simulated.fidelity} fidelity · "
            "times are of one step, in the mean over ranks</footer>",
        ],
        _STYLE,
    )


def _communication(account: Account) -> str:
    if not account.communication:
        return '<p class="note">Nothing is communicated.</p>'
    step_ns = max(account.step_time_ns, 1)
    longest = max(row.duration_ns for row in account.communication)
    lines = [
        '<table><tr><th>collective</th><th class="left">over</th><th>bytes</th><th>time</th>'
        "<th>hidden</th><th>shows</th><th>of the step</th>"
        '<th class="left">hidden | shows</th></tr>'
    ]
    for row in account.communication:
        hidden_ns = row.duration_ns - row.exposed_ns
        lines.append(
            f'<tr><td>{escape(row.kind)}</td><td class="left">{escape(" ".join(row.axes))}</td>'
            f"<td>{format_bytes(row.message_bytes)}</td>"
            f"<td>{format_seconds(row.duration_ns / 1e9)}</td>"
            f"<td>{format_percent(hidden_ns / row.duration_ns)}</td>"
            f"<td>{format_seconds(row.exposed_ns / 1e9)}</td>"
            f"<td>{format_percent(row.exposed_ns / step_ns)}</td>"
            f"{_meter((hidden_ns / longest, 'mist'), (row.exposed_ns / longest, 'purple'))}"
            "</tr>"
        )
    exposed_ns = sum(row.exposed_ns for row in account.communication)
    lines.append(
        f'<tr class="sum"><td>exposed communication</td><td colspan="4"></td>'
        f"<td>{format_seconds(exposed_ns / 1e9)}</td>"
        f"<td>{format_percent(exposed_ns / step_ns)}</td><td></td></tr></table>"
    )
    return "".join(lines)


def _compute(account: Account) -> str:
    """Table of a row per kind of op, a column per phase."""
    step_ns = max(account.step_time_ns, 1)
    kinds: dict[str, dict[str, float]] = {}
    for row in account.compute:
        ns_by_phase = kinds.setdefault(row.kind, {})
        ns_by_phase[row.phase] = ns_by_phase.get(row.phase, 0.0) + row.busy_ns
    ordered = sorted(kinds, key=lambda kind: (-sum(kinds[kind].values()), kind))
    shown = [(kind, kinds[kind]) for kind in ordered[:SHOWN_KINDS]]
    if rest := ordered[SHOWN_KINDS:]:
        shown.append((f"{len(rest)} other kinds", _added(kinds[kind] for kind in rest)))
    phases = [
        phase for phase in PHASES if any(phase in ns_by_phase for ns_by_phase in kinds.values())
    ]
    heads = "".join(f"<th>{phase.replace('_', ' ')}</th>" for phase in phases)
    lines = [
        f"<table><tr><th>kind</th>{heads}<th>sum</th><th>of the step</th>"
        '<th class="left">by phase</th></tr>'
    ]
    longest = max((sum(ns_by_phase.values()) for _, ns_by_phase in shown), default=1.0) or 1.0
    for kind, times in [*shown, ("busy", _added(kinds.values()))]:
        total = sum(times.values())
        cells = "".join(
            f"<td>{format_seconds(times[phase] / 1e9) if times.get(phase) else ''}</td>"
            for phase in phases
        )
        meter = "<td></td>"
        if kind != "busy":
            meter = _meter(*((times.get(p, 0.0) / longest, PHASES[p]) for p in phases))
        mark = ' class="sum"' if kind == "busy" else ""
        lines.append(
            f"<tr{mark}><td>{escape(kind)}</td>{cells}"
            f"<td>{format_seconds(total / 1e9)}</td><td>{format_percent(total / step_ns)}</td>"
            f"{meter}</tr>"
        )
    return "".join([*lines, "</table>"])


def _added(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    ns_by_phase: dict[str, float] = {}
    for row in rows:
        for phase, ns in row.items():
            ns_by_phase[phase] = ns_by_phase.get(phase, 0.0) + ns
    return ns_by_phase


def _meter(*parts: tuple[float, str]) -> str:
    """Cell of a table with a bar: shares of its width, and their hues."""
    inner = "".join(
        f'<i style="width:{share * 180:.1f}px;background:var(--{hue})"></i>'
        for share, hue in parts
        if share > 0
    )
    return f'<td class="meter left">{inner}</td>'


def _memory(account: Account) -> list[str]:
    """Section about the memory of stages over the step: of all, or of some where there are many."""
    begin_ns, step_ns = account.begin_ns, account.step_time_ns
    sizes = [sum(row.memory_by_kind.values()) for row in account.stages]
    chosen = _chosen(sizes)
    courses = [window_of(account.memory[stage], begin_ns, begin_ns + step_ns) for stage in chosen]
    kinds = [
        kind for kind in MEMORY_KINDS if any(kind in drawn_bytes(course) for course in courses)
    ]
    limit = format_bytes(courses[0].limit_bytes)
    scale = height_bytes(max(sizes), max(course.limit_bytes for course in courses))
    above = ", above what is drawn" if courses[0].limit_bytes > scale else ""
    note = f"A device of stage {courses[0].stage} has {limit}{above}."
    if len(chosen) < len(sizes):
        note += f" {len(chosen)} of {len(sizes)} stages are drawn, the fullest among them."
    areas = "".join(
        f"<div><h3>{_title(course, sizes[stage])}</h3>"
        f"{area_svg(course, sizes[stage], step_ns, scale)}</div>"
        for stage, course in zip(chosen, courses, strict=True)
    )
    return [
        "<h2>Memory over one step</h2>",
        legend({kind: MEMORY_KINDS[kind] for kind in kinds}),
        f'<p class="note">{note} The dashed line is what a device has to have.</p>',
        f'<div class="areas">{areas}</div>',
    ]


def _title(course: MemoryTimeline, size: int) -> str:
    share = format_percent(size / course.limit_bytes)
    return f"stage {course.stage} · {format_bytes(size)}, {share} of the device"


def _chosen(sizes: Sequence[int]) -> list[int]:
    """Indices of the stages that are drawn: spread evenly, with the fullest."""
    if len(sizes) <= SHOWN_STAGES:
        return list(range(len(sizes)))
    fullest = max(range(len(sizes)), key=sizes.__getitem__)
    spread = {index * (len(sizes) - 1) // (SHOWN_STAGES - 1) for index in range(SHOWN_STAGES)}
    if fullest not in spread:
        spread.remove(min(spread - {0, len(sizes) - 1}, key=lambda index: abs(index - fullest)))
    return sorted(spread | {fullest})
