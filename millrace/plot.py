"""Pictures, with matplotlib: timelines, devices × stages, predicted × measured, scaling.

The only file that imports matplotlib (`pip install '.[plot]'`).
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from millrace.models.documents import FileError, write_bytes
from millrace.planner.plan import Plan
from millrace.scaling.scaling_tables import line_name
from millrace.tables.ranges import stage_blocks
from millrace.traces.timeline import COLOURS, Timeline
from millrace.units import format_count

# Ten colours that are told apart in print and by most who see few colours (Okabe and Ito 2008, and
# three dark ones); then the marker changes.
TEN = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"),
    *("#56b4e9", "#c8b400", "#444444", "#882255", "#117733"),
)
MARKERS = ("o", "^", "s", "D", "v")


def plot_timelines(timelines: Sequence[Timeline]) -> Any:
    """Matplotlib Figure of some timelines under each other, on one scale of time.

    Parameters
    ----------
    timelines : sequence of Timeline
        Usually a predicted one and a measured one of the same plan.

    Examples
    --------
    >>> figure = plot_timelines([timeline(predicted), timeline(measured)])  # doctest: +SKIP
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [len(timeline.rows) for timeline in timelines]
    figure = Figure(figsize=(11, 0.9 + 0.21 * sum(rows) + 0.5 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, height_ratios=rows, squeeze=False)
    for panel, timeline in zip(panels[:, 0], timelines, strict=True):
        for row_index in range(len(timeline.rows)):
            bars = [bar for bar in timeline.bars if bar.row == row_index]
            panel.broken_barh(
                [(bar.start_ns / 1e6, (bar.end_ns - bar.start_ns) / 1e6) for bar in bars],
                (row_index - 0.4, 0.8),
                facecolors=[COLOURS.get(bar.what, "#555555") for bar in bars],
            )
        panel.set_yticks(range(len(timeline.rows)))
        panel.set_yticklabels([f"rank {row.rank} {row.queue}" for row in timeline.rows], fontsize=7)
        panel.invert_yaxis()
        panel.axvline(timeline.duration_ns / 1e6, color="#cc0000", linestyle=":", linewidth=1)
        panel.set_title(
            f"{timeline.source}: {timeline.duration_ns / 1e6:.1f} ms", loc="left", fontsize=9
        )
    panels[-1, 0].set_xlabel("ms from the start of the step")
    panels[-1, 0].set_xlim(0, 1.01 * max(timeline.duration_ns for timeline in timelines) / 1e6)
    seen = {bar.what for timeline in timelines for bar in timeline.bars}
    patches = [
        Patch(color=colour, label=what.replace("_", " "))
        for what, colour in COLOURS.items()
        if what in seen
    ]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize=8)
    return figure


def plot_devices(plan: Plan) -> Any:
    """Matplotlib Figure of the plan's devices (rows) × stages (columns)."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    size = (1.4 + 2.4 * plan.stages, 1.0 + 0.55 * plan.mesh.devices)
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    for stage in range(plan.stages):
        colour = f"C{stage % 10}"
        for device in range(plan.mesh.devices):
            panel.add_patch(Rectangle((stage, device), 0.94, 0.88, color=colour, alpha=0.35))
            rank = stage * plan.mesh.devices + device
            panel.text(stage + 0.47, device + 0.44, f"rank {rank}", ha="center", va="center")
    panel.set_xlim(-0.06, plan.stages)
    panel.set_ylim(plan.mesh.devices, -0.12)
    panel.set_xticks([stage + 0.47 for stage in range(plan.stages)])
    panel.set_xticklabels(
        [f"stage {stage}\n{stage_blocks(plan, stage)}" for stage in range(plan.stages)]
    )
    panel.xaxis.tick_top()
    panel.set_yticks([device + 0.44 for device in range(plan.mesh.devices)])
    names = " × ".join(f"{axis.name} {axis.size}" for axis in plan.mesh.axes) or "one device"
    panel.set_yticklabels([str(device) for device in range(plan.mesh.devices)])
    panel.set_ylabel(f"device of the mesh\n{names}")
    panel.tick_params(length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)
    return figure


def plot_losses(losses: Sequence[float]) -> Any:
    """Matplotlib Figure of the loss over steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.4), layout="constrained")
    panel = figure.subplots()
    panel.plot(range(1, len(losses) + 1), losses, marker=".")
    panel.set_xlabel("step")
    panel.set_ylabel("loss")
    return figure


