"""Table of published runs with its columns filled: what its notes tell in words, as values.

Run `python -m benchmarks.simulator.columns CSV OUT` from the root of the repository.

CSV is a table of the language layout of `millrace validate`. OUT has the same rows and columns, and
those of `millrace.published.columns` that CSV lacks (`framework` too), as `millrace validate` reads
them out of its notes and sources. Of OUT every row asks the same, and no word of its notes counts
any more.
"""

import csv
from pathlib import Path

import typer

from millrace.models.documents import FileError
from millrace.published.columns import NAMES
from millrace.published.reading import LINE, MALFORMED, Table, TableFormat, read_table


def write_columns(table: Table, path: Path) -> None:
    """Write a table with all its columns.

    Raises
    ------
    FileError
        The table has other columns, or a row of another length than its header; or there is no
        place for the file.
    """
    if table.layout is not TableFormat.LANGUAGE:
        raise FileError(f"a table of the {table.layout} layout has no such columns: leave it as is")
    for row in table.rows:
        if MALFORMED in row:
            raise FileError(f"line {row[LINE]} has {row[MALFORMED]}: correct it first")
    header = [*table.columns, *_lacking(table)]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, header, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(table.rows)
    except OSError as error:
        raise FileError(f"`{path}` cannot be written: {error.strerror}") from None


def _lacking(table: Table) -> list[str]:
    return [name for name in ("framework", *NAMES) if name not in table.columns]


def main(table: Path, out: Path) -> None:
    """Write the table `out` and say how many rows and columns it has."""
    try:
        content = read_table(table)
        write_columns(content, out)
    except FileError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{len(content.rows)} rows, {len(_lacking(content))} columns added: {out}")


if __name__ == "__main__":
    typer.run(main)
