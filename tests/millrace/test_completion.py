"""Completion: the shell's questions are answered with the names that begin as typed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.cli import run

TYPED = [
    ("pro", ["profile"]),
    ("plan llama3-4", ["llama3-405b"]),
    ("models llama3-4", ["llama3-405b"]),
    ("clusters h200", ["h200-sxm"]),
    ("plan gpt2-small --cluster h2", ["h20:", "h200-sxm:"]),
    ("plan gpt2-small --cluster h200", [f"h200-sxm:8x{nodes}" for nodes in (1, 2, 4, 8)]),
    ("plan gpt2-small --cluster h100:8x2", ["h100:8x2"]),
    ("plan gpt2-small --cluster local", ["local:", "local-gpu:"]),
    ("scale gpt2-small --cluster h200-sxm:8,a100:", ["h200-sxm:8,a100:8"]),
    ("scale gpt2-small --framework nano", ["nanotron"]),
    ("show plan.json --framework nano", ["nanotron"]),
    ("plan gpt2-small --schedule zb", ["zb-h1", "zb-v"]),
    ("scale gpt2-small --precision b", ["bf16"]),
    ("plan mixtral-8x7b --dispatcher all", ["alltoall", "allgather"]),
]
# Scripts that a shell keeps call the program by its name.
PROGRAM = f'#!/bin/sh\nexec {sys.executable} -m millrace "$@"\n'


@pytest.fixture
def answered(monkeypatch, capsys) -> Callable[..., str]:
    """Return what the program answers to the question of a shell."""

    def answer(**question: str) -> str:
        with monkeypatch.context() as patch:
            for name, value in question.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                run([])
        assert ended.value.code in (0, None)
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return answer


@pytest.fixture
def beside_program(tmp_path: Path) -> dict[str, str]:
    """Environment in which the program is called by its name."""
    program = tmp_path / "millrace"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def test_names_and_closed_words_complete(answered: Callable[..., str]) -> None:
    """Each shell asks, and is answered, in a form of its own."""
    wrong = []
    for typed, offered in TYPED:
        words = ["millrace", *typed.split()]
        place = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
        line = " ".join(words)
        fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
        rows = answered(_MILLRACE_COMPLETE="complete_fish", **fish).splitlines()
        text = answered(_MILLRACE_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
        names = re.findall(r'"((?:[^"\\]|\\.)+)"(?::"[^"]*")?', text)
        answers = {
            "bash": answered(_MILLRACE_COMPLETE="complete_bash", **place).split(),
            "fish": [row.partition("\t")[0] for row in rows],
            "zsh": [name.replace("\\", "") for name in names],
        }
        wrong += [(typed, shell, got) for shell, got in answers.items() if got != offered]
    assert wrong == []


def test_bash_completes_by_the_script_that_is_shown(beside_program: dict[str, str]) -> None:
    script = (
        'eval "$(_MILLRACE_COMPLETE=source_bash millrace)"\n'
        "complete -p millrace\n"
        "COMP_WORDS=(millrace plan llama3-4) COMP_CWORD=2\n"
        '_millrace_completion millrace; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=beside_program, capture_output=True, text=True, check=True
    )
    entered, *names = done.stdout.splitlines()
    assert entered.endswith("-F _millrace_completion millrace")
    assert names == ["llama3-405b"]


@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish")
def test_fish_completes_by_the_script_that_is_shown(beside_program: dict[str, str]) -> None:
    script = (
        "env _MILLRACE_COMPLETE=source_fish millrace | source\n"
        "complete -C 'millrace plan llama3-4'\n"
    )
    done = subprocess.run(
        ["fish", "-c", script], env=beside_program, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["llama3-405b"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh")
def test_zsh_completes_by_the_script_that_is_shown(beside_program: dict[str, str]) -> None:
    script = (
        "autoload -Uz compinit; compinit -u -D\n"
        "source =(_MILLRACE_COMPLETE=source_zsh millrace)\n"
        "_arguments() { print -r -- $2 $1 }\n"
        "words=(millrace plan llama3-4) CURRENT=3\n"
        "_millrace_completion\n"
    )
    done = subprocess.run(
        ["zsh", "-f", "-c", script], env=beside_program, capture_output=True, text=True, check=True
    )
    assert "llama3-405b" in done.stdout
