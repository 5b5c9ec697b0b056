"""Causes of an error as tables, with the critical paths that it lies on."""

from rich.table import Table

from millrace.comparison.comparison import Comparison
from millrace.units import format_percent, format_seconds

SHOWN_ITEMS = 3
SHOWN_PATH_ROWS = 8


def cause_table(comparison: Comparison) -> Table:
    """Table of causes, largest first: their shares of the error and their largest items."""
    error_s = comparison.measured_step_time_s - comparison.predicted_step_time_s
    table = Table()
    table.add_column("cause of the error")
    table.add_column("longer by", justify="right")
    table.add_column("of the error", justify="right")
    table.add_column("most of it", overflow="fold")
    for cause in comparison.error_causes:
        items = [
            f"{item.name} {signed_seconds(item.seconds)}"
            for item in cause.items[:SHOWN_ITEMS]
            if abs(item.seconds) >= abs(cause.seconds) / 100
        ]
        table.add_row(
            cause.name,
            signed_seconds(cause.seconds),
            format_percent(cause.seconds / error_s) if error_s else "",
            ", ".join(items),
        )
    return table


def path_table(comparison: Comparison) -> Table:
    """Table of the actors that have most time on one critical path and not on the other."""
    table = Table()
    table.add_column("actor on the critical path", overflow="fold")
    table.add_column("rank", justify="right")
    for column in ("predicted", "measured"):
        table.add_column(column, justify="right")
    paths = comparison.critical_paths
    for row in paths.rows[:SHOWN_PATH_ROWS] if paths is not None else ():
        table.add_row(
            row.actor,
            str(row.rank),
            format_seconds(row.predicted_s),
            format_seconds(row.measured_s),
        )
    return table


def blame(comparison: Comparison) -> str | None:
    """Sentence that names what makes most of the error; None where causes are not known."""
    blamed = comparison.blamed
    if blamed is None:
        return None
    error_s = comparison.measured_step_time_s - comparison.predicted_step_time_s
    name = f"{blamed.cause}, {blamed.item}" if blamed.item else blamed.cause
    way = "longer" if error_s > 0 else "shorter"
    return (
        f"the step is {format_seconds(abs(error_s))} {way} than predicted; to blame first: {name}, "
        f"{format_seconds(abs(blamed.seconds))}"
    )


def signed_seconds(seconds: float) -> str:
    """Seconds as text, with their sign."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
