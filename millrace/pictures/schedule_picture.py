"""Schedule picture: one step as a Gantt chart, stages × time, a cell for each microbatch's pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace.drawing import headline
from millrace.palette import HUES, LIGHT, PHASES, Theme, ink_on, tint
from millrace.pictures.look import look
from millrace.pictures.picture_file import Picture, check_drawable
from millrace.pictures.schedule_cells import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    StageCells,
    schedule_cells,
    splits_backward,
)
from millrace.pictures.simulated_plan import SimulatedPlan
from millrace.planner.plan import Plan
from millrace.units import format_percent, format_seconds

LEFT_IN, RIGHT_IN = 1.25, 0.95  # of labels beside the rows
WIDTH_IN, WIDTH_MAX_IN = 12.0, 20.0
ROW_IN, ROW_LEAST_IN = 0.52, 0.3  # of few stages, and of many
FONT_PT, FONT_LEAST_PT = 8.0, 4.5
DIGIT_EM = 0.64  # of DejaVu Sans
CELL, STRIP = 0.66, 0.16  # of a row: what computes, and below it what moves
TEXTS_MAX = 4000
TINTS = (1.0, 0.62, 0.4, 0.26)  # of the chunks of a stage, in model order; more have the last
SEEN = 5e-4  # of the steps of all stages; what takes less has no entry in the legend
NAMES = {
    "begin": "begin of the step",
    FORWARD: "forward",
    BACKWARD: "backward",
    WEIGHT: "backward: weights",
    "update": "optimizer",
}


def draw_schedule(plan: Plan, path: Path) -> None:
    """Simulate a plan and write the picture of `schedule_picture` to a file.

    Parameters
    ----------
    plan : Plan
        The plan.
    path : Path
        A name that ends in .png, .svg, .pdf or .html.

    Raises
    ------
    FileError
        Matplotlib is missing, the name ends otherwise, or the file cannot be written.
    """
    check_drawable(path)
    schedule_picture(SimulatedPlan(plan=plan)).save(path)


def schedule_picture(simulated: SimulatedPlan, theme: Theme = LIGHT) -> Picture:
    """Picture of a plan's schedule: when each stage computes what for which microbatch.

    Numbers in cells are microbatches. Later chunks of a stage are lighter. Below the cells of a
    stage are the times in which it moves data.

    Parameters
    ----------
    simulated : SimulatedPlan
        The plan and one step of it.
    theme : Theme
        Colours of the page it stands on.
    """
    from matplotlib.figure import Figure

    rows = schedule_cells(simulated.plan, simulated.step)
    width = _width_in(rows, simulated)
    with look(theme):
        figure = Figure(figsize=(width, height_in(rows)), layout="constrained")
        draw_on(figure, simulated, rows, theme)
        figure.suptitle(headline(simulated.plan), x=0.01, ha="left", fontsize=10.5, wrap=True)
    return Picture(figure, title(simulated), description(simulated, rows), theme)


def title(simulated: SimulatedPlan) -> str:
    """Title: the plan's schedule and how long its step takes."""
    plan = simulated.plan
    stages = "1 stage" if plan.stages == 1 else f"{plan.stages} stages, {plan.schedule}"
    time = format_seconds(simulated.step.step_time_ns / 1e9)
    return f"One step of {plan.model.name}: {stages}, {time}"


def description(simulated: SimulatedPlan, rows: Sequence[StageCells]) -> str:
    """Description of the picture in words.

    Parameters
    ----------
    simulated : SimulatedPlan
        The plan and one step of it.
    rows : sequence of StageCells
        What is drawn of each stage.
    """
    step_ns = max(simulated.step.step_time_ns, 1)
    shares = [format_percent(row.busy_fraction) for row in rows]
    busy = f"The stage computes in {shares[0]} of the step"
    if len(shares) > 1:
        least, most = (pick(rows, key=lambda row: row.busy_fraction) for pick in (min, max))
        busy = (
            f"Stage {most.stage} computes most, in {shares[rows.index(most)]} of the step, stage "
            f"{least.stage} least, in {shares[rows.index(least)]}"
        )
    return (
        f"Rows are stages, of which one rank is drawn; time runs to the right, over "
        f"{format_seconds(step_ns / 1e9)}. {busy}. Ranks neither compute nor move data in "
        f"{format_percent(simulated.step.bubble_fraction)} of the step, in the mean."
    )


