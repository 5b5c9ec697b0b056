"""Questions to the planner, each a command of its own that is timed from typing to printing."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import IO

WHOLE_SPACE = "any"  # the framework that can run all there is
MIXED = "mixed.toml"
MIXED_TOML = """\
name = "mixed"
[[groups]]
device = "h100-sxm-80gb"
nodes = 4
[[groups]]
device = "a100-sxm-80gb"
nodes = 8
"""


@dataclass(frozen=True, slots=True)
class PlannerQuestion:
    """Command, with the seconds and the gap it should take at most, and what peers take."""

    name: str
    arguments: str
    bar_s: float
    bar_gap: float | None = None
    peer: str = ""


QUESTIONS = (
    PlannerQuestion(
        "llama2-7b",
        "llama2-7b --cluster a100-sxm-80gb:8x1 --global-batch 64 --seq-len 4096",
        4.0,
        0.02,
    ),
    PlannerQuestion(
        "gpt3-13b",
        "gpt3-13b --cluster a100-sxm-80gb:8x8 --global-batch 512 --seq-len 2048",
        4.0,
        0.02,
    ),
    PlannerQuestion(
        "llama3-70b",
        "llama3-70b --cluster h100-sxm-80gb:8x32 --global-batch 512 --seq-len 8192",
        8.0,
        0.03,
    ),
    PlannerQuestion(
        "gpt3-175b",
        "gpt3-175b --cluster a100-sxm-80gb:8x128 --global-batch 1536 --seq-len 2048",
        8.0,
        0.02,
    ),
    PlannerQuestion(
        "llama3-405b",
        "llama3-405b --cluster h100-sxm-80gb:8x2048 --global-batch 2048 --seq-len 8192",
        30.0,
        0.03,
    ),
    PlannerQuestion(
        "mixtral-8x7b",
        "mixtral-8x7b --cluster a100-sxm-80gb:8x8 --global-batch 512 --seq-len 4096",
        10.0,
        0.05,
    ),
    PlannerQuestion(
        "deepseek-v3",
        "deepseek-v3 --cluster h100-sxm-80gb:8x256 --global-batch 15360 --seq-len 4096",
        30.0,
        0.08,
    ),
    PlannerQuestion(
        "mixed",
        f"llama3-70b --cluster {MIXED} --global-batch 512 --seq-len 8192",
        20.0,
        0.08,
    ),
    PlannerQuestion(
        "llama2-7b-38GiB",
        "llama2-7b --cluster a100-sxm-40gb:8x1 --memory-limit 38GiB --global-batch 64 "
        "--seq-len 2048",
        3.0,
        peer="Galvatron-2: 247 CPU-s",
    ),
    PlannerQuestion(
        "gpt3-13b-v100",
        "gpt3-13b --cluster v100-sxm-32gb:8x4 --precision fp16 --global-batch 1024 --seq-len 2048",
        5.0,
        peer="Aceso: a budget of 200 s; Alpa: 4,179-12,821 s",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """Answer of a command: what it printed, the plan's file, and what it took."""

    code: int
    text: str
    error: str  # the last line of stderr
    plan: bytes
    wall_s: float
    cpu_s: float
    memory_bytes: int  # of its largest process


def arguments(question: PlannerQuestion, framework: str) -> list[str]:
    """Arguments of `millrace plan` for a question, under a framework."""
    return [*question.arguments.split(), "--framework", framework]


def ask(asked: Sequence[str], folder: Path, hash_seed: int = 0) -> CommandAnswer:
    """Answer of `millrace plan`, in a process of its own.

    Parameters
    ----------
    asked : sequence of str
        Arguments of the question; `--json` and where to write the plan are added.
    folder : Path
        Where the plan is written; a cluster that is named MIXED is read from here.
    hash_seed : int
        Of the hashes of Python, and so of the order of its sets.
    """
    written = folder / "plan.json"
    written.unlink(missing_ok=True)
    (folder / MIXED).write_text(MIXED_TOML, "utf-8")
    given = [str(folder / MIXED) if argument == MIXED else argument for argument in asked]
    if "--precision" not in given:
        given += ["--precision", "bf16"]
    with TemporaryFile() as out, TemporaryFile() as err:
        began = perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace", "plan", *given, "--json", "-o", str(written)],
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        )
        _, status, used = os.wait4(process.pid, 0)  # its own alone, not of all commands so far
        wall_s = perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        text, error = (_all_of(stream) for stream in (out, err))
    return CommandAnswer(
        code=process.returncode,
        text=text,
        error=(error.strip().splitlines() or [""])[-1],
        plan=written.read_bytes() if written.exists() else b"",
        wall_s=wall_s,
        cpu_s=used.ru_utime + used.ru_stime,
        memory_bytes=used.ru_maxrss * 2**10,
    )


def _all_of(stream: IO[bytes]) -> str:
    stream.seek(0)
    return str(stream.read(), "utf-8")
