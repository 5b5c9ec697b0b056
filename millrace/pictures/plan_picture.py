"""Plan picture: devices by stage, and the layout of its repeated block on a stage's mesh.

Both parts are drawn in inches from the upper left corner.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from millrace.drawing import headline, question_text
from millrace.palette import HUES, LIGHT, Theme, ink_on, tint
from millrace.pictures.block_layout import LayoutRow, layout_rows
from millrace.pictures.look import look
from millrace.pictures.picture_file import Picture, check_drawable
from millrace.planner.plan import Plan
from millrace.tables.ranges import stage_layers

WIDTH_IN = 12.0
TOP_IN = 0.82  # of title and question
STAGES_A_ROW = 8
HEAD_IN, BELOW_IN, GAP_IN = 0.6, 0.2, 0.28  # above, below and between the devices of stages
CELL_IN, CELL_LEAST_IN, DEVICES_MAX_IN = 0.24, 0.035, 4.2  # heights of a device, and of a stage
STAGE_HUES = ("blue", "orange", "green", "purple", "sky", "vermillion", "yellow", "stone")
ROW_IN, CHIP_IN = 0.235, 0.58
OP_IN, KIND_IN = 1.75, 1.1
NUMBERED = 512  # devices whose ranks are written


def draw_plan(plan: Plan, path: Path) -> None:
    """Write the picture of `plan_picture` to a file.

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
    plan_picture(plan).save(path)


def plan_picture(plan: Plan, theme: Theme = LIGHT) -> Picture:
    """Picture of a plan: devices × stages, and the layout of the block that most blocks are like.

    Parameters
    ----------
    plan : Plan
        The plan.
    theme : Theme
        Colours of the page it stands on.
    """
    from matplotlib.figure import Figure

    block, rows = layout_rows(plan)
    with look(theme):
        figure = Figure(figsize=(WIDTH_IN, height_in(plan, rows)))
        draw_on(figure, plan, block, rows, theme)
    return Picture(figure, title(plan), description(plan, block, rows), theme)


def title(plan: Plan) -> str:
    """Title: model, devices and cluster."""
    return f"{plan.model.name} on {plan.ranks:,} devices of {plan.cluster.name}"


def description(plan: Plan, block: str, rows: Sequence[LayoutRow]) -> str:
    """Description of the picture in words.

    Parameters
    ----------
    plan : Plan
        The plan.
    block : str
        Name of the block that is drawn.
    rows : sequence of LayoutRow
        Its ops.
    """
    stages = [f"stage {stage} has {stage_layers(plan, stage)}" for stage in range(plan.stages)]
    if len(stages) > 4:
        stages = [stages[0], "…", stages[-1]]
    moves = list(dict.fromkeys(move for row in rows for move in row.moves))
    crossed = f" Its forward pass needs {', '.join(moves)}." if moves else ""
    return (
        f"{headline(plan)}. {'; '.join(stages)}. Below, the {len(rows)} forward ops of block "
        f"{block} with the SBP of their tensors on each mesh axis.{crossed}"
    )


def height_in(plan: Plan, rows: Sequence[LayoutRow]) -> float:
    """Height of the picture in inches.

    Parameters
    ----------
    plan : Plan
        Its stages and mesh say how high the devices are.
    rows : sequence of LayoutRow
        Ops of the block.
    """
    return TOP_IN + 0.13 + _devices_in(plan) + _layout_in(plan, rows)


def draw_on(figure: Any, plan: Plan, block: str, rows: Sequence[LayoutRow], theme: Theme) -> None:
    """Draw devices and block on a figure or a part of one that is as high as `height_in` says.

    Parameters
    ----------
    figure
        A Figure or SubFigure, which gets one panel.
    plan : Plan
        The plan.
    block : str
        Name of the block that is drawn.
    rows : sequence of LayoutRow
        Its ops.
    theme : Theme
        Colours of the page it stands on.
    """
    height = height_in(plan, rows)
    panel = figure.add_axes((0, 0, 1, 1))
    panel.axis("off")
    panel.set_xlim(0, WIDTH_IN)
    panel.set_ylim(height, 0)
    panel.text(0.15, 0.2, title(plan), fontsize=12, fontweight="bold", va="center")
    for y, text in ((0.44, headline(plan).partition(": ")[2]), (0.63, question_text(plan))):
        panel.text(0.15, y, text, fontsize=8.5, va="center", color=theme.soft)
    _draw_devices(panel, TOP_IN, plan, theme)
    if rows and plan.mesh.axes:
        _draw_layout(panel, TOP_IN + _devices_in(plan), plan, block, rows, theme)


