"""Table of published runs as facts alone: what its notes tell in words, as columns.

Run `python -m benchmarks.simulator.columns CSV OUT [--fitted]` from the root of the repository.

CSV is a table of `millrace validate`, of any layout. OUT has the same rows, in columns that are
read or name a source; it has no notes. Of OUT every row asks the same. `fitted` says whether
figures were fitted to a row: with `--fitted` they were, to every row of tier A.
"""

import csv
import re
from pathlib import Path
from typing import Annotated

import typer

from millrace.models.documents import FileError
from millrace.published.columns import NAMES
from millrace.published.notes import NAMED_COLUMNS
from millrace.published.reading import LINE, MALFORMED, Row, Table, TableFormat, read_table

UNREAD = ("notes", "params_b", "gpu_mem_gb", "mfu", "newer_than_2026_06", "already_in_published")
ADDED = {
    TableFormat.LANGUAGE: ("framework", *NAMES),
    TableFormat.DLPERF: (),
    TableFormat.NAMED: (*NAMED_COLUMNS, "routing"),
}

# Parts of an older table's `variant` that other columns say, or that say how a figure was read.
SAID = re.compile(
    r"^(experts|topk|moe_ffn|shared|head_dim|dense_layers|derived|uneven layer split|sliding|mla\b"
    r"|first |all layers MoE|moe every|column |dp column|printed|per-device|recompute|nemo)",
    re.IGNORECASE,
)


def write_columns(table: Table, path: Path, *, fitted: bool = False) -> None:
    """Write a table with all its columns, without its notes.

    Parameters
    ----------
    table : Table
        As it was read.
    path : Path
        The file to write.
    fitted : bool
        Figures were fitted to the rows of tier A.

    Raises
    ------
    FileError
        A row has another length than the header; or there is no place for the file.
    """
    for row in table.rows:
        if MALFORMED in row:
            raise FileError(f"line {row[LINE]} has {row[MALFORMED]}: correct it first")
    said = {"fitted": "1"} if fitted else {}
    rows = [_facts(row) | (said if row["tier"] == "A" else {}) for row in table.rows]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, _header(table), extrasaction="ignore", lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise FileError(f"`{path}` cannot be written: {error.strerror}") from None


def _header(table: Table) -> list[str]:
    names = (*table.columns, *ADDED[table.layout], "fitted")
    return [name for name in dict.fromkeys(names) if name not in UNREAD]


def _facts(row: Row) -> Row:
    """Row with the parts of its variant that no column says."""
    facts = row | {"fitted": row.get("fitted", "") or "0"}
    if "experts" in row:  # DLPerf's variants are keys and values
        parts = (part.strip() for part in row["variant"].split(";"))
        facts["variant"] = "; ".join(part for part in parts if part and not SAID.match(part))
    return facts


def main(
    table: Path, out: Path, *, fitted: Annotated[bool, typer.Option("--fitted")] = False
) -> None:
    """Write the table `out` and say how many rows and columns it has."""
    try:
        content = read_table(table)
        write_columns(content, out, fitted=fitted)
    except FileError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{len(content.rows)} rows, {len(_header(content))} columns: {out}")


if __name__ == "__main__":
    typer.run(main)
