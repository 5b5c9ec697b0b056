"""Output of a command: its answer on stdout, as text or as one JSON document, the rest on stderr.

Progress and warnings go to stderr whatever the form of the answer, so that a script can always read
stdout. On a terminal long work is one line that is rewritten; elsewhere lines are plain and few.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.stdio import visible_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout and nothing else."),
]


def answer(document: Mapping[str, Any], as_json: bool, draw: "Callable[[Console], None]") -> None:
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
    import msgspec

    from millrace.tables.console import stdout

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
    from millrace.tables.console import stderr

    stderr().print(text, markup=False)


@contextmanager
def working(text: str = "") -> Iterator[Callable[[str], None]]:
    """Show that long work is going on, and yield a function that says what it is about now.

    A terminal shows a line with the seconds so far; elsewhere what is said is printed every ten
    seconds, from the first on where there is no text. What a forked child says is not shown.
    """
    from millrace.tables.console import stderr
    from millrace.tables.progress import ProgressLine, ProgressLog

    console = stderr()
    process = os.getpid()
    line: ProgressLine | ProgressLog

    def tell(now: str) -> None:
        if os.getpid() == process:
            line.tell(now)

    if console.is_terminal:
        line = ProgressLine(text=text)
        with console.status(line):
            yield tell
    else:
        line = ProgressLog(console=console, text=text)
        yield tell


@contextmanager
def training(steps: int) -> Iterator[Callable[[int, float], None]]:
    """Show a live loss line, and yield `show_step(step, loss)`, to be called after each step.

    A terminal shows every step in place; elsewhere each tenth step is one plain line. Steps are
    counted over all runs. The first loss that is not finite gets a line of its own.
    """
    from rich.text import Text

    from millrace.tables.console import stderr

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
