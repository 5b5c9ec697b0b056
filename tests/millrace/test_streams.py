"""Stdout and stderr as shells leave them: closed, full, read by nobody, of few letters."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from millrace.output import say, training, working
from millrace.stdio import Asides, CheckedStdout, NobodyReadsError, visible, visible_json
from millrace.tables.console import PlainConsole, stdout

ROOT = Path(__file__).resolve().parents[2]
FULL = "cannot write to stdout: no space left on device"
# Each command line of a shell has an exit code and what is said on stderr, where that is left.
SHELLS = {
    "models mlp --json > /dev/full": (3, FULL),
    "--help > /dev/full": (3, FULL),
    "models mlp | true": (0, ""),
    "--help | true": (0, ""),
    "models mlp >&-": (0, ""),
    "models nothing 2> >(true)": (2, ""),
    "plan mlp --cluster a100-sxm-80gb:1x1 --global-batch 8 -o /dev/full": (
        3,
        "cannot write `/dev/full`: no space left on device",
    ),
}


def test_every_state_of_stdout_and_stderr_ends_as_the_contract_says():
    """Start all at once, since each is a process and starting it takes the time."""
    started = []
    for line in SHELLS:
        arguments, mark, rest = line.partition(" |")
        command = f"{sys.executable} -m millrace {arguments}{mark}{rest}"
        started.append(
            subprocess.Popen(
                ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for process, (line, (code, said)) in zip(started, SHELLS.items(), strict=True):
        _, err = process.communicate(timeout=60)
        assert (line, process.returncode) == (line, code)
        assert said in err
        assert "Traceback" not in err
        assert "Exception ignored" not in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_stdout_has_not_are_escaped_and_json_stays_json(encoding: str):
    completed = subprocess.run(
        [sys.executable, "-m", "millrace", "clusters", "--json"],
        cwd=ROOT,
        env={"PYTHONIOENCODING": encoding, "PATH": ""},
        capture_output=True,
        check=True,
    )
    rows = json.loads(completed.stdout.decode(encoding))["rows"]
    assert len(rows) > 20


class Broken(io.StringIO):
    """A stream of which nobody reads the other end."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_stderr_that_nobody_reads_ends_nothing_and_stdout_says_so():
    assert Asides(Broken()).write("step 1") == 6
    with pytest.raises(NobodyReadsError):
        CheckedStdout(Broken()).write("answer")
    with pytest.raises(NobodyReadsError):
        CheckedStdout(Broken()).flush()


def test_names_that_would_steer_a_terminal_are_shown():
    assert visible("a\x1b[31mb\x9b\u202e\x00\nµ\t") == r"a\x1b[31mb\x9b\u202e\x00" + "\nµ\t"
    table = Table("name\x1b]0;title\x07")
    table.add_row("\x1b[2J")
    written = io.StringIO()
    console = PlainConsole(file=written, force_terminal=True, width=80)
    console.print(table)
    console.out("\x1b[1m")
    assert r"\x1b]0" in written.getvalue()
    assert "\x1b]" not in written.getvalue()
    assert "\x1b[2J" not in written.getvalue()


def test_brackets_in_names_are_no_markup(capsys, monkeypatch):
    """Print on a terminal as well, where progress is a spinner."""
    name = "[/x] [bold]"
    table = Table(name)
    table.add_row(name)
    stdout().print(table)
    stdout().print(name)
    say(name)
    monkeypatch.setattr("millrace.tables.console.PlainConsole.is_terminal", True)
    with working(name) as told:
        told(name)
    with training(3) as told_step:
        told_step(0, 1.0)
    captured = capsys.readouterr()
    assert captured.out.count(name) == 3
    assert captured.err.count(name) >= 1


def test_json_shows_such_names_and_means_the_same():
    text = json.dumps({"name": "a\x9b\u202e\x7f"}, ensure_ascii=False)
    assert visible_json(text) == r'{"name": "a\u009b\u202e\u007f"}'
    assert json.loads(visible_json(text)) == json.loads(text)


def test_an_error_shows_the_name_that_it_is_about(call):
    for more in ((), ("--json",)):
        code, out, err = call("show", "a\x1b[31m\udcff.json", *more)
        assert code == 2
        assert r"`a\x1b[31m" in err
        assert "\x1b" not in err + out
        if more:
            assert json.loads(out)["exit_code"] == 2
