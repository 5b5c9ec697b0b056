"""Bars of where the step of every stage goes, one stacked bar each, and the step's timeline."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from millrace.comparison_page import time_axis
from millrace.palette import HUES, PHASES
from millrace.simulator.account import Account, CommunicationRow, StageRow
from millrace.simulator.simulate import Simulated, SimulatedRun
from millrace.traces.timeline import Bar, Timeline, TimelineRow
from millrace.units import format_percent, format_seconds

LABEL_PX, PLOT_PX, SIDE_PX = 90, 960, 120
BAR_PX, GAP_PX = 22, 7

# Exposed communication has hues apart from those of computation.
MOVING = ("purple", "vermillion", "wine")
OTHERS, OTHERS_HUE = "others", "indigo"
SEEN = 0.0005  # of the step: half a pixel
LEAST = 0.002  # of the step; collectives that show less are drawn together
LAUNCH = "waits for the host"
HOST, WAITING = "stone", "mist"
COMPUTED = tuple(phase for phase in PHASES if phase != "communication")


class BarPiece(NamedTuple):
    """A part of a stage's bar."""

    name: str
    hue: str  # of `millrace/palette.py`
    ns: float


def moving_hues(account: Account) -> dict[str, str]:
    """Hue of each collective that shows; those that show little have one together."""
    least_ns = LEAST * account.step_time_ns
    shown = [collective(row) for row in account.communication if row.exposed_ns > least_ns]
    return dict(zip(shown, MOVING, strict=False))


def collective(row: CommunicationRow) -> str:
    """Name of a collective with the axes of the mesh it spans: `all_gather over dp`."""
    return f"{row.kind} over {' × '.join(row.axes)}" if row.axes else row.kind


def stage_pieces(stage: StageRow, hues: Mapping[str, str]) -> list[BarPiece]:
    """Parts of a stage's bar, which add up to the step."""
    phases = dict.fromkeys(COMPUTED, 0.0)
    for op in stage.compute:
        phases[op.phase] += op.busy_ns
    pieces = [BarPiece(phase.replace("_", " "), PHASES[phase], ns) for phase, ns in phases.items()]
    exposed = dict.fromkeys([*hues, OTHERS], 0.0)
    for row in stage.communication:
        name = collective(row)
        exposed[name if name in hues else OTHERS] += row.exposed_ns
    pieces += [
        BarPiece(f"exposed {name}", hues.get(name, OTHERS_HUE), ns) for name, ns in exposed.items()
    ]
    pieces.append(BarPiece(LAUNCH, HOST, stage.host_ns))
    pieces.append(BarPiece("bubble", WAITING, max(stage.bubble_ns - stage.host_ns, 0.0)))
    return [piece for piece in pieces if piece.ns > 0]


def bar_hues(account: Account) -> dict[str, str]:
    """Legend of the bars: every part that can be seen in any stage's bar, with its hue."""
    moving = moving_hues(account)
    hues: dict[str, str] = {}
    for stage in account.stages:
        for piece in stage_pieces(stage, moving):
            if piece.ns > SEEN * account.step_time_ns:
                hues[piece.name] = piece.hue
    order = [phase.replace("_", " ") for phase in COMPUTED]
    order += [f"exposed {name}" for name in (*moving, OTHERS)] + [LAUNCH, "bubble"]
    return {name: hues[name] for name in order if name in hues}


def bars_svg(account: Account) -> str:
    """Bars of the stages, as SVG; beside each is written how long the stage computes."""
    hues = moving_hues(account)
    step_ns = max(account.step_time_ns, 1)
    height = len(account.stages) * (BAR_PX + GAP_PX) + 26
    parts = [
        f'<svg viewBox="0 0 {LABEL_PX + PLOT_PX + SIDE_PX} {height}" role="img" '
        'aria-label="where the step of every stage goes">'
    ]
    for position, stage in enumerate(account.stages):
        top = position * (BAR_PX + GAP_PX)
        parts.append(f'<text x="4" y="{top + 15}">stage {stage.stage}</text>')
        left = float(LABEL_PX)
        for piece in stage_pieces(stage, hues):
            width = PLOT_PX * piece.ns / step_ns
            parts.append(_piece(piece, left, top, width, piece.ns / step_ns))
            left += width
        busy = format_percent(stage.busy_ns / step_ns)
        parts.append(f'<text x="{LABEL_PX + PLOT_PX + 8}" y="{top + 15}">{busy} busy</text>')
    parts.append(time_axis(LABEL_PX, PLOT_PX, height - 22, step_ns, 8))
    return "".join([*parts, "</svg>"])


def _piece(piece: BarPiece, left: float, top: int, width: float, share: float) -> str:
    tip = f"{piece.name}: {format_seconds(piece.ns / 1e9)}, {format_percent(share)} of the step"
    ink = f"on-{piece.hue}" if piece.hue in HUES else "ink"
    label = (
        f'<text x="{left + width / 2:.1f}" y="{top + 15}" text-anchor="middle" '
        f'style="fill:var(--{ink})">{format_percent(share)}</text>'
        if width > 46
        else ""
    )
    return (
        f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{BAR_PX}" '
        f'fill="var(--{piece.hue})"><title>{escape(tip)}</title></rect>{label}'
    )


def step_timeline(simulated: Simulated) -> Timeline:
    """Timeline of the step that the figures are of: what a rank of each stage computes and moves.

    A meeting's bar begins when its data begins to move.
    """
    begin_ns, end_ns = simulated.window_ns
    rows: list[TimelineRow] = []
    bars: list[Bar] = []
    for run in _first_of_stages(simulated.runs):
        instance = run.instance
        for moving in (False, True):
            firings = sorted(
                (max(start, begin_ns), min(end, end_ns), actor.phase, actor.name)
                for actor, starts, ends in zip(
                    instance.program.actors, instance.begins, instance.ends, strict=True
                )
                if (actor.meeting is not None) == moving
                for start, end in zip(starts, ends, strict=True)
                if end > begin_ns and start < end_ns and end > start
            )
            if firings:
                queue = f"stage {instance.program.stage} {'moves' if moving else 'computes'}"
                rows.append(TimelineRow(instance.rank, instance.program.stage, queue))
            bars.extend(
                Bar(
                    len(rows) - 1,
                    start - begin_ns,
                    end - begin_ns,
                    "communication" if moving else phase,
                    name,
                )
                for start, end, phase, name in firings
            )
    return Timeline("simulated", 0, end_ns - begin_ns, tuple(rows), tuple(bars))


def _first_of_stages(runs: Iterable[SimulatedRun]) -> Sequence[SimulatedRun]:
    run_by_stage: dict[int, SimulatedRun] = {}
    for run in runs:
        run_by_stage.setdefault(run.instance.program.stage, run)
    return [run_by_stage[stage] for stage in sorted(run_by_stage)]
