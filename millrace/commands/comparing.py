"""Comparing a plan's prediction with a run of it, actor by actor: `millrace compare`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.commands.options.question_options import PlanFile, Trust
from millrace.output import Json, answer, say, working
from millrace.units import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from millrace.comparison import ActorRow, CauseRow, Comparison

SHOWN_ROWS = 12


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    plan: PlanFile,
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A file of `run --trace`.")],
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, help="Exit with 1 when the step time is off by more than this: 0.2."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with both timelines.")] = None,
    update_profile: Annotated[
        bool,
        typer.Option(
            "--update-profile",
            help="Fold what was measured into this machine's profile, for the next plans.",
        ),
    ] = False,
    write_profile: Annotated[
        Path | None,
        typer.Option(help="Write the plan's device profile, with the run folded in, here."),
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Join the prediction with what was measured, actor by actor."""
    import millrace
    from millrace.commands import updating
    from millrace.files import check_writable, load_plan, load_trace
    from millrace.planner.clusters.doubts import profile_warning

    check_writable(html, write_profile, read=(plan, trace))
    planned, measured = load_plan(plan, trust=trust), load_trace(trace)
    updates = update_profile or write_profile is not None
    if updates:
        updating.check_measured(measured)
    with working(f"simulating {planned.model.name}, and replaying it with what was measured"):
        compared = millrace.compare(planned, measured)
    if (warning := profile_warning(planned.cluster)) is not None:
        say(warning)
    if html is not None:
        compared.save_html(html)
    document = compared.document | {"profile_warning": warning}
    if updates:
        update = updating.update_profile(
            planned, measured, keep=update_profile, output=write_profile
        )
        document["updated"] = updating.updated_figures(update)

    def draw(console: "Console") -> None:
        draw_comparison(compared.comparison, console)
        for line in updating.updated_lines(document["updated"]) if "updated" in document else ():
            console.print(line, markup=False, soft_wrap=True)

    answer(document, as_json, draw)
    if tolerance is not None and abs(compared.step_time_error) > tolerance:
        say(
            f"millrace: the step time is off by "
            f"{format_percent(compared.step_time_error, signed=True)}, "
            f"outside the tolerance of {format_percent(tolerance)}"
        )
        raise typer.Exit(1)


def draw_comparison(comparison: "Comparison", console: "Console") -> None:
    """Print the error's causes, where the time goes, actors that differ most, and the error."""
    from millrace.tables.causes import blame, cause_table, path_table

    if comparison.error_causes:
        console.print(cause_table(comparison))
    console.print(rows_table("cause (per step, average rank)", comparison.causes[:SHOWN_ROWS]))
    console.print(rows_table("actors that differ most", comparison.actors[:SHOWN_ROWS]))
    if comparison.critical_paths is not None:
        console.print(path_table(comparison))
    if (sentence := blame(comparison)) is not None:
        console.print(sentence, markup=False, soft_wrap=True)
    console.print(
        f"step time: predicted {format_seconds(comparison.predicted_step_time_s)}, "
        f"measured {format_seconds(comparison.measured_step_time_s)}, "
        f"error {format_percent(comparison.step_time_error, signed=True)}",
        markup=False,
    )


def rows_table(title: str, rows: "Iterable[CauseRow | ActorRow]") -> "Table":
    """Table of causes or actors."""
    from rich.table import Table

    table = Table()
    table.add_column(title, overflow="fold")
    for column in ("predicted", "measured", "difference"):
        table.add_column(column, justify="right")
    for row in rows:
        before, after = row.predicted_s, row.measured_s
        difference = (before or 0.0) - (after or 0.0)
        table.add_row(
            row.name,
            "not there" if before is None else format_seconds(before),
            "not there" if after is None else format_seconds(after),
            f"{'-' if difference < 0 else '+'}{format_seconds(abs(difference))}",
        )
    return table
