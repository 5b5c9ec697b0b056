"""Consoles on stdout and stderr, on which what commands print is laid out."""

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from millrace.stdio import visible


class PlainConsole(Console):
    """A console on which names from files show what they hold and do not do it."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments that are printed, with characters that steer a terminal escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; sentences are wrapped for a terminal alone, which others may search."""
        if not self.is_terminal and all(isinstance(each, str) for each in objects):
            options.setdefault("soft_wrap", True)
        super().print(*objects, **options)

    def out(self, *texts: Any, **options: Any) -> None:
        """Print texts as they are, long lines and all."""
        super().out(*(visible(str(text)) for text in texts), **options)


def stdout() -> Console:
    """Console on stdout, at least 100 columns wide where it is not a terminal."""
    width = None if sys.stdout.isatty() else 100
    return PlainConsole(
        file=sys.stdout, width=width, markup=False, highlight=False, soft_wrap=False
    )


def stderr() -> Console:
    """Console on stderr."""
    return PlainConsole(file=sys.stderr, markup=False, highlight=False, soft_wrap=True)
