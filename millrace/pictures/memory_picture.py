"""Memory picture: the bytes of every stage's devices by kind, and of some over the step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from millrace.palette import HUES, LIGHT, MEMORY_KINDS, Theme
from millrace.pictures.look import look
from millrace.pictures.picture_file import Picture, check_drawable
from millrace.pictures.simulated_plan import SimulatedPlan
from millrace.planner.plan import Plan
from millrace.reporting.areas import NEAR, POINTS, RUNTIME, drawn_bytes, fullest_moments
from millrace.simulator.account.memory import window_of
from millrace.units import byte_unit, format_bytes, format_percent

Limit = tuple[int, str, Literal["-", "--"]]

WIDTH_IN = 12.0
COURSES_MAX = 3  # stages whose memory is drawn over time


def draw_memory(plan: Plan, path: Path) -> None:
    """Simulate a plan and write the picture of `memory_picture` to a file.

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
    memory_picture(SimulatedPlan(plan=plan)).save(path)


def memory_picture(simulated: SimulatedPlan, theme: Theme = LIGHT) -> Picture:
    """Picture of a plan's memory: a bar for every stage, and the fullest over time.

    Parameters
    ----------
    simulated : SimulatedPlan
        The plan and one step of it.
    theme : Theme
        Colours of the page it stands on.
    """
    from matplotlib.figure import Figure

    with look(theme):
        figure = Figure(figsize=(WIDTH_IN, height_in(simulated)), layout="constrained")
        draw_on(figure, simulated, theme)
    return Picture(figure, title(simulated), description(simulated), theme)


def height_in(simulated: SimulatedPlan) -> float:
    """Height of the picture in inches.

    Parameters
    ----------
    simulated : SimulatedPlan
        The plan and one step of it.
    """
    return max(4.3, 1.7 + 0.3 * len(simulated.account.stages))


def title(simulated: SimulatedPlan) -> str:
    """Title: the plan's model and the fullest device."""
    most = max(map(sum, (bytes_by_kind.values() for bytes_by_kind in _by_kind(simulated))))
    return f"Memory of {simulated.plan.model.name}: at most {format_bytes(most)} on a device"


def description(simulated: SimulatedPlan) -> str:
    """Description of the picture in words.

    Parameters
    ----------
    simulated : SimulatedPlan
        The plan and one step of it.
    """
    rows = _by_kind(simulated)
    sizes = [sum(row.values()) for row in rows]
    fullest = sizes.index(max(sizes))
    kinds = sorted(rows[fullest].items(), key=lambda item: -item[1])
    named = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in kinds if size)
    memory = simulated.account.memory[fullest].limit_bytes
    text = (
        f"A device of stage {fullest} has to have most, {format_bytes(sizes[fullest])} of its "
        f"{format_bytes(memory)}: {named}."
    )
    if len(sizes) > 1:
        least = sizes.index(min(sizes))
        text += f" Stage {least} has to have least, {format_bytes(sizes[least])}."
    return text


def draw_on(figure: Any, simulated: SimulatedPlan, theme: Theme) -> None:
    """Draw bars and courses on a figure or a part of one.

    Parameters
    ----------
    figure
        A Figure or SubFigure, which gets panels and a legend.
    simulated : SimulatedPlan
        The plan and one step of it.
    theme : Theme
        Colours of the page it stands on.
    """
    rows = _by_kind(simulated)
    sizes = [sum(row.values()) for row in rows]
    shown = _shown_stages(sizes)
    grid = figure.add_gridspec(1, 1 + len(shown), width_ratios=(1.5, *(1.0 for _ in shown)))
    unit, scale = byte_unit(max(sizes))
    top = _top_bytes(simulated, max(sizes)) / scale
    _draw_bars(figure.add_subplot(grid[0, 0]), rows, simulated, (unit, scale), top, theme)
    first = None
    for place, stage in enumerate(shown):
        panel = figure.add_subplot(grid[0, 1 + place], sharey=first)
        first = first or panel
        _draw_course(panel, stage, simulated, (unit, scale), top, theme)
        panel.set_ylim(0, top)
        panel.tick_params(labelleft=place == 0)
        if place == 0:
            panel.set_ylabel(unit)
    _draw_legend(figure, rows, _limits(simulated, 0, top * scale), theme)
    figure.suptitle(title(simulated), x=0.01, ha="left", fontsize=12, fontweight="bold")


def _by_kind(simulated: SimulatedPlan) -> list[dict[str, int]]:
    """Bytes of a device of every stage by the kinds that are drawn."""
    rows = []
    for stage in simulated.account.stages:
        bytes_by_kind = dict.fromkeys(MEMORY_KINDS, 0)
        for kind, size in stage.memory_by_kind.items():
            bytes_by_kind["runtime" if kind in RUNTIME else kind] += size
        rows.append(bytes_by_kind)
    return rows


