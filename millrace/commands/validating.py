"""`millrace validate`: published configurations predicted, and how far off each is."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from millrace.output import Json, answer, say, working
from millrace.units import format_percent, format_seconds

if TYPE_CHECKING:
    from millrace.published.reading import Layout
    from millrace.published.validation import Outcome

CsvFile = Annotated[
    Path,
    typer.Argument(
        metavar="CSV", help="Table of published training runs (docs/accuracy.md: columns)."
    ),
]
PROGRESS_EVERY = 50


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate)


def validate(
    csv: CsvFile,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted over measured here (.png, .svg, .pdf).")
    ] = None,
    leave_one_source_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-source-out", help="Fit all figures without each source, then predict it."
        ),
    ] = False,
    every: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Only every K-th row of tier A.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; one per core by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict published training runs and print the errors."""
    from millrace.calibration.leaving import left_out
    from millrace.files import check_writable
    from millrace.plot import check_drawable
    from millrace.published.reading import read_table, sampled
    from millrace.published.summary import document
    from millrace.published.validation import validate as validated

    if plot is not None:
        check_writable(plot)
        check_drawable(plot)
    table = read_table(csv) if every is None else sampled(read_table(csv), every)
    with working(f"predicting {len(table.rows)} rows of {csv}") as now:

        def told(done: int, of: int) -> None:
            now(f"{done} of {of} questions answered")
            if done % PROGRESS_EVERY == 0 and not sys.stderr.isatty():
                say(f"{done} of {of} questions answered")

        count = processes or len(os.sched_getaffinity(0))
        tuned = left_out(table, count, told) if leave_one_source_out else None
        outcomes = validated(table, tuned=tuned, processes=count, told=told)
    found = document(outcomes, table.layout)
    for one in outcomes:
        if one.reason:
            say(one.reason)
    if plot is not None:
        _plot(outcomes, found, table.layout, plot)
    answer(found, as_json, lambda console: _draw(outcomes, found, console))


def _plot(outcomes: "list[Outcome]", found: dict[str, Any], layout: "Layout", file: Path) -> None:
    """Draw the rows that are judged, by source."""
    from millrace.published.summary import GROUPS, points

    groups = points(outcomes, next(iter(GROUPS[layout].values())))
    if not groups:
        say(f"no row is expressed: `{file}` is not drawn")
        return
    from millrace.plot import plot_predictions, save

    title = f"{found['expressed']} of {found['count']} rows: {_errors(found)}"
    save(plot_predictions(groups, title), file)


def _draw(outcomes: "list[Outcome]", found: dict[str, Any], console: Console) -> None:
    from millrace.published.summary import judged, worst

    for name, groups in found["groups"].items():
        _draw_groups(name, groups, console)
    _draw_worst(worst(judged(outcomes)), console)
    _draw_tier("", found, console)
    if found["tier_b"]["count"]:
        _draw_tier("tier B: ", found["tier_b"], console)
    if found["differences"] and found["differences"]["pairs"]:
        _draw_differences(found["differences"], console)
    if found["memory"]["rows"]:
        memory = found["memory"]
        console.print(f"peak memory, {memory['rows']} rows: {_errors(memory)}")


def _draw_groups(name: str, groups: dict[str, Any], console: Console) -> None:
    table = Table(name, *("rows", "mean", "median", "bias", "within 10 %"))
    for column in table.columns[1:]:
        column.justify = "right"
    for group, found in groups.items():
        table.add_row(
            group,
            str(found["rows"]),
            format_percent(found["mape"]),
            format_percent(found["median_error"]),
            f"{found['bias']:+.1%}",
            format_percent(found["within_10_percent"]),
        )
    console.print(table)


def _draw_worst(outcomes: "list[Outcome]", console: Console) -> None:
    from millrace.published.validation import source

    table = Table("line", "source", "model", "measured", "predicted", "error", title="worst rows")
    for one in outcomes:
        assert one.predicted is not None, "only rows with an error are the worst"
        table.add_row(
            one.asked.row["line"],
            source(one.asked.row),
            one.asked.row["model"],
            format_seconds(one.asked.measured_s),
            format_seconds(one.predicted.step_time_s),
            f"{one.error:+.1%}",
        )
    console.print(table)


def _draw_differences(found: dict[str, Any], console: Console) -> None:
    kinds = ", ".join(
        f"{kind} {format_percent(one['median_error'])} of {one['pairs']}"
        for kind, one in found["kinds"].items()
    )
    console.print(
        f"differences, {found['pairs']} pairs equal but for one setting: median error of the "
        f"ratio {format_percent(found['median_error'])} ({kinds})"
    )


def _draw_tier(name: str, found: dict[str, Any], console: Console) -> None:
    if not found["expressed"]:
        console.print(f"{name}{found['count']} rows, none expressed")
        return
    console.print(
        f"{name}{found['count']} rows, {found['expressed']} expressed: {_errors(found)}, "
        f"{format_percent(found['within_10_percent'])} within 10 %"
    )


def _errors(found: dict[str, Any]) -> str:
    return (
        f"mean error {format_percent(found['mape'])}, median "
        f"{format_percent(found['median_error'])}, bias {found['bias']:+.1%}"
    )
