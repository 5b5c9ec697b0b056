"""Signals that ask a command to end: one sentence, one document, the exit code of the signal."""

import json
import signal
import subprocess
import sys
from time import sleep

import pytest

from tests.executor.sources import ROOT

LONG = ("llama3-70b", "--cluster", "h100-sxm-80gb:8x32", "--global-batch", "512", "--json")
SHORT = ("gpt-demo", "--cluster", "h100-sxm-80gb:2x1", "--global-batch", "8", "--json")


def signalled(
    number: signal.Signals, *arguments: str, ignored: bool = False
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `plan`, told to end when it has begun to work."""
    hangup = "signal.SIG_IGN" if ignored else "signal.SIG_DFL"
    code = (
        f"import signal; signal.signal(signal.SIGHUP, {hangup})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from millrace.cli import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "plan", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        for _ in range(1 if ignored else 9):  # impatience changes nothing
            process.send_signal(number)
            sleep(0.02)
        out, error = process.communicate()
        return process.returncode, out, error


@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        (signal.SIGHUP, 129, "ended by SIGHUP"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_a_command_that_is_told_to_end_says_so(
    number: signal.Signals, code: int, sentence: str
) -> None:
    exit_code, out, error = signalled(number, *LONG)
    assert exit_code == code
    assert error == f"millrace: {sentence}\n"
    assert json.loads(out) == {"error": sentence, "exit_code": code}


def test_a_terminal_that_closes_does_not_end_what_was_started_under_nohup() -> None:
    code, out, _ = signalled(signal.SIGHUP, *SHORT, ignored=True)
    assert code == 0
    assert json.loads(out)["dp"]