def _shown_stages(sizes: Sequence[int]) -> list[int]:
    """Stages that are drawn over time: all if few, else the fullest, the first and the last."""
    if len(sizes) <= COURSES_MAX:
        return list(range(len(sizes)))
    return sorted({0, sizes.index(max(sizes)), len(sizes) - 1})


def _top_bytes(simulated: SimulatedPlan, most: int) -> float:
    """Bytes at the end of the axis: the device's memory is in it unless it is far away."""
    limit = max(course.limit_bytes for course in simulated.account.memory)
    return 1.08 * limit if most >= NEAR * limit else 1.15 * most


def _limits(simulated: SimulatedPlan, stage: int, top_bytes: float) -> list[Limit]:
    """Bytes, name and style of the lines at a device's memory and at what a plan may use of it."""
    memory = simulated.account.memory[stage].limit_bytes
    limits: list[Limit] = [(memory, f"memory of a device, {format_bytes(memory)}", "-")]
    usable = simulated.plan.memory_limit_bytes
    if 0 < usable < memory and not simulated.plan.cluster.others:
        limits.append((usable, f"a plan may use {format_bytes(usable)}", "--"))
    return [limit for limit in limits if limit[0] <= top_bytes]


def _draw_bars(
    panel: Any,
    rows: Sequence[dict[str, int]],
    simulated: SimulatedPlan,
    measure: tuple[str, int],
    top: float,
    theme: Theme,
) -> None:
    unit, scale = measure
    places = range(len(rows))
    left = [0.0] * len(rows)
    for kind, hue in MEMORY_KINDS.items():
        widths = [row[kind] / scale for row in rows]
        panel.barh(
            places, widths, 0.72, left, color=HUES[hue], edgecolor=theme.paper, linewidth=0.5
        )
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for limit, _, line in _limits(simulated, 0, top * scale):
        panel.axvline(limit / scale, color=theme.alarm, linestyle=line, linewidth=1.4)
    panel.grid(visible=False, axis="y")
    memory = [course.limit_bytes for course in simulated.account.memory]
    panel.set_yticks(
        places,
        [
            f"stage {place}\n{size:.1f} {unit}, {format_percent(size * scale / memory[place])}"
            for place, size in enumerate(left)
        ],
        color=theme.ink,
        fontsize=9 if len(rows) <= 16 else 6,
    )
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlim(0, top)
    panel.set_xlabel(unit)
    panel.set_title("what a device has to have", loc="left", fontsize=10)


def _draw_course(
    panel: Any,
    stage: int,
    simulated: SimulatedPlan,
    measure: tuple[str, int],
    top: float,
    theme: Theme,
) -> None:
    """Draw a stage's memory over one step as stacked areas of steps."""
    _, scale = measure
    account = simulated.account
    begin_ns, step_ns = account.begin_ns, account.step_time_ns
    course = window_of(account.memory[stage], begin_ns, begin_ns + step_ns)
    rows = drawn_bytes(course)
    unit, scale_ns = next(
        (unit, size)
        for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
        if step_ns >= size
    )
    moments = fullest_moments(course, rows, step_ns)
    times = [column * step_ns / POINTS / scale_ns for column in (*moments, POINTS)]
    lower = [0.0] * len(times)
    for kind, row in rows.items():
        sizes = [row[moment] for moment in moments.values()]
        upper = [
            below + size / scale for below, size in zip(lower, (*sizes, sizes[-1]), strict=True)
        ]
        panel.fill_between(
            times, lower, upper, step="post", color=HUES[MEMORY_KINDS[kind]], linewidth=0
        )
        lower = upper
    for limit, _, line in _limits(simulated, stage, top * scale):
        panel.axhline(limit / scale, color=theme.alarm, linestyle=line, linewidth=1.4)
    panel.set_xlim(0, step_ns / scale_ns)
    panel.set_xlabel(f"{unit} of the step")
    panel.set_title(f"stage {stage}, over the step", loc="left", fontsize=10)


def _draw_legend(
    figure: Any,
    rows: Sequence[dict[str, int]],
    limits: Sequence[Limit],
    theme: Theme,
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=HUES[hue], label=kind)
        for kind, hue in MEMORY_KINDS.items()
        if any(row[kind] for row in rows)
    ]
    handles += [
        Line2D([], [], color=theme.alarm, linestyle=line, label=name) for _, name, line in limits
    ]
    columns = len(handles) if len(handles) <= 7 else -(-len(handles) // 2)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=9)
