"""Output of a command: its answer on stdout, as text or as one JSON document, the rest on stderr.

Progress and warnings go to stderr whatever the form of the answer, so that a script can always read
stdout. On a terminal long work shows a spinner; elsewhere each step is one plain line.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from millrace.stdio import visible, visible_json

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout and nothing else."),
]


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


def answer(document: Mapping[str, Any], as_json: bool, draw: Callable[[Console], None]) -> None:
    """Print a command's answer on stdout: one JSON document, or a text.

    Parameters
    ----------
    document : mapping
        The answer, of values that JSON has.
    as_json : bool
        Print the document; else draw.
    draw : callable
        Called with a console on stdout, prints the text.
    """
    if as_json:
        try:
            text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
        except UnicodeEncodeError:  # a name with bytes that are no letters
            text = json.dumps(document, indent=2)
        sys.stdout.write(visible_json(text) + "\n")
    else:
        draw(stdout())
    sys.stdout.flush()


def say(text: str) -> None:
    """Print one line of progress or warning on stderr."""
    stderr().print(text, markup=False)


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show that long work is going on, and yield a function that replaces the text."""
    console = stderr()
    if not console.is_terminal:
        console.print(f"{text} …", markup=False)
        yield lambda _: None
        return
    with console.status(Text(text)) as status:
        yield lambda now: status.update(Text(now))


@contextmanager
def training(steps: int) -> Iterator[Callable[[int, float], None]]:
    """Show a live loss line, and yield `show_step(step, loss)`, to be called after each step.

    A terminal shows every step in place; elsewhere each tenth step is one plain line. Steps are
    counted over all runs. The first loss that is not finite gets a line of its own.
    """
    console = stderr()
    first = last = -1
    diverged = False
    status: Status | None = None

    def show_step(step: int, loss: float) -> None:
        nonlocal first, last, diverged
        first = step if first < 0 else first
        end = first + steps
        progress_note = f" ({step + 1 - first} of this run)" if first else ""
        line = f"step {step + 1:>4} of {end}{progress_note}   loss {loss:.4f}"
        if status is not None:
            status.update(Text(line))
        elif step // 10 != last // 10 or step + 1 == end:
            console.print(line, markup=False)
        last = step
        if not diverged and not isfinite(loss):
            diverged = True
            console.print(
                f"millrace: the loss of step {step + 1} is {loss}: training has diverged; begin "
                f"again from an earlier state with a lower learning rate",
                markup=False,
            )

    if not console.is_terminal:
        yield show_step
        return
    with console.status(f"starting {steps} steps") as live:
        status = live
        yield show_step


def error_document(sentence: str, code: int) -> None:
    """Print the JSON document of a command that failed, with `error` and `exit_code`.

    Parameters
    ----------
    sentence : str
        What went wrong.
    code : int
        The exit code.
    """
    answer({"error": sentence, "exit_code": code}, True, lambda _: None)
