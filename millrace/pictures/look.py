"""The look that all pictures share: fonts, axes, and the colours of a theme."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millrace.palette import MARKERS, Theme


@contextmanager
def look(theme: Theme) -> Iterator[None]:
    """Settings of matplotlib while figures are made and saved; a user's own do not count.

    Parameters
    ----------
    theme : Theme
        Colours of paper, text and axes.
    """
    from matplotlib import style

    settings: dict[str, Any] = {
        "axes.axisbelow": True,
        "axes.edgecolor": theme.rule,
        "axes.facecolor": theme.paper,
        "axes.grid": True,
        "axes.labelcolor": theme.ink,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": theme.ink,
        "figure.facecolor": theme.paper,
        "font.size": 9.5,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "savefig.facecolor": theme.paper,
        "svg.fonttype": "none",
        "svg.hashsalt": "millrace",
        "text.color": theme.ink,
        "xtick.color": theme.soft,
        "xtick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.color": theme.soft,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
    }
    with style.context(["default", settings]):
        yield


def line_look(theme: Theme, place: int) -> dict[str, Any]:
    """Colour and marker of a line: where colours begin anew, they come with other markers.

    Parameters
    ----------
    theme : Theme
        Its `lines` are taken in turn.
    place : int
        Number of the line, from 0.
    """
    turn, colour = divmod(place, len(theme.lines))
    return {"color": theme.lines[colour], "marker": MARKERS[(colour + turn) % len(MARKERS)]}