def height_in(rows: Sequence[StageCells]) -> float:
    """Height of the picture in inches.

    Parameters
    ----------
    rows : sequence of StageCells
        What is drawn of each stage.
    """
    return 1.25 + _row_in(len(rows)) * len(rows)


def draw_on(
    figure: Any, simulated: SimulatedPlan, rows: Sequence[StageCells], theme: Theme
) -> None:
    """Draw the chart on a figure or a part of one.

    Parameters
    ----------
    figure
        A Figure or SubFigure, which gets one panel and a legend.
    simulated : SimulatedPlan
        The plan and one step of it.
    rows : sequence of StageCells
        What is drawn of each stage.
    theme : Theme
        Colours of the page it stands on.
    """
    plan, step_ns = simulated.plan, max(simulated.step.step_time_ns, 1)
    unit, scale_ns = next(
        (unit, scale)
        for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1))
        if step_ns >= scale
    )
    panel = figure.subplots()
    panel.grid(visible=False)
    panel.spines[["left", "bottom"]].set_visible(False)
    fills = _fills(plan, theme)
    width_in = figure.bbox.width / figure.get_figure(root=True).dpi
    labelled = _font_pt(rows, simulated, width_in)
    seam_pt = min(0.35, 72 * width_in * _pass_ns(rows) / step_ns / 10)
    for place, row in enumerate(rows):
        _draw_row(panel, place, row, step_ns / scale_ns, scale_ns, fills, seam_pt, theme)
        if labelled:
            _label_row(panel, place, row, scale_ns, fills, labelled, step_ns)
    panel.set_ylim(len(rows) - 0.08, -0.12)
    panel.set_xlim(0, step_ns / scale_ns)
    panel.set_yticks([place + CELL / 2 for place in range(len(rows))])
    panel.set_yticklabels(
        [f"stage {row.stage}\n{_ranks(plan, row.stage)}" for row in rows],
        color=theme.ink,
        fontsize=9 if len(rows) <= 16 else 7,
    )
    busy = panel.twinx()
    busy.grid(visible=False)
    busy.spines[["left", "bottom"]].set_visible(False)
    busy.set_ylim(panel.get_ylim())
    busy.set_yticks([place + CELL / 2 for place in range(len(rows))])
    busy.set_yticklabels(
        [f"{format_percent(row.busy_fraction)}\nbusy" for row in rows],
        fontsize=9 if len(rows) <= 16 else 7,
    )
    panel.set_xlabel(f"{unit} from the begin of the step")
    panel.set_title(
        f"{title(simulated)}; bubble {format_percent(simulated.step.bubble_fraction)}",
        loc="left",
        fontsize=12,
        fontweight="bold",
    )
    _draw_legend(figure, plan, rows, theme)


def _ranks(plan: Plan, stage: int) -> str:
    devices = plan.mesh.devices
    first = stage * devices
    last = first + devices - 1
    return f"rank {first:,}" if devices == 1 else f"ranks {first:,}–{last:,}"


def _row_in(stages: int) -> float:
    return ROW_IN if stages <= 8 else max(ROW_LEAST_IN, ROW_IN * 8 / stages)


