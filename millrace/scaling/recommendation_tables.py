"""The table of a recommendation, fastest first, what is chosen, and its rows as CSV."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from millrace.scaling.scaling_tables import (
    csv_text,
    format_time,
    format_usd,
    line_name,
    plan_text,
    range_texts,
)
from millrace.units import format_count, format_percent

Row = dict[str, Any]
# Marks of rows, in words.
LEGEND = (
    "✓ makes it; ● no other is as fast and as cheap; ? not calibrated on runs on this device, and "
    "its times have a wider range"
)
# Words of a choice whose name in the document is not its own.
CHOICES = {
    "cheapest_measured": "cheapest of calibrated devices",
    "fastest_measured": "fastest of calibrated devices",
}


def recommendation_csv(rows: Iterable[Row]) -> str:
    """CSV text of the rows, with whether they make it and lie on the frontier."""
    return csv_text(rows)


def recommendation_table(rows: Sequence[Row]) -> Table:
    """Table of every size of every cluster that has a plan, the fastest first.

    Parameters
    ----------
    rows : sequence of dict
        As `recommendation` returns them.
    """
    first = rows[0]
    counted = f"{format_count(first['tokens'])} {first['unit']}s"
    title = f"{first['model']}, {first['precision']}: {counted}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    table.add_column("cluster", min_width=10)
    table.add_column("plan", min_width=8)
    for column in ("devices", "time", "cost", "mfu"):
        table.add_column(column, justify="right", no_wrap=True)
    planned = [row for row in rows if row["time_s"] is not None]
    for row in sorted(planned, key=lambda row: row["time_s"]):
        marks = {"✓": row["makes_it"], "●": row["on_frontier"], "?": row["device_doubt"]}
        mark = "".join(sign for sign, meant in marks.items() if meant)
        cost = "" if row["cost_usd"] is None else format_usd(row["cost_usd"])
        mfu = "" if row["mfu"] is None else format_percent(row["mfu"])
        table.add_row(
            mark,
            line_name(row),
            plan_text(row),
            f"{row['devices']:,}",
            format_time(row["time_s"]),
            cost,
            mfu,
        )
    return table


def draw_recommendation(document: Mapping[str, Any], console: Console) -> None:
    """Print every size of every cluster, and what of these is chosen.

    Parameters
    ----------
    document : mapping
        `rows` and `choice`, as `recommendation` returns them.
    console : Console
        Where to.
    """
    rows = document["rows"]
    console.print(recommendation_table(rows))
    console.print(legend(rows), markup=False)
    for text in range_texts(rows):
        console.print(text, markup=False, soft_wrap=True)
    for row in rows:
        if row["reason"] is not None:
            text = f"{line_name(row)}, {row['devices']:,} devices: {row['reason']}"
            console.print(text, markup=False, soft_wrap=True)
    for name, row in document["choice"].items():
        if row is not None:
            text = f"{CHOICES.get(name, name)}: {chosen_text(row)}"
            console.print(text, markup=False, soft_wrap=True)


def legend(rows: Iterable[Row]) -> str:
    """Meaning of the marks of a table in a sentence."""
    told = any(row["device_doubt"] for row in rows)
    return LEGEND if told else LEGEND.partition("; ?")[0]


def chosen_text(row: Row) -> str:
    """Row of a recommendation's choice in a sentence, with the doubt about its device."""
    cost = "no price is known" if row["cost_usd"] is None else format_usd(row["cost_usd"])
    over = f", {row['over']:.3g} times what is allowed" if row.get("over") else ""
    doubt = f"; {row['device_doubt']}" if row["device_doubt"] else ""
    spread = ""
    if row["step_time_range_s"] is not None:
        scale = row["time_s"] / row["step_time_s"]
        low, high = (format_time(bound_s * scale) for bound_s in row["step_time_range_s"])
        spread = f" ({low} to {high})"
    return (
        f"{row['devices']:,} devices, {line_name(row)}, {plan_text(row)}: "
        f"{format_time(row['time_s'])}{spread}, {cost}{over}{doubt}"
    )