def plot_scaling(rows: Sequence[dict[str, Any]]) -> Any:
    """Matplotlib Figure of the rows of a sweep: throughput, efficiency, cost.

    All are over devices. Throughput is on logarithmic axes, with what perfect scaling from a line's
    smallest size would give. A ring marks where a line stops paying, a cross on the axis a size
    without a plan.
    """
    from matplotlib.figure import Figure

    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(line_name(row), []).append(row)
    figure = Figure(figsize=(12.8, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.55, 1))
    speed = figure.add_subplot(grid[:, 0])
    share = figure.add_subplot(grid[0, 1], sharex=speed)
    spent = figure.add_subplot(grid[1, 1], sharex=speed)
    name, title = _spending(rows)
    for line_index, (label, line) in enumerate(lines.items()):
        look = {
            "color": TEN[line_index % len(TEN)],
            "marker": MARKERS[line_index % len(MARKERS)],
        }
        planned = sorted((point for point in line if point["reason"] is None), key=_devices)
        _draw_line(speed, planned, "goodput_tokens_per_s", label=label, **look)
        _draw_line(share, planned, "scaling_efficiency", **look)
        if name:
            _draw_line(spent, planned, name, **look)
        if planned:
            base = planned[0]["goodput_tokens_per_s"] / _devices(planned[0])
            sizes = [_devices(planned[0]), _devices(planned[-1])]
            ideal = [base * size for size in sizes]
            speed.plot(sizes, ideal, linestyle=(0, (4, 3)), color=look["color"], alpha=0.55, lw=1.2)
        missing = [_devices(point) for point in line if point["reason"] is not None]
        speed.plot(
            missing,
            [0.02 + 0.03 * line_index] * len(missing),
            marker="x",
            linestyle="",
            color=look["color"],
            markersize=8,
            transform=speed.get_xaxis_transform(),
        )
    _dress(figure, rows, speed, share, spent, title)
    return figure


