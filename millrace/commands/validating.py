"""Validating of predictions against published runs, and their errors: `millrace validate`."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.output import Json, answer, say, working
from millrace.units import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.published.reading import TableFormat
    from millrace.published.validation import RowOutcome, TableReader

CsvFile = Annotated[
    Path,
    typer.Argument(
        metavar="CSV", help="Table of published training runs (docs/accuracy.md: columns)."
    ),
]
PROGRESS_EVERY = 50
PREDICTED = ("op", "stage")  # fidelities at which steps are predicted without events


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate)


def validate(
    csv: CsvFile,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw predicted over measured here (.png, .svg, .pdf, .html)."),
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
    fidelity: Annotated[
        str | None,
        typer.Option(
            metavar="F",
            help="op or stage, for all rows alike; by default op where a step has few ops. Stage "
            "is several times as quick, and for plans of one stage within half a percent.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict published training runs and print the errors."""
    from millrace.calibration.leave_one_out import left_out
    from millrace.files import check_writable
    from millrace.pictures.picture_file import check_drawable
    from millrace.planner.clusters import machine_cores
    from millrace.planner.errors import PlanError
    from millrace.published.reading import read_table, sampled
    from millrace.published.summary import document
    from millrace.published.validation import validate as validated

    if fidelity not in (None, *PREDICTED):
        raise PlanError(f"--fidelity {fidelity}: choose {' or '.join(PREDICTED)}")
    if plot is not None:
        check_writable(plot)
        check_drawable(plot)
    table = read_table(csv) if every is None else sampled(read_table(csv), every)
    with working(f"predicting {len(table.rows)} rows of {csv}") as now:
        told = 0

        def report(done: int, of: int) -> None:
            nonlocal told
            now(f"{done} of {of} questions answered")
            if done // PROGRESS_EVERY != told and not sys.stderr.isatty():
                say(f"{done} of {of} questions answered")
            told = done // PROGRESS_EVERY

        count = processes or machine_cores()
        tuned = left_out(table, count, report) if leave_one_source_out else None
        outcomes = validated(
            table, tuned=tuned, readers=_readers(), processes=count, told=report, fidelity=fidelity
        )
    figures = document(outcomes, table.layout)
    if leave_one_source_out:  # none of these predictions knows its row
        figures["groups"].pop("fit", None)
    for outcome in outcomes:
        if outcome.reason:
            say(outcome.reason)
    if plot is not None:
        _plot(outcomes, figures, table.layout, plot)
    answer(figures, as_json, lambda console: _draw(outcomes, figures, table.layout, console))


def _readers() -> "dict[TableFormat, TableReader]":
    """Readers of all layouts; that of functional tests is the trainer's."""
    from millrace.published.reading import TableFormat
    from millrace.published.validation import ROW_READERS
    from millrace.trainers.megatron.functional_tests import memory_rows

    return ROW_READERS | {TableFormat.TESTS: memory_rows}


def _plot(
    outcomes: "list[RowOutcome]", figures: dict[str, Any], layout: "TableFormat", file: Path
) -> None:
    """Draw the rows that are judged, by source."""
    from millrace.published.summary import GROUPS, points
    from millrace.published.validation import source

    groups = points(outcomes, next(iter(GROUPS[layout].values()), source))
    if not groups:
        say(f"no row is expressed: `{file}` is not drawn")
        return
    from millrace.pictures.accuracy_picture import draw_predictions

    title = f"{figures['expressed']} of {figures['count']} rows: {_errors(figures)}"
    draw_predictions(groups, title, file)


def _draw(
    outcomes: "list[RowOutcome]", figures: dict[str, Any], layout: "TableFormat", console: "Console"
) -> None:
    from millrace.published.reading import TableFormat
    from millrace.published.summary import judged, worst

    for name, groups in figures["groups"].items():
        _draw_groups(name, groups, console)
    if layout is TableFormat.NAMED:
        _draw_rows(outcomes, console)
    elif layout is not TableFormat.TESTS:
        _draw_worst(worst(judged(outcomes)), console)
    _draw_tier("", figures, console)
    if figures["tier_b"]["count"]:
        _draw_tier("tier B: ", figures["tier_b"], console)
    if figures["out_of_memory"]["rows"]:
        ended = figures["out_of_memory"]
        console.print(
            f"runs that ended for want of memory: {ended['predicted']} of {ended['rows']} need "
            f"more than their device has"
        )
    if figures["differences"] and figures["differences"]["pairs"]:
        _draw_differences(figures["differences"], console)
    if figures["memory"]["rows"]:
        memory, account = figures["memory"], figures["memory_account"]
        console.print(f"peak memory, {memory['rows']} rows: {_errors(memory)}")
        if figures["state"]["rows"]:
            state = figures["state"]
            console.print(
                f"memory between steps, {state['rows']} rows: {_errors(state)}, "
                f"{format_percent(state['within_1_percent'])} within 1 %; "
                f"{format_percent(memory['above_reserve'])} of the peaks lie above the prediction "
                f"and the reserve"
            )
        console.print(f"by plans' own account: {_errors(account)}")
        console.print(
            f"19 of 20 peaks lie at most {format_percent(memory['reserve_fraction'])} of their "
            f"device above the prediction ({format_percent(account['reserve_fraction'])} above the "
            f"plan's own account); by that account {account['beyond_device']} of "
            f"these {memory['rows']} runs need more than their device has"
        )


