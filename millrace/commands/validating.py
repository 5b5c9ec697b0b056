"""`millrace validate`: published configurations predicted, and how far off each is."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from millrace.output import Json, answer, say, working
from millrace.units import format_percent, format_seconds

if TYPE_CHECKING:
    from millrace.published.validation import Outcome

CsvFile = Annotated[
    Path, typer.Argument(metavar="CSV", help="Published measurements, in either layout.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate)


def validate(
    csv: CsvFile,
    processes: Annotated[
        int | None, typer.Option(min=1, help="In how many to plan; the cores by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict published configurations and report the error of each."""
    from millrace.published.reading import read_table
    from millrace.published.summary import document
    from millrace.published.validation import validate as validated

    table = read_table(csv)
    with working(f"predicting {len(table.rows)} rows of {csv}") as now:
        outcomes = validated(
            table,
            processes=processes or len(os.sched_getaffinity(0)),
            told=lambda done, of: now(f"{done} of {of} questions answered"),
        )
    found = document(outcomes)
    answer(found, as_json, lambda console: _draw(outcomes, found, console))


def _draw(outcomes: "list[Outcome]", found: dict[str, Any], console: Console) -> None:
    from millrace.published.summary import of_tier, worst

    judged = of_tier(outcomes, "A") or outcomes
    _draw_groups("source", found["by_source"], console)
    _draw_groups("framework × gpu", found["by_framework_and_gpu"], console)
    table = Table("line", "source", "model", "measured", "predicted", "error", title="worst rows")
    for one in worst(judged):
        row, predicted = one.asked.row, one.predicted
        assert predicted is not None, "only rows with an error are the worst"
        table.add_row(
            row["line"],
            row.get("source", row["framework"]),
            row["model"],
            format_seconds(one.asked.measured_s),
            format_seconds(predicted.step_time_s),
            f"{one.error:+.1%}",
        )
    console.print(table)
    for one in outcomes:
        if one.reason:
            say(one.reason)
    _say_tier("", found, console)
    if found["tier_b"]["count"]:
        _say_tier("tier B: ", found["tier_b"], console)
    memory = found["memory"]
    if memory["rows"]:
        console.print(f"peak memory of {memory['rows']} rows: {_errors(memory)}")


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


def _say_tier(name: str, found: dict[str, Any], console: Console) -> None:
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