def plot_recommendation(document: Mapping[str, Any]) -> Any:
    """Matplotlib Figure of time against cost, a line per cluster, with the frontier.

    Parameters
    ----------
    document : mapping
        `rows` and `choice`, as `millrace recommend --json` has them; rows without a price are not
        drawn.
    """
    from matplotlib.figure import Figure

    rows = [row for row in document["rows"] if row["cost_usd"] is not None]
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(line_name(row), []).append(row)
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    panel = figure.subplots()
    for line_index, (label, line) in enumerate(lines.items()):
        ordered = sorted(line, key=_devices)
        days = [row["time_s"] / 86400 for row in ordered]
        colour = TEN[line_index % len(TEN)]
        marker = MARKERS[line_index % len(MARKERS)]
        costs = [row["cost_usd"] for row in ordered]
        panel.plot(days, costs, color=colour, marker=marker, label=label, lw=1.6)
        for row, x, y in zip(ordered, days, costs, strict=True):
            panel.annotate(
                f"{row['devices']:,}", (x, y), (4, 5), textcoords="offset points", fontsize=8
            )
    frontier = sorted(
        (row["time_s"] / 86400, row["cost_usd"]) for row in rows if row["on_frontier"]
    )
    panel.plot(
        *zip(*frontier, strict=True) if frontier else ([], []),
        linestyle=(0, (4, 3)),
        color="#222222",
        lw=1.2,
        label="no other is as fast and as cheap",
    )
    panel.set(xscale="log", xlabel="days", ylabel="dollars")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.xaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_major_formatter(lambda value, _: format_count(value))
    panel.set_ylim(0, 1.1 * max((row["cost_usd"] for row in rows), default=1.0))
    panel.grid(visible=True, which="major", color="#dddddd", lw=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    first = document["rows"][0]
    tokens = format_count(first["tokens"])
    panel.set_title(
        f"{first['model']}, {first['precision']}: {tokens} {first['unit']}s, by devices", loc="left"
    )
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


def _draw_line(panel: Any, rows: Sequence[dict[str, Any]], name: str, **look: Any) -> None:
    """Draw one line of a panel, with a ring where it stops paying."""
    plotted = [row for row in rows if row[name] is not None]
    panel.plot(
        [_devices(row) for row in plotted],
        [row[name] for row in plotted],
        lw=2.2,
        markersize=6.5,
        markeredgecolor="white",
        markeredgewidth=0.8,
        **look,
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
        color=look["color"],
    )


def _dress(
    figure: Any, rows: Sequence[dict[str, Any]], speed: Any, share: Any, spent: Any, title: str
) -> None:
    """Set scales, titles and the legend."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

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
        panel.grid(visible=True, which="major", color="#dddddd", lw=0.8)
        panel.set_axisbelow(True)
        panel.tick_params(length=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("devices")
    speed.legend(*_legend(speed, rows), loc="upper left", fontsize=10, frameon=False)
    first = rows[0]
    figure.suptitle(
        f"{first['model']}, {first['precision']}, sequences of {first['seq_len']:,}",
        fontsize=15,
        fontweight="bold",
    )


def _legend(panel: Any, rows: Sequence[dict[str, Any]]) -> tuple[list[Any], list[str]]:
    """Handles and labels of the lines, and of whatever else there is to see."""
    from matplotlib.lines import Line2D

    handles, labels = panel.get_legend_handles_labels()
    grey = "#555555"
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


def plot_predictions(groups: Mapping[str, Sequence[tuple[float, float]]], title: str) -> Any:
    """Matplotlib Figure of predicted over measured step times, both on a log scale.

    Parameters
    ----------
    groups : mapping
        By the name of a source, its rows as (measured_s, predicted_s), in seconds.
    title : str
        What they are, and how far off in all.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    figure = Figure(figsize=(11, 9), layout="constrained")
    panel, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    every = [time for points in groups.values() for point in points for time in point]
    ends = (min(every) / 1.5, max(every) * 1.5)
    band = {"color": "#bbbbbb", "alpha": 0.5, "linewidth": 0}
    panel.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends], **band)
    panel.plot(ends, ends, color="#666666", linewidth=0.8)
    below.axhspan(0.9, 1.1, label="within 10 %", **band)
    below.axhline(1, color="#666666", linewidth=0.8)
    for source_index, (name, points) in enumerate(groups.items()):
        style = {
            "s": 22,
            "marker": MARKERS[source_index // len(TEN) % len(MARKERS)],
            "color": TEN[source_index % len(TEN)],
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
    for axes in (panel, below):
        axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    panel.set_title(title, loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def check_drawable(path: Path) -> None:
    """Raise FileError where a figure could not be drawn in the form that the file's name ends in.

    To be called before the long work that fills it.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise FileError(
            f"`{path}` is drawn by matplotlib: pip install '.[plot]' in Millrace's checkout"
        ) from None
    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise FileError(f"cannot draw `{path}`: name a file that ends in .{', .'.join(formats)}")


def save(figure: Any, path: Path) -> None:
    """Write a figure in the form that the file's name ends in.

    The same figure gives the same bytes.

    Parameters
    ----------
    figure : Figure
        As the functions of this module return it.
    path : Path
        The file.

    Raises
    ------
    FileError
        Matplotlib is missing or has no such form, or the file cannot be written.
    """
    from matplotlib import rc_context

    check_drawable(path)
    form = path.suffix.removeprefix(".").lower()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    written = BytesIO()
    with rc_context({"svg.hashsalt": "millrace"}):
        figure.savefig(written, format=form, dpi=150, metadata=undated.get(form))
    write_bytes(path, written.getvalue())
