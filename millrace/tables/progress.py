"""Progress of long work: one line that a terminal rewrites, or few plain lines elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from rich.console import Console
from rich.text import Text

REPEATED_S = 10.0  # between plain lines, so that a log stays short


@dataclass(slots=True, kw_only=True)
class ProgressLine:
    """A line that says for how long work has gone on, and what it is about now.

    Rich draws it anew several times a second. It is cut where the terminal ends, as what is wrapped
    cannot be rewritten.
    """

    text: str
    clock: Callable[[], float] = monotonic
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.began_s = self.clock()

    def tell(self, text: str) -> None:
        """Say what the work is about now."""
        self.text = text

    def __rich__(self) -> Text:
        """Draw the line."""
        elapsed_s = self.clock() - self.began_s
        return Text(f"{elapsed_s:.0f} s  {self.text}", no_wrap=True, overflow="ellipsis")


@dataclass(slots=True, kw_only=True)
class ProgressLog:
    """Plain lines on a console: what the work is, and every ten seconds what it is about then.

    Without a text, the first thing that is told is the first line.
    """

    console: Console
    text: str
    clock: Callable[[], float] = monotonic
    began_s: float = field(init=False)
    printed_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Print the first line."""
        self.began_s = self.clock()
        if self.text:
            self.printed_s = self.began_s
            self.console.print(f"{self.text} …", markup=False)

    def tell(self, text: str) -> None:
        """Print what the work is about now, unless something was printed just before."""
        now_s = self.clock()
        if self.printed_s is None or now_s - self.printed_s >= REPEATED_S:
            self.printed_s = now_s
            self.console.print(f"{now_s - self.began_s:.0f} s  {text}", markup=False)
