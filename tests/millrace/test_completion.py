"""Completion: the shell's questions are answered with the names that begin as typed."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pro", ["profile"]),
        ("plan llama3-4", ["llama3-405b"]),
        ("plan gpt2-small --cluster h200", ["h200-sxm:"]),
        ("plan gpt2-small --cluster local", ["local:", "local-gpu:"]),
        ("scale gpt2-small --framework nano", ["nanotron"]),
        ("plan gpt2-small --schedule zb", ["zb-h1", "zb-v"]),
        ("scale gpt2-small --precision b", ["bf16"]),
    ],
)
def test_names_and_closed_words_complete(typed: str, offered: list[str]) -> None:
    words = ["millrace", *typed.split()]
    asked = {
        "_MILLRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    command = [sys.executable, "-c", "from millrace.cli import main; main()"]
    done = subprocess.run(
        command, env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == offered
