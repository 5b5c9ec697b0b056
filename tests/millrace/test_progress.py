"""Progress: a line that a terminal rewrites, and few plain lines elsewhere."""

import io
import os
import re
from contextlib import suppress

from rich.console import Console
from rich.spinner import Spinner

import millrace
from millrace.output import working
from millrace.tables.console import PlainConsole
from millrace.tables.progress import ProgressLine, ProgressLog


def test_plain_lines_are_ten_seconds_apart() -> None:
    times = iter([0.0, 1.0, 9.9, 10.0, 19.0, 31.4])
    console = Console(file=io.StringIO())
    log = ProgressLog(console=console, text="planning", clock=lambda: next(times))
    for number in range(5):
        log.tell(f"part {number}")
    assert console.file.getvalue() == "planning …\n10 s  part 2\n31 s  part 4\n"


def test_without_a_text_the_first_thing_that_is_told_is_the_first_line() -> None:
    console = Console(file=io.StringIO())
    log = ProgressLog(console=console, text="", clock=lambda: 0.0)
    log.tell("part 0")
    log.tell("part 1")
    assert console.file.getvalue() == "0 s  part 0\n"


def test_a_line_has_the_seconds_so_far_and_ends_where_the_terminal_does() -> None:
    times = iter([3.0, *[15.2] * 9])
    line = ProgressLine(text="planning", clock=lambda: next(times))
    line.tell("solving up to candidate 48 of 452, best step 15.3 s")
    console = Console(file=io.StringIO(), width=40)
    console.print(Spinner("dots", text=line))
    (drawn,) = console.file.getvalue().splitlines()
    assert drawn == "⠋ 12 s  solving up to candidate 48 of 4…"


def test_an_interrupt_leaves_no_line_behind(capsys, monkeypatch) -> None:
    monkeypatch.setattr(PlainConsole, "is_terminal", True)
    with suppress(KeyboardInterrupt), working("planning") as told:
        told("solving")
        raise KeyboardInterrupt
    captured = capsys.readouterr()
    assert captured.out == ""
    # The cursor is shown again, and the line is cleared.
    assert captured.err.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_what_a_forked_child_says_is_not_printed(capfd) -> None:
    with working() as told:
        if not (child := os.fork()):
            told("from the child")
            os._exit(0)
        os.waitpid(child, 0)
        told("from the parent")
    assert capfd.readouterr().err == "0 s  from the parent\n"


def test_a_search_tells_its_phases_the_number_of_candidates_and_the_best_step() -> None:
    lines: list[str] = []
    millrace.plan("gpt-demo", "h100:4x1", global_batch=16, progress=lines.append)
    assert lines[0].startswith("bounding ")
    assert any(re.fullmatch(r"\d+ of \d+ candidates are open, best step .*, gap .* %", line)
               for line in lines)  # fmt: skip
    assert any(line.startswith("simulating ") for line in lines)
