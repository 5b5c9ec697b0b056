"""The table of a sweep, a part for each of its lines, and the same rows as a CSV file."""

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from millrace.scaling.batches import batch_text
from millrace.units import format_count, format_percent, format_seconds

Row = dict[str, Any]
# Those of a plan's degrees that are above one are shown.
DEGREES = ("dp", "tp", "pp", "cp", "ep")
# A run takes these, which are called so in the table.
SPENT = {
    "goodput_fraction": "goodput",
    "time_s": "time",
    "energy_j": "energy",
    "cost_usd": "cost",
}


def line_of(row: Row) -> tuple[str, str | None, str]:
    """Key that the rows of one line have in common: cluster, network and batch."""
    return row["cluster"], row["network"], batch_text(row)


def line_name(row: Row) -> str:
    """Name of a row's line in words."""
    network = f", {row['network']}" if row["network"] else ""
    return f"{row['cluster']}{network}, batch {batch_text(row)}"


def doubted_line(row: Row) -> str:
    """Name of a row's line, with the doubt about its device."""
    return f"{line_name(row)} ({row['device_doubt']})" if row["device_doubt"] else line_name(row)


def draw_scaling(rows: Sequence[Row], worth: float, console: Console) -> None:
    """Print a table for every line of a sweep, and what was not planned, with the reason."""
    for _, line in groupby(rows, line_of):
        line_rows = list(line)
        console.print(line_table(line_rows))
        for text in range_texts(line_rows):
            console.print(text, markup=False, soft_wrap=True)
        for row in line_rows:
            if row["reason"] is not None:
                console.print(
                    f"{row['devices']} devices: {row['reason']}", markup=False, soft_wrap=True
                )
        stops = next((row for row in line_rows if row["stops_paying"]), None)
        if stops is not None:
            console.print(
                f"stops paying at {stops['devices']} devices: those added bring "
                f"{format_percent(stops['marginal_efficiency'])} of their worth "
                f"(less than {format_percent(worth)})",
                markup=False,
                soft_wrap=True,
            )
    counted = f"{format_count(rows[0]['tokens'])} {rows[0]['unit']}s"
    if any(row["jitter_steps"] is not None for row in rows):
        console.print(
            "jitter: by how much the mean step, and one in twenty, is longer; counted in effic., "
            "time, energy, cost",
            markup=False,
        )
    unpriced = {row["cluster"]: None for row in rows if row["price_usd_per_gpu_hour"] is None}
    if unpriced:
        console.print(
            f"cost: no price is known of {', '.join(unpriced)}; give --price-per-gpu-hour",
            markup=False,
        )
    console.print(
        f"time, energy, cost: of {counted}; binds: the two largest parts of a step; ▸ stops paying",
        markup=False,
    )


def range_texts(rows: Iterable[Row]) -> list[str]:
    """Lines on how far published runs lay from their predictions, a line for those that are alike.

    A range is a share of the step time, and so of a run's time, energy and cost. Clusters are named
    where there are several.
    """
    clusters: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["reason"] is None:
            clusters.setdefault(_range_text(row), {})[row["cluster"]] = None
    several = len({name for names in clusters.values() for name in names}) > 1
    return [f"{', '.join(names)}: {text}" if several else text for text, names in clusters.items()]


def _range_text(row: Row) -> str:
    comparison = row["step_time_compared_with"]
    if row["step_time_range_s"] is None:
        return f"step times: {comparison}"
    shares = [bound_s / row["step_time_s"] - 1 for bound_s in row["step_time_range_s"]]
    low, high = (format_percent(share, signed=True) for share in shares)
    return f"step times {low} to {high}: {comparison.partition(': ')[2]}"


def line_table(rows: Sequence[Row]) -> Table:
    """Table of the sizes of one line of a sweep: one cluster, network and batch."""
    title = f"{rows[0]['model']} on {line_name(rows[0])}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown = [name for name in SPENT if any(row[name] is not None for row in rows)]
    jittered = any(row["jitter_steps"] is not None for row in rows)
    table.add_column("devices", justify="right", no_wrap=True)
    table.add_column("plan", min_width=8)
    numbers = [f"{rows[0]['unit']}s/s", "effic.", "mfu", *(SPENT[name] for name in shown)]
    for column in [*numbers, *(["jitter"] if jittered else [])]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("binds", min_width=16)
    for row in rows:
        if row["reason"] is not None:
            table.add_row(str(row["devices"]), "no plan")
            continue
        mark = "▸ " if row["stops_paying"] else ""
        table.add_row(
            f"{mark}{row['devices']}",
            plan_text(row),
            format_count(row["tokens_per_s"]),
            _percent(row["scaling_efficiency"]),
            _percent(row["mfu"]),
            *(_cell(name, row[name]) for name in shown),
            *([_jitter(row)] if jittered else []),
            _binds(row),
        )
    return table


def plan_text(row: Row) -> str:
    """Degrees of a row's plan that are above one."""
    degrees = [f"{name} {row[name]}" for name in DEGREES if row[name] is None or row[name] > 1]
    return " ".join(text.replace("None", "mixed") for text in degrees) or "one device"


def _binds(row: Row) -> str:
    """Shares and names of the two largest parts, a line each."""
    pairs = [(row["binds"], row["binds_fraction"]), (row["next"], row["next_fraction"])]
    return "\n".join(f"{_percent(share)} {name}" for name, share in pairs if name is not None)


def _jitter(row: Row) -> str:
    """Slow-down by jitter of the mean step and of the 95th percentile, a line each."""
    lengths = (row["step_time_jitter_mean_s"], row["step_time_jitter_p95_s"])
    return "\n".join(
        format_percent(length / row["step_time_s"] - 1, signed=True) for length in lengths
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f} %"


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "goodput_fraction":
        return format_percent(value)
    if name == "time_s":
        return format_time(value)
    return format_energy(value) if name == "energy_j" else format_usd(value)


def format_time(seconds: float) -> str:
    """Write a duration of a run: days and hours where it is long."""
    for unit, least, scale in (("days", 172800.0, 86400.0), ("h", 3600.0, 3600.0)):
        if seconds >= least:
            return f"{seconds / scale:,.1f} {unit}"
    return format_seconds(seconds)


def format_energy(joules: float) -> str:
    """Write an energy in kWh or MWh where it is large."""
    for unit, scale in (("GWh", 3.6e12), ("MWh", 3.6e9), ("kWh", 3.6e6), ("kJ", 1e3)):
        if joules >= scale:
            return f"{joules / scale:.3g} {unit}"
    return f"{joules:.3g} J"


def format_usd(dollars: float) -> str:
    """Write a sum of money with three digits."""
    if dollars >= 1000:
        return f"${format_count(dollars)}"
    return f"${dollars:.3g}"


def csv_text(rows: Iterable[Row]) -> str:
    """CSV text of the rows, a column for every key but `parts`; empty where there is no value."""
    written = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        flat = {name: _flat(value) for name, value in row.items() if name != "parts"}
        if writer is None:
            writer = csv.DictWriter(written, list(flat), lineterminator="\n")
            writer.writeheader()
        writer.writerow(flat)
    return written.getvalue()


def _flat(value: Any) -> Any:
    """Value of one cell; numbers of a list stand side by side."""
    return " ".join(map(str, value)) if isinstance(value, list) else value
