"""Scaling picture: throughput, efficiency and cost of a model over devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace.palette import LIGHT, Theme
from millrace.pictures.look import line_look, look
from millrace.pictures.picture_file import Picture
from millrace.scaling.scaling_tables import doubted_line, line_name
from millrace.units import format_count, format_percent


def draw_scaling(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the picture of `scaling_picture` to a file.

    Parameters
    ----------
    rows : sequence of dict
        Rows of `millrace scale --json`.
    path : Path
        A name that ends in .png, .svg, .pdf or .html.

    Raises
    ------
    FileError
        Matplotlib is missing, the name ends otherwise, or the file cannot be written.
    """
    scaling_picture(rows).save(path)


def scaling_picture(rows: Sequence[dict[str, Any]], theme: Theme = LIGHT) -> Picture:
    """Picture of the rows of `millrace scale --json`: throughput, efficiency, cost.

    All are over devices. Throughput is on logarithmic axes, with what perfect scaling from a line's
    smallest size would give. A ring marks where a line stops paying, a cross on the axis a size
    without a plan.

    Parameters
    ----------
    rows : sequence of dict
        Rows of `millrace scale --json`.
    theme : Theme
        Colours of the page it stands on.
    """
    with look(theme):
        return Picture(_scaling_figure(rows, theme), _title(rows), _description(rows), theme)


def _title(rows: Sequence[dict[str, Any]]) -> str:
    first = rows[0]
    length = f", sequences of {first['seq_len']:,}" if first["seq_len"] > 1 else ""
    return f"{first['model']}, {first['precision']}{length}: scaling over devices"


def _description(rows: Sequence[dict[str, Any]]) -> str:
    """Ends of every line in words."""
    sentences = []
    for label, line in _lines(rows).items():
        planned = sorted((row for row in line if row["reason"] is None), key=_devices)
        if not planned:
            sentences.append(f"{label}: no size has a plan.")
            continue
        first, last = planned[0], planned[-1]
        rates = [f"{format_count(row['goodput_tokens_per_s'])} {row['unit']}s/s" for row in planned]
        text = f"{doubted_line(first)}: {rates[0]} on {first['devices']:,} devices"
        if len(planned) > 1:
            text += f", {rates[-1]} on {last['devices']:,}"
            if last["scaling_efficiency"] is not None:
                text += f", an efficiency of {format_percent(last['scaling_efficiency'])}"
        sentences.append(text + ".")
    return " ".join(sentences)


def _lines(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(line_name(row), []).append(row)
    return lines


def _scaling_figure(rows: Sequence[dict[str, Any]], theme: Theme) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.8, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.55, 1))
    speed = figure.add_subplot(grid[:, 0])
    share = figure.add_subplot(grid[0, 1], sharex=speed)
    spent = figure.add_subplot(grid[1, 1], sharex=speed)
    name, title = _spending(rows)
    for line_index, (label, line) in enumerate(_lines(rows).items()):
        style = line_look(theme, line_index)
        planned = sorted((point for point in line if point["reason"] is None), key=_devices)
        name_text = doubted_line(planned[0]) if planned else label
        _draw_line(speed, planned, "goodput_tokens_per_s", label=name_text, **style)
        _draw_line(share, planned, "scaling_efficiency", **style)
        if name:
            _draw_line(spent, planned, name, **style)
        if planned:
            base = planned[0]["goodput_tokens_per_s"] / _devices(planned[0])
            sizes = [_devices(planned[0]), _devices(planned[-1])]
            ideal = [base * size for size in sizes]
            speed.plot(
                sizes, ideal, linestyle=(0, (4, 3)), color=style["color"], alpha=0.55, lw=1.2
            )
        missing = [_devices(point) for point in line if point["reason"] is not None]
        speed.plot(
            missing,
            [0.02 + 0.03 * line_index] * len(missing),
            marker="x",
            linestyle="",
            color=style["color"],
            markersize=8,
            transform=speed.get_xaxis_transform(),
        )
    _dress(figure, rows, (speed, share, spent), title, theme)
    return figure


def _devices(row: dict[str, Any]) -> int:
    return int(row["devices"])


def _spending(rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Column of money or energy that is drawn, and its title."""
    tokens = format_count(rows[0]["tokens"])
    for name, title in (("cost_usd", "cost in $"), ("energy_j", "energy in J")):
        if any(row[name] is not None for row in rows):
            return name, f"{title} of {tokens} {rows[0]['unit']}s"
    return "", "cost: no price is known"


def _draw_line(panel: Any, rows: Sequence[dict[str, Any]], name: str, **style: Any) -> None:
    """Draw one line of a panel, with a ring where it stops paying."""
    plotted = [row for row in rows if row[name] is not None]
    panel.plot(
        [_devices(row) for row in plotted],
        [row[name] for row in plotted],
        lw=2.2,
        markersize=6.5,
        markeredgecolor=panel.get_facecolor(),
        markeredgewidth=0.8,
        **style,
    )
    stops = [row for row in plotted if row["stops_paying"]]
    panel.plot(
        [_devices(row) for row in stops],
        [row[name] for row in stops],
        linestyle="",
        marker="o",
        markersize=15,
        fillstyle="none",
        markeredgewidth=1.6,
        color=style["color"],
    )


def _dress(
    figure: Any,
    rows: Sequence[dict[str, Any]],
    panels: tuple[Any, Any, Any],
    title: str,
    theme: Theme,
) -> None:
    """Set scales, titles and the legend."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

    speed, share, spent = panels
    sizes = sorted({_devices(row) for row in rows})
    counted = FuncFormatter(
        lambda value, _: format_count(value).replace(".00", "").replace(".0", "")
    )
    speed.set_xscale("log", base=2)
    if any(row["reason"] is None for row in rows):
        speed.set_yscale("log")
        speed.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    speed.set_xticks(sizes, [f"{size:,}" for size in sizes])
    speed.xaxis.set_minor_formatter(NullFormatter())
    speed.yaxis.set_major_formatter(counted)
    speed.yaxis.set_minor_formatter(NullFormatter())
    share.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    spent.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    share.set_ylim(0, 1.05 * max([1.0, *(row["scaling_efficiency"] or 0.0 for row in rows)]))
    spent.set_ylim(0, 1.12 * spent.dataLim.y1 if spent.lines else 1)
    failing = ", less failures" if any(row["goodput_fraction"] for row in rows) else ""
    for panel, text in (
        (speed, f"{rows[0]['unit']}s per second{failing}"),
        (share, "scaling efficiency"),
        (spent, title),
    ):
        panel.set_title(text, loc="left", fontsize=12, fontweight="bold")
        panel.set_xlabel("devices")
    speed.legend(*_legend(speed, rows, theme), loc="upper left", fontsize=10)
    figure.suptitle(_title(rows), fontsize=15, fontweight="bold")


def _legend(
    panel: Any, rows: Sequence[dict[str, Any]], theme: Theme
) -> tuple[list[Any], list[str]]:
    """Handles and labels of the lines, and of whatever else there is to see."""
    from matplotlib.lines import Line2D

    handles, labels = panel.get_legend_handles_labels()
    grey = theme.soft
    handles.append(Line2D([], [], linestyle=(0, (4, 3)), color=grey))
    labels.append("perfect scaling")
    if any(row["stops_paying"] for row in rows):
        ring = Line2D([], [], linestyle="", marker="o", markersize=11, fillstyle="none", color=grey)
        handles.append(ring)
        labels.append("stops paying")
    if any(row["reason"] is not None for row in rows):
        handles.append(Line2D([], [], linestyle="", marker="x", color=grey))
        labels.append("no plan")
    return handles, labels