def _grid(plan: Plan) -> tuple[int, int]:
    """Rows and columns in which the devices of a stage are drawn: the last axis runs across."""
    sizes = plan.mesh.sizes
    if len(sizes) > 1:
        return prod(sizes[:-1]), sizes[-1]
    devices = plan.mesh.devices
    columns = min(devices, plan.cluster.devices_per_node, 8)
    return -(-devices // columns), columns


def _cell_in(plan: Plan) -> float:
    rows, _ = _grid(plan)
    return max(CELL_LEAST_IN, min(CELL_IN, DEVICES_MAX_IN / rows))


def _stage_rows(plan: Plan) -> int:
    return -(-plan.stages // STAGES_A_ROW)


def _devices_in(plan: Plan) -> float:
    rows, _ = _grid(plan)
    return _stage_rows(plan) * (HEAD_IN + BELOW_IN + rows * _cell_in(plan)) + 0.15


def _layout_in(plan: Plan, rows: Sequence[LayoutRow]) -> float:
    return 1.3 + ROW_IN * len(rows) if rows and plan.mesh.axes else 0.0


def _draw_devices(panel: Any, top: float, plan: Plan, theme: Theme) -> None:
    rows, columns = _grid(plan)
    across = min(plan.stages, STAGES_A_ROW)
    left, right = 0.75, 0.15
    width = min((WIDTH_IN - left - right - GAP_IN * (across - 1)) / across, 0.62 * columns + 1.2)
    high = _cell_in(plan)
    for stage in range(plan.stages):
        line, place = divmod(stage, STAGES_A_ROW)
        x = left + place * (width + GAP_IN)
        y = top + line * (HEAD_IN + BELOW_IN + rows * high)
        ranks = stage * plan.mesh.devices
        last = ranks + plan.mesh.devices - 1
        named = f"rank {ranks}" if ranks == last else f"ranks {ranks:,}–{last:,}"
        title, lines = f"stage {stage}, {named}", [stage_layers(plan, stage)]
        if len(title) > width / 0.092:
            title, lines = f"stage {stage}", [named, *lines]
        panel.text(x, y + 0.06, title, fontsize=9, va="center", weight="bold")
        for place_below, line_text in enumerate(lines):
            panel.text(
                x,
                y + 0.23 + 0.14 * place_below,
                _fitted(line_text, width / 0.072),
                fontsize=7.5,
                va="center",
                color=theme.soft,
            )
        _draw_stage(panel, (x, y + HEAD_IN - 0.16), (width / columns, high), stage, plan, theme)
        if place == 0:
            _draw_axes(panel, (x, y + HEAD_IN - 0.16), (width / columns, high), plan, theme)


def _fitted(text: str, letters: float) -> str:
    return text if len(text) <= letters else f"{text[: int(letters) - 1]}…"


def _draw_stage(
    panel: Any,
    corner: tuple[float, float],
    cell: tuple[float, float],
    stage: int,
    plan: Plan,
    theme: Theme,
) -> None:
    """Draw the devices of a stage; those of a node have a frame."""
    from matplotlib.patches import Rectangle

    x, y = corner
    width, high = cell
    _, columns = _grid(plan)
    devices, node = plan.mesh.devices, plan.cluster.devices_per_node
    hue = HUES[STAGE_HUES[stage % len(STAGE_HUES)]]
    for device in range(devices):
        row, column = divmod(device, columns)
        fill = tint(hue, 0.3 + 0.6 * (column + 1) / columns, theme.paper)
        panel.add_patch(
            Rectangle(
                (x + column * width, y + row * high),
                width,
                high,
                facecolor=fill,
                edgecolor=theme.paper,
                linewidth=1.0 if high > 0.1 else 0.2,
            )
        )
        if plan.ranks <= NUMBERED and high >= 0.12 and width >= 0.09 * len(str(plan.ranks)):
            panel.text(
                x + (column + 0.5) * width,
                y + (row + 0.5) * high,
                str(stage * devices + device),
                fontsize=min(8.0, 42 * high),
                ha="center",
                va="center_baseline",
                color=ink_on(fill),
            )
    if _frames_nodes(plan):
        for first in range(0, devices, node):
            corner = (x, y + first // columns * high)
            panel.add_patch(
                Rectangle(
                    corner,
                    width * columns,
                    node // columns * high,
                    fill=False,
                    edgecolor=theme.ink,
                    linewidth=0.9,
                )
            )


def _frames_nodes(plan: Plan) -> bool:
    """True if a stage has several nodes, each of which is some full rows of its drawing."""
    _, columns = _grid(plan)
    devices, node = plan.mesh.devices, plan.cluster.devices_per_node
    return node % columns == 0 and devices % node == 0 and devices > node


def _draw_axes(
    panel: Any, corner: tuple[float, float], cell: tuple[float, float], plan: Plan, theme: Theme
) -> None:
    """Write which mesh axes run down and across, beside the first stage of a row."""
    x, y = corner
    width, high = cell
    rows, columns = _grid(plan)
    axes = plan.mesh.axes
    outer, inner = axes[:-1], axes[-1:]
    if len(axes) == 1:
        outer, inner = axes, ()
    if outer:
        text = " × ".join(f"{axis.name} {axis.size}" for axis in outer)
        panel.text(
            x - 0.12,
            y + rows * high / 2,
            f"{text} ↓" if inner else text,
            fontsize=8.5,
            rotation=90 if len(text) > 7 else 0,
            ha="right",
            va="center",
            color=theme.ink,
        )
    for axis in inner:
        panel.text(
            x + columns * width / 2,
            y + rows * high + 0.11,
            f"{axis.name} {axis.size} →",
            fontsize=8.5,
            ha="center",
            va="center",
            color=theme.ink,
        )


def _draw_layout(
    panel: Any, top: float, plan: Plan, block: str, rows: Sequence[LayoutRow], theme: Theme
) -> None:
    """Draw a table of the block's ops, a chip for the SBP of every tensor on every mesh axis."""
    names = plan.mesh.names
    chip = min(CHIP_IN, 1.25 / len(names))
    group = chip * len(names) + 0.22
    panel.text(
        0.15,
        top + 0.15,
        f"Layout of block {block}, forward: how each tensor lies on the mesh of a stage",
        fontsize=10.5,
        fontweight="bold",
        va="center",
    )
    heads = ("activation", "weight, stored", "weight, used", "output")
    lefts = [0.15 + OP_IN + KIND_IN + group * place for place in range(len(heads))]
    moves_x = lefts[-1] + group
    for left, head in zip(lefts, heads, strict=True):
        panel.text(left, top + 0.48, head, fontsize=8.5, va="center", weight="bold")
        for place, name in enumerate(names):
            panel.text(
                left + chip * (place + 0.5) - 0.02,
                top + 0.67,
                name,
                fontsize=8,
                ha="center",
                va="center",
                color=theme.soft,
            )
    for x, head in ((0.15, "op"), (0.15 + OP_IN, "kind"), (moves_x, "collectives before it")):
        panel.text(x, top + 0.48, head, fontsize=8.5, va="center", weight="bold")
    y = top + 0.82
    for row in rows:
        middle = y + ROW_IN / 2
        panel.plot((0.15, WIDTH_IN - 0.15), (y, y), color=theme.grid, linewidth=0.6)
        panel.text(0.15, middle, _fitted(row.op, 22), fontsize=8.5, va="center")
        kind = _fitted(row.kind, 15)
        panel.text(0.15 + OP_IN, middle, kind, fontsize=8.5, va="center", color=theme.soft)
        for left, sbps in zip(
            lefts, (row.activation, row.stored, row.weight, row.output), strict=True
        ):
            for place, sbp in enumerate(sbps):
                _draw_chip(panel, (left + chip * place, y + 0.025), chip - 0.04, sbp, theme)
        moves = _fitted(", ".join(row.moves), (WIDTH_IN - moves_x) / 0.078)
        panel.text(moves_x, middle, moves, fontsize=8.5, va="center")
        y += ROW_IN
    panel.plot((0.15, WIDTH_IN - 0.15), (y, y), color=theme.grid, linewidth=0.6)
    _draw_key(panel, y + 0.24, plan, theme)


def _chip_colour(sbp: str, theme: Theme) -> str:
    return {"S": HUES["blue"], "P": HUES["vermillion"]}.get(sbp[0], theme.mist)


def _draw_chip(
    panel: Any, corner: tuple[float, float], width: float, sbp: str, theme: Theme
) -> None:
    from matplotlib.patches import Rectangle

    fill = _chip_colour(sbp, theme)
    panel.add_patch(Rectangle(corner, width, ROW_IN - 0.05, facecolor=fill, edgecolor="none"))
    panel.text(
        corner[0] + width / 2,
        corner[1] + (ROW_IN - 0.05) / 2,
        sbp,
        fontsize=min(7.5, 72 * width / 3.9),
        ha="center",
        va="center_baseline",
        color=theme.ink if fill == theme.mist else ink_on(fill),
    )


def _draw_key(panel: Any, y: float, plan: Plan, theme: Theme) -> None:
    meanings = (
        ("S(0)", "split along a dim (here dim 0)"),
        ("B", "each device has all of it"),
        ("P(sum)", "each has a term of the sum"),
    )
    x = 0.15
    for sbp, meaning in meanings:
        _draw_chip(panel, (x, y - (ROW_IN - 0.05) / 2), 0.5, sbp, theme)
        panel.text(x + 0.58, y, meaning, fontsize=8.5, va="center", color=theme.soft)
        x += 0.95 + 0.068 * len(meaning)
    if _frames_nodes(plan):
        panel.text(x, y, "black frame: a node", fontsize=8.5, va="center", color=theme.soft)
