"""Options of `millrace show` that draw a picture, and what they lead to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.output import working

if TYPE_CHECKING:
    from millrace.planner.plan import Plan

PictureFile = Annotated[
    Path | None,
    typer.Option("--picture", help="Draw the plan here: .png, .svg, .pdf or .html."),
]
PictureOf = Annotated[
    str | None,
    typer.Option(
        "--of",
        metavar="WHAT",
        help="The picture shows plan, schedule, memory or all of them (the default).",
    ),
]


def check_picture(picture: Path | None, of: str | None, *, alone: bool) -> None:
    """Raise where no such picture can be drawn, before anything is read.

    Parameters
    ----------
    picture : Path or None
        Where it goes.
    of : str or None
        What it shows.
    alone : bool
        Nothing else was asked of the plan.

    Options that do not go together, or name no picture, are Typer's bad parameters.

    Raises
    ------
    FileError
        Matplotlib is missing, the name ends otherwise, or the file cannot be written.
    """
    if picture is None:
        if of is not None:
            raise typer.BadParameter(f"--of {of} says what a picture shows: give --picture FILE")
        return
    from millrace.files import check_writable
    from millrace.pictures.picture_file import check_drawable
    from millrace.pictures.plan_poster import PICTURES

    if not alone:
        raise typer.BadParameter("--picture draws one plan: give PLAN alone")
    if of is not None and of not in PICTURES:
        raise typer.BadParameter(f"--of {of}: expected one of {', '.join(PICTURES)}")
    check_drawable(picture)
    check_writable(picture)


def draw_picture(plan: "Plan", picture: Path, of: str | None) -> None:
    """Simulate a plan and write its picture.

    Parameters
    ----------
    plan : Plan
        The plan.
    picture : Path
        Where it goes.
    of : str or None
        What it shows; None: everything.
    """
    from millrace.pictures.plan_poster import ALL, draw

    with working(f"drawing {plan.model.name} on {plan.ranks} ranks"):
        draw(plan, picture, of or ALL)
