"""Layers of a search as a table: what each did and proved, and how long it took."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from millrace.units import format_percent, format_seconds


def layers_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Table of the layers of a search, a row each.

    Parameters
    ----------
    rows : sequence of mapping
        `layers` of the answer of `millrace plan`: name, objective, bound, gap, seconds, counts.
    """
    table = Table(title="layers of the search", title_justify="left")
    table.add_column("layer")
    for column in ("objective", "bound", "gap", "took"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("did", overflow="fold")
    shown = ("name", "objective_s", "bound_s", "gap", "seconds")
    for row in rows:
        proof = [format_seconds(row[key]) if key in row else "" for key in shown[1:3]]
        gap = format_percent(row["gap"]) if "gap" in row else ""
        did = [
            f"{name.replace('_', ' ')} {number}"
            for name, number in row.items()
            if name not in shown and not isinstance(number, dict)
        ]
        for kind in ("pruned", "refused"):
            if isinstance(row.get(kind), dict):
                did += [f"{kind} {number}: {why}" for why, number in row[kind].items()]
        table.add_row(row["name"], *proof, gap, format_seconds(row["seconds"]), "; ".join(did))
    return table
