"""Pictures of runs: timelines of traces under each other, the loss over steps."""

from collections.abc import Sequence
from typing import Any

from millrace.palette import HUES, LIGHT, PHASES, Theme
from millrace.pictures.look import look
from millrace.pictures.picture_file import Picture
from millrace.traces.timeline import Timeline
from millrace.units import format_seconds


def timelines_picture(timelines: Sequence[Timeline], theme: Theme = LIGHT) -> Picture:
    """Picture of some timelines under each other, on one scale of time.

    Parameters
    ----------
    timelines : sequence of Timeline
        Usually a predicted one and a measured one of the same plan.
    theme : Theme
        Colours of the page it stands on.

    Examples
    --------
    >>> picture = timelines_picture([timeline(predicted), timeline(measured)])  # doctest: +SKIP
    """
    title = "One step: " + ", ".join(
        f"{timeline.source} {format_seconds(timeline.duration_ns / 1e9)}" for timeline in timelines
    )
    rows = sorted({f"rank {row.rank} {row.queue}" for line in timelines for row in line.rows})
    with look(theme):
        figure = _timelines_figure(timelines, theme)
    return Picture(figure, title, f"Firings of {', '.join(rows)}.", theme)


def _timelines_figure(timelines: Sequence[Timeline], theme: Theme) -> Any:
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
                facecolors=[HUES[PHASES.get(bar.what, "stone")] for bar in bars],
            )
        panel.grid(visible=False)
        panel.set_yticks(range(len(timeline.rows)))
        panel.set_yticklabels([f"rank {row.rank} {row.queue}" for row in timeline.rows], fontsize=7)
        panel.invert_yaxis()
        panel.axvline(timeline.duration_ns / 1e6, color=theme.alarm, linestyle=":", linewidth=1)
        panel.set_title(
            f"{timeline.source}: {timeline.duration_ns / 1e6:.1f} ms", loc="left", fontsize=9
        )
    panels[-1, 0].set_xlabel("ms from the start of the step")
    panels[-1, 0].set_xlim(0, 1.01 * max(timeline.duration_ns for timeline in timelines) / 1e6)
    seen = {bar.what for timeline in timelines for bar in timeline.bars}
    patches = [
        Patch(color=HUES[hue], label=what.replace("_", " "))
        for what, hue in PHASES.items()
        if what in seen
    ]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize=8)
    return figure


def losses_picture(losses: Sequence[float], theme: Theme = LIGHT) -> Picture:
    """Picture of the loss over steps.

    Parameters
    ----------
    losses : sequence of float
        Loss of every step, from the first on.
    theme : Theme
        Colours of the page it stands on.
    """
    from matplotlib.figure import Figure

    with look(theme):
        figure = Figure(figsize=(7, 2.6), layout="constrained")
        panel = figure.subplots()
        panel.plot(range(1, len(losses) + 1), losses, marker=".", color=theme.lines[0])
        panel.set(xlabel="step", ylabel="loss, nats per token")
        panel.set_title("Loss over steps", loc="left")
    ends = f"From {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps." if losses else ""
    return Picture(figure, "Loss over steps", ends, theme)
