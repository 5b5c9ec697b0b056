"""Views: what a result shows of itself, as text in a terminal and as HTML in a notebook.

A result says its title, its figures and its tables once; both forms are made of that. The HTML asks
no network for anything and takes its colours from the page around it, light or dark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

SHOWN_ROWS = 12  # of a table in a terminal; a notebook shows all
CELL_CHARACTERS = 60  # of a cell in a terminal
STYLE = """
.millrace-result {font: inherit; color: inherit; max-width: 60em}
.millrace-result table {border-collapse: collapse; margin: .5em 0; color: inherit}
.millrace-result caption {text-align: left; padding: .2em 0; font-weight: 600; color: inherit}
.millrace-result tr, .millrace-result th, .millrace-result td {background: transparent}
.millrace-result th, .millrace-result td {padding: .15em .9em .15em 0; text-align: left;
 border: 0; border-bottom: 1px solid rgba(128, 128, 128, .35); vertical-align: top;
 white-space: pre-line}
.millrace-result .number {text-align: right; font-variant-numeric: tabular-nums;
 white-space: pre}
.millrace-result .bar {display: block; height: .7em; min-width: 1px; margin-top: .3em;
 background: rgba(46, 125, 190, .75)}
.millrace-result .bars {width: 10em}
.millrace-result p {margin: .3em 0}
"""


class MissingMatplotlibError(ImportError):
    """A picture was asked for where matplotlib is not installed; says what to install."""


def check_matplotlib() -> None:
    """Raise MissingMatplotlibError unless pictures can be drawn."""
    if find_spec("matplotlib") is None:
        raise MissingMatplotlibError(
            "a picture needs matplotlib, which is not installed: pip install 'millrace[plot]'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """Table of texts; `bars` has a fraction for every row, drawn in a notebook under `bar_name`.

    `numbers` says of every column whether it is one of numbers, which end in line.
    """

    title: str
    columns: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[float | None, ...] = ()
    bar_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultView:
    """Title, figures by name, tables and notes that a result shows."""

    title: str
    figures: tuple[tuple[str, str], ...] = ()
    tables: tuple[TableView, ...] = ()
    notes: tuple[str, ...] = ()


class ShownResult:
    """Result that shows its `view`: as text in a terminal, as HTML in a notebook."""

    __slots__ = ()
    tables_in_text = True

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return result_text(self.view, tables=self.tables_in_text)

    def _repr_html_(self) -> str:
        return result_html(self.view)


def table_view(table: "Table", bars: Sequence[float | None] = (), bar_name: str = "") -> TableView:
    """View of a table that a command prints.

    Parameters
    ----------
    table : Table
        Its cells are texts.
    bars : sequence of float or None, optional
        A fraction for every row.
    bar_name : str
        Name of what the fractions are.
    """
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return TableView(
        title=str(table.title or ""),
        columns=tuple(str(column.header) for column in table.columns),
        numbers=tuple(column.justify == "right" for column in table.columns),
        rows=tuple(zip(*columns, strict=True)),
        bars=tuple(bars),
        bar_name=bar_name,
    )


def result_text(view: ResultView, tables: bool = True) -> str:
    """Text of a result, a few lines for a terminal.

    Parameters
    ----------
    view : ResultView
        What is shown.
    tables : bool
        Show the tables too.
    """
    width = max((len(name) for name, _ in view.figures), default=0) + 2
    lines = [view.title, *(f"  {name:<{width}}{value}" for name, value in view.figures)]
    for table in view.tables if tables else ():
        lines += [f"  {line}" for line in _table_lines(table)]
    return "\n".join([*lines, *(f"  {note}" for note in view.notes)])


def _table_lines(table: TableView) -> list[str]:
    """Lines of a table, its columns in line, as many rows as a terminal takes."""
    shown = [[_cut(cell) for cell in row] for row in (table.columns, *table.rows[:SHOWN_ROWS])]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [table.title] if table.title else []
    for row in shown:
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, table.numbers, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    if (more := len(table.rows) - SHOWN_ROWS) > 0:
        lines.append(f"… and {more} more")
    return lines


def _cut(text: str) -> str:
    """Text of a cell in one line, no longer than a terminal has room for."""
    text = ", ".join(text.splitlines())
    return text if len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 1] + "…"


def result_html(view: ResultView) -> str:
    """HTML of a result, for a notebook: one element, every text of it escaped.

    Parameters
    ----------
    view : ResultView
        What is shown.
    """
    figures = TableView(title="", columns=("", ""), numbers=(False, False), rows=view.figures)
    parts = [f"<p><strong>{escape(view.title)}</strong></p>"]
    parts += [_table_html(figures, head=False)] if view.figures else []
    parts += [_table_html(table) for table in view.tables]
    parts += [f"<p>{escape(note)}</p>" for note in view.notes]
    return f'<div class="millrace-result"><style>{STYLE}</style>{"".join(parts)}</div>'


def _table_html(table: TableView, head: bool = True) -> str:
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    names = [*table.columns, *([table.bar_name] if table.bars else [])]
    top = f"<thead><tr>{_cells('th', names, [*table.numbers, False])}</tr></thead>" if head else ""
    bars = [_bar(fraction) for fraction in table.bars] or [""] * len(table.rows)
    rows = (
        f"<tr>{_cells('td', row, table.numbers)}{bar}</tr>"
        for row, bar in zip(table.rows, bars, strict=True)
    )
    return f"<table>{caption}{top}<tbody>{''.join(rows)}</tbody></table>"


def _cells(tag: str, texts: Sequence[str], numbers: Sequence[bool]) -> str:
    kinds = (' class="number"' if number else "" for number in numbers)
    return "".join(
        f"<{tag}{kind}>{escape(text)}</{tag}>" for text, kind in zip(texts, kinds, strict=False)
    )


def _bar(fraction: float | None) -> str:
    """Cell with a bar; empty where there is no fraction."""
    if fraction is None:
        return "<td></td>"
    percent = 100 * min(max(fraction, 0.0), 1.0)
    return f'<td class="bars"><span class="bar" style="width: {percent:.1f}%"></span></td>'