def _draw_groups(name: str, groups: dict[str, Any], console: "Console") -> None:
    from rich.table import Table

    table = Table(name, *("rows", "mean", "median", "bias", "within 10 %"))
    for column in table.columns[1:]:
        column.justify = "right"
    for group, figures in groups.items():
        table.add_row(
            group,
            str(figures["rows"]),
            format_percent(figures["mape"]),
            format_percent(figures["median_error"]),
            f"{figures['bias']:+.1%}",
            format_percent(figures["within_10_percent"]),
        )
    console.print(table)


def _draw_worst(outcomes: "list[RowOutcome]", console: "Console") -> None:
    from rich.table import Table

    from millrace.published.validation import source

    table = Table("line", "source", "model", "measured", "predicted", "error", title="worst rows")
    for outcome in outcomes:
        assert outcome.predicted is not None, "only rows with an error are the worst"
        table.add_row(
            outcome.row_question.row["line"],
            source(outcome.row_question.row),
            outcome.row_question.row["model"],
            format_seconds(outcome.row_question.measured_s or 0.0),
            format_seconds(outcome.predicted.step_time_s),
            f"{outcome.error:+.1%}",
        )
    console.print(table)


def _draw_rows(outcomes: "list[RowOutcome]", console: "Console") -> None:
    """Draw every row, and the reasons of those that are not expressed."""
    from rich.table import Table

    from millrace.published.summary import memory_error, needs_more, ran_out

    table = Table("line", "run", "devices", "measured", "predicted", "error", "peak", "error")
    for column in table.columns[3:]:
        column.justify = "right"
    for outcome in outcomes:
        row, seconds = outcome.row_question.row, outcome.row_question.measured_s or 0.0
        measured, predicted, error, peak = "", "–", "", ""
        if ran_out(outcome):
            measured, predicted = "no memory", "no memory" if needs_more(outcome) else "fits"
        elif outcome.predicted is not None and outcome.error is not None:
            measured, error = format_seconds(seconds), f"{outcome.error:+.1%}"
            predicted = format_seconds(outcome.predicted.step_time_s)
        if outcome.predicted is not None and outcome.row_question.peak_bytes is not None:
            peak = f"{outcome.row_question.peak_bytes / 1e9:.1f} GB"
        memory = memory_error(outcome)
        modules = " ".join(re.findall(r"\w+", row["recompute"].partition(":")[2]))
        table.add_row(
            row["line"],
            row["model"] + (f", {modules}" if modules else ""),
            f"{row['count']} {row['gpu'].partition(' ')[0]}",
            *(measured, predicted, error, peak),
            "" if memory is None else f"{memory:+.1%}",
        )
    console.print(table)
    for outcome in outcomes:
        if outcome.reason:
            console.print(f"not expressed: {outcome.reason}")


def _draw_differences(figures: dict[str, Any], console: "Console") -> None:
    kinds = ", ".join(
        f"{kind} {format_percent(kind_figures['median_error'])} of {kind_figures['pairs']}"
        for kind, kind_figures in figures["kinds"].items()
    )
    console.print(
        f"differences, {figures['pairs']} pairs equal but for one setting: median error of the "
        f"ratio {format_percent(figures['median_error'])} ({kinds})"
    )


def _draw_tier(name: str, figures: dict[str, Any], console: "Console") -> None:
    if figures["mape"] is None:
        expressed = figures["expressed"] or "none"
        console.print(f"{name}{figures['count']} rows, {expressed} expressed")
        return
    console.print(
        f"{name}{figures['count']} rows, {figures['expressed']} expressed: {_errors(figures)}, "
        f"{format_percent(figures['within_10_percent'])} within 10 %"
    )


def _errors(figures: dict[str, Any]) -> str:
    return (
        f"mean error {format_percent(figures['mape'])}, median "
        f"{format_percent(figures['median_error'])}, bias {figures['bias']:+.1%}"
    )
