"""Frontier picture: time against cost of a training run, and the clusters that nothing beats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace.palette import LIGHT, Theme
from millrace.pictures.look import line_look, look
from millrace.pictures.picture_file import Picture
from millrace.scaling.recommendation_tables import CHOICES
from millrace.scaling.scaling_tables import doubted_line
from millrace.units import format_count

DAY_S = 86_400


def draw_frontier(document: Mapping[str, Any], path: Path) -> None:
    """Write the picture of `frontier_picture` to a file.

    Parameters
    ----------
    document : mapping
        What `millrace recommend --json` holds.
    path : Path
        A name that ends in .png, .svg, .pdf or .html.

    Raises
    ------
    FileError
        Matplotlib is missing, the name ends otherwise, or the file cannot be written.
    """
    frontier_picture(document).save(path)


def frontier_picture(document: Mapping[str, Any], theme: Theme = LIGHT) -> Picture:
    """Picture of time against cost, a line per cluster, with the frontier.

    Parameters
    ----------
    document : mapping
        `rows` and `choice`, as `millrace recommend --json` has them; rows without a price are not
        drawn.
    theme : Theme
        Colours of the page it stands on.
    """
    first = document["rows"][0]
    tokens = format_count(first["tokens"])
    title = f"{first['model']}, {first['precision']}: {tokens} {first['unit']}s, time against cost"
    with look(theme):
        figure = _frontier_figure(document, title, theme)
    return Picture(figure, title, _description(document), theme)


def _description(document: Mapping[str, Any]) -> str:
    """Clusters of the frontier in words, the fastest first."""
    frontier = sorted(
        (row["time_s"], row["cost_usd"], row["devices"], doubted_line(row))
        for row in _priced(document)
        if row["on_frontier"]
    )
    if not frontier:
        return "No cluster has a price."
    parts = [
        f"{devices:,} devices of {name}: {time_s / DAY_S:.3g} days, ${format_count(cost)}"
        for time_s, cost, devices, name in frontier
    ]
    return f"No other cluster is as fast and as cheap as {'; '.join(parts)}."


def _priced(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in document["rows"] if row["cost_usd"] is not None]


def _devices(row: Mapping[str, Any]) -> int:
    return int(row["devices"])


def _frontier_figure(document: Mapping[str, Any], title: str, theme: Theme) -> Any:
    from matplotlib.figure import Figure

    rows = _priced(document)
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(doubted_line(row), []).append(row)
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    panel = figure.subplots()
    for line_index, (label, line) in enumerate(lines.items()):
        ordered = sorted(line, key=_devices)
        days = [row["time_s"] / DAY_S for row in ordered]
        costs = [row["cost_usd"] for row in ordered]
        panel.plot(days, costs, label=label, lw=1.6, **line_look(theme, line_index))
        for row, x, y in zip(ordered, days, costs, strict=True):
            panel.annotate(
                f"{row['devices']:,}", (x, y), (4, 5), textcoords="offset points", fontsize=8
            )
    frontier = sorted(
        (row["time_s"] / DAY_S, row["cost_usd"]) for row in rows if row["on_frontier"]
    )
    panel.plot(
        *zip(*frontier, strict=True) if frontier else ([], []),
        color=theme.mist,
        lw=9,
        solid_capstyle="round",
        zorder=0,
        label="no other is as fast and as cheap",
    )
    _mark_choice(panel, document["choice"], theme)
    panel.set(xscale="log", xlabel="days", ylabel="dollars")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.xaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_major_formatter(
        lambda value, _: format_count(value).replace(".00", "").replace(".0", "")
    )
    panel.set_ylim(0, 1.1 * max((row["cost_usd"] for row in rows), default=1.0))
    panel.legend()
    panel.set_title(title, loc="left", fontsize=12, fontweight="bold")
    return figure


def _mark_choice(panel: Any, choice: Mapping[str, Any], theme: Theme) -> None:
    """Ring the cheapest and the fastest cluster that makes it, and those of measured devices."""
    texts: dict[tuple[float, float], list[str]] = {}
    for name in ("cheapest", "fastest", *CHOICES):
        row = choice.get(name)
        if row is not None and row["cost_usd"] is not None:
            text = CHOICES.get(name, f"{name}?" if row["device_doubt"] else name)
            texts.setdefault((row["time_s"] / DAY_S, row["cost_usd"]), []).append(text)
    for place, names in texts.items():
        panel.plot(*place, "o", markersize=14, fillstyle="none", color=theme.ink)
        above = set(names) <= set(CHOICES.values())  # the guess that it stands in for lies below
        shift, side = (18, "bottom") if above else (-18, "top")
        text = ", ".join(names)
        panel.annotate(text, place, (0, shift), textcoords="offset points", ha="center", va=side)
