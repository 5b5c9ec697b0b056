"""Accuracy picture: predicted against measured step times of published runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.palette import LIGHT
from millrace.pictures.look import line_look, look
from millrace.pictures.picture_file import Picture


def draw_predictions(
    groups: Mapping[str, Sequence[tuple[float, float]]], title: str, path: Path
) -> None:
    """Write a picture of predicted over measured step times, both on a log scale.

    Parameters
    ----------
    groups : mapping
        By the name of a source, its rows as (measured_s, predicted_s), in seconds.
    title : str
        What they are, and how far off in all.
    path : Path
        A name that ends in .png, .svg, .pdf or .html.

    Raises
    ------
    FileError
        Matplotlib is missing, the name ends otherwise, or the file cannot be written.
    """
    rows = sum(map(len, groups.values()))
    with look(LIGHT):
        figure = _predictions_figure(groups, title)
    Picture(figure, title, f"{rows} rows of {len(groups)} sources.").save(path)


def _predictions_figure(groups: Mapping[str, Sequence[tuple[float, float]]], title: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    figure = Figure(figsize=(11, 9), layout="constrained")
    panel, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    every = [time for points in groups.values() for point in points for time in point]
    ends = (min(every) / 1.5, max(every) * 1.5)
    band = {"color": LIGHT.mist, "linewidth": 0}
    panel.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends], **band)
    panel.plot(ends, ends, color=LIGHT.soft, linewidth=0.8)
    below.axhspan(0.9, 1.1, label="within 10 %", **band)
    below.axhline(1, color=LIGHT.soft, linewidth=0.8)
    for source_index, (name, points) in enumerate(groups.items()):
        style = {
            "s": 22,
            **line_look(LIGHT, source_index),
            "alpha": 0.75,
            "linewidths": 0,
        }
        measured = [point[0] for point in points]
        label = f"{name} ({len(points)})"
        panel.scatter(measured, [point[1] for point in points], label=label, **style)
        below.scatter(measured, [point[1] / point[0] for point in points], **style)
    panel.set(yscale="log", ylim=ends, ylabel="predicted step time, s")
    below.set(xscale="log", xlim=ends, xlabel="measured step time, s", yscale="log")
    below.set_ylabel("predicted over measured")
    for axis in (panel.yaxis, below.xaxis, below.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    below.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 0.8, 1, 1.25, 2, 4]))
    below.yaxis.set_minor_locator(NullLocator())
    panel.set_title(title, loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure
