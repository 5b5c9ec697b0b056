"""Plan poster: all pictures of a plan under each other, or the one that `--of` names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.palette import LIGHT, Theme
from millrace.pictures import memory_picture, plan_picture, schedule_picture
from millrace.pictures.block_layout import layout_rows
from millrace.pictures.look import look
from millrace.pictures.picture_file import Picture, check_drawable
from millrace.pictures.schedule_cells import schedule_cells
from millrace.pictures.simulated_plan import SimulatedPlan
from millrace.planner.errors import PlanError
from millrace.planner.plan import Plan

ALL = "all"


def draw(plan: Plan, path: Path, of: str = ALL) -> None:
    """Write a picture of a plan to a file.

    Parameters
    ----------
    plan : Plan
        The plan; its step is simulated.
    path : Path
        A name that ends in .png, .svg, .pdf or .html.
    of : str
        A key of `PICTURES`: `plan`, `schedule`, `memory` or `all` of them.

    Raises
    ------
    PlanError
        There is no such picture.
    FileError
        Matplotlib is missing, the name ends otherwise, or the file cannot be written.
    """
    check_drawable(path)
    picture(plan, of).save(path)


def picture(plan: Plan, of: str = ALL, theme: Theme = LIGHT) -> Picture:
    """Picture of a plan.

    Parameters
    ----------
    plan : Plan
        The plan; its step is simulated.
    of : str
        A key of `PICTURES`.
    theme : Theme
        Colours of the page it stands on.
    """
    if of not in PICTURES:
        raise PlanError(f"there is no picture of `{of}`; one of {', '.join(PICTURES)}")
    return PICTURES[of](SimulatedPlan(plan=plan), theme)


def _plan(simulated: SimulatedPlan, theme: Theme) -> Picture:
    return plan_picture.plan_picture(simulated.plan, theme)


def _all(simulated: SimulatedPlan, theme: Theme) -> Picture:
    from matplotlib.figure import Figure

    plan = simulated.plan
    block, rows = layout_rows(plan)
    cells = schedule_cells(plan, simulated.step)
    heights = (
        plan_picture.height_in(plan, rows),
        schedule_picture.height_in(cells),
        memory_picture.height_in(simulated),
    )
    with look(theme):
        figure = Figure(figsize=(plan_picture.WIDTH_IN, sum(heights)), layout="constrained")
        parts: Any = figure.subfigures(3, 1, height_ratios=heights)
        plan_picture.draw_on(parts[0], plan, block, rows, theme)
        schedule_picture.draw_on(parts[1], simulated, cells, theme)
        memory_picture.draw_on(parts[2], simulated, theme)
    texts = (
        plan_picture.description(plan, block, rows),
        f"{schedule_picture.title(simulated)}. {schedule_picture.description(simulated, cells)}",
        f"{memory_picture.title(simulated)}. {memory_picture.description(simulated)}",
    )
    return Picture(figure, plan_picture.title(plan), " ".join(texts), theme)


PICTURES: dict[str, Callable[[SimulatedPlan, Theme], Picture]] = {
    ALL: _all,
    "plan": _plan,
    "schedule": schedule_picture.schedule_picture,
    "memory": memory_picture.memory_picture,
}