def _pass_ns(rows: Sequence[StageCells]) -> float:
    """Duration of a typical forward pass, in nanoseconds; 0: there is none."""
    passes = sorted(
        cell.end_ns - cell.start_ns for row in rows for cell in row.cells if cell.what == FORWARD
    )
    return float(passes[len(passes) // 4]) if passes else 0.0


def _em(simulated: SimulatedPlan) -> float:
    """Width of the longest label in units of the font's size, with room beside it."""
    return DIGIT_EM * len(str(simulated.plan.microbatches - 1)) + 0.3


def _width_in(rows: Sequence[StageCells], simulated: SimulatedPlan) -> float:
    """Width of the figure: wider where that makes room for the numbers of microbatches."""
    pass_ns = _pass_ns(rows)
    if not pass_ns:
        return WIDTH_IN
    needed_in = FONT_LEAST_PT * _em(simulated) / 72 * simulated.step.step_time_ns / pass_ns
    width_in = LEFT_IN + RIGHT_IN + needed_in
    return max(WIDTH_IN, 1.02 * width_in) if width_in < WIDTH_MAX_IN else WIDTH_IN


def _font_pt(rows: Sequence[StageCells], simulated: SimulatedPlan, width_in: float) -> float:
    """Size of the numbers in cells; 0: there is no room, or there are too many."""
    cells = sum(cell.microbatch >= 0 for row in rows for cell in row.cells)
    room_in = (width_in - LEFT_IN - RIGHT_IN) * _pass_ns(rows) / max(simulated.step.step_time_ns, 1)
    size_pt = min(FONT_PT, 72 * room_in / _em(simulated))
    return size_pt if size_pt >= FONT_LEAST_PT * 0.98 and cells <= TEXTS_MAX else 0.0


def _fills(plan: Plan, theme: Theme) -> dict[tuple[str, int], str]:
    """Colours of cells by what they are and their chunk."""
    fills = {(what, -1): HUES[hue] for what, hue in PHASES.items()}
    places: dict[int, int] = {}
    for number, chunk in enumerate(plan.chunks):
        place = places[chunk.stage] = places.get(chunk.stage, -1) + 1
        for what in (FORWARD, BACKWARD, WEIGHT):
            share = TINTS[min(place, len(TINTS) - 1)]
            fills[what, number] = tint(HUES[PHASES[what]], share, theme.paper)
    return fills


def _draw_row(
    panel: Any,
    place: int,
    row: StageCells,
    length: float,
    scale_ns: float,
    fills: dict[tuple[str, int], str],
    seam_pt: float,
    theme: Theme,
) -> None:
    panel.broken_barh([(0, length)], (place, CELL), facecolors=theme.mist)
    panel.broken_barh([(0, length)], (place + CELL, STRIP), facecolors=theme.card)
    panel.broken_barh(
        [
            (cell.start_ns / scale_ns, (cell.end_ns - cell.start_ns) / scale_ns)
            for cell in row.cells
        ],
        (place, CELL),
        facecolors=[fills[cell.what, cell.chunk] for cell in row.cells],
        edgecolors=theme.paper,
        linewidth=seam_pt,
    )
    panel.broken_barh(
        [(start / scale_ns, (end - start) / scale_ns) for start, end in row.moves],
        (place + CELL, STRIP),
        facecolors=HUES[PHASES["communication"]],
    )


def _label_row(
    panel: Any,
    place: int,
    row: StageCells,
    scale_ns: float,
    fills: dict[tuple[str, int], str],
    font_pt: float,
    step_ns: int,
) -> None:
    """Write the numbers of microbatches into the cells that have room."""
    least_ns = 0.5 * _pass_ns([row])
    for cell in row.cells:
        if cell.microbatch < 0 or cell.end_ns - cell.start_ns < least_ns:
            continue
        panel.text(
            (cell.start_ns + cell.end_ns) / 2 / scale_ns,
            place + CELL / 2,
            str(cell.microbatch),
            ha="center",
            va="center_baseline",
            fontsize=font_pt,
            color=ink_on(fills[cell.what, cell.chunk]),
        )


def _draw_legend(figure: Any, plan: Plan, rows: Sequence[StageCells], theme: Theme) -> None:
    from matplotlib.patches import Patch

    seen: dict[str, int] = {}
    for cell in (cell for row in rows for cell in row.cells):
        seen[cell.what] = seen.get(cell.what, 0) + cell.end_ns - cell.start_ns
    least_ns = SEEN * len(rows) * max(cell.end_ns for row in rows for cell in row.cells)
    names = NAMES | ({BACKWARD: "backward: inputs"} if splits_backward(plan) else {})
    handles = [
        Patch(facecolor=HUES[PHASES[what]], label=name)
        for what, name in names.items()
        if seen.get(what, 0) > least_ns
    ]
    if any(row.moves for row in rows):
        purple = HUES[PHASES["communication"]]
        handles.append(Patch(facecolor=purple, label="data moves"))
    handles.append(Patch(facecolor=theme.mist, label="idle"))
    if plan.interleave > 1:
        blue = tint(HUES[PHASES[FORWARD]], TINTS[1], theme.paper)
        handles.append(Patch(facecolor=blue, label="lighter: later chunks"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 8), fontsize=9
    )
