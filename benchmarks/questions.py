"""Forty questions as people type them: what Millrace answers today, beside what was judged of it.

Run `python -m benchmarks.questions [WORD...] [--processes P]` from the root of the repository: all
questions of `benchmarks/questions.toml` whose command has all the words. Each is a command of its
own. A line has the answer in short and the seconds it took, then what was judged of the answer when
it was read and, where published figures bound it, whether it lies within (`as judged`) or not
(`judge again`). Answers are also written to `benchmarks/results/questions.json`.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import msgspec
import typer

from millrace.planner.worker_processes import map_in_processes

QUESTIONS = Path(__file__).with_suffix(".toml")
RESULTS = Path(__file__).parent / "results" / "questions.json"
PATIENCE_S = 900.0
ROLES = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "schedule", "interleave", "recompute")
USUAL = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "interleave": 1}


class AskedQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Question as typed, what was judged of its answer, and bounds that published figures give.

    `within` has the least and the greatest value of fields of the answer's JSON document.
    """

    ask: str
    judged: str
    within: dict[str, tuple[float, float]] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer in short: exit code, text, seconds, and the bounded fields."""

    ask: str
    code: int
    text: str
    seconds: float
    fields: dict[str, float | None] = {}


def questions(words: tuple[str, ...] = ()) -> tuple[AskedQuestion, ...]:
    """Questions of the file whose command has all the words."""
    document = msgspec.toml.decode(
        QUESTIONS.read_text("utf-8"), type=dict[str, tuple[AskedQuestion, ...]]
    )
    return tuple(
        question
        for question in document["questions"]
        if all(word in question.ask for word in words)
    )


def answered(question: AskedQuestion) -> Answer:
    """Answer to a question, by a command of its own."""
    command = [sys.executable, "-m", "millrace", *shlex.split(question.ask), "--json"]
    began = perf_counter()
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"no answer within {PATIENCE_S:.0f} s"
        return Answer(ask=question.ask, code=-1, text=text, seconds=PATIENCE_S)
    seconds = perf_counter() - began
    if run.returncode:
        message = run.stderr.strip().splitlines()
        text = " / ".join(message[-2:]) if message else "no word"
        return Answer(ask=question.ask, code=run.returncode, text=text, seconds=seconds)
    document = json.loads(run.stdout)
    return Answer(
        ask=question.ask,
        code=0,
        text=short(document),
        seconds=seconds,
        fields={name: document.get(name) for name in question.within}
        if isinstance(document, dict)
        else {},
    )


def short(document: Any) -> str:
    """Answer of `plan`, `scale` or `recommend` in a line."""
    if isinstance(document, list):
        return "; ".join(short(row) for row in document)
    if "rows" in document:  # of a sweep, with or without a recommendation
        chosen = document.get("recommendation") or {}
        names = ", ".join(f"{key}: {_named(value)}" for key, value in chosen.items() if value)
        return "; ".join([*([names] if names else []), short(document["rows"])])
    roles = [
        f"{name.replace('_', '-')} {document[name]}"
        for name in ROLES
        if name in document and document[name] not in (None, USUAL.get(name))
    ]
    mixed = [f"{name} mixed" for name in document.get("mixed") or ()]
    where = [f"{document['devices']} devices"] if "devices" in document else []
    step = document.get("step_time_s")
    if step is None:
        return f"{', '.join(where)}: {document.get('reason', 'no plan')}"
    figures = [f"{step:.3g} s"]
    if document.get("mfu") is not None:
        figures.append(f"mfu {document['mfu']:.1%}")
    if document.get("tflops_per_gpu") is not None:
        figures.append(f"{document['tflops_per_gpu']:.0f} TFLOP/s")
    if document.get("memory_bytes_max"):
        figures.append(f"{document['memory_bytes_max'] / 2**30:.1f} GiB")
    return f"{', '.join([*where, *roles, *mixed])}: {', '.join(figures)}"


def _named(value: Any) -> str:
    return f"{value.get('devices')} devices" if isinstance(value, Mapping) else str(value)


def verdict(question: AskedQuestion, answer: Answer) -> str:
    """Words that say which bounded fields of an answer lie beyond their bounds, if any do."""
    outside = [
        f"{name} {answer.fields.get(name)} beyond {low:g} to {high:g}"
        for name, (low, high) in question.within.items()
        if not low <= (answer.fields.get(name) or 0.0) <= high
    ]
    return f"judge again: {'; '.join(outside)}" if outside else "as judged"


def main(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    processes: int = os.cpu_count() or 1,
) -> None:
    """Ask, print and write the answers."""
    asked = questions(tuple(words or ()))
    answers: list[Answer] = []
    for question, answer in zip(asked, map_in_processes(answered, asked, processes), strict=True):
        answers.append(answer)
        code = f" (exit {answer.code})" if answer.code else ""
        print(f"{len(answers):2d} millrace {question.ask}")
        print(f"   {answer.text}{code} [{answer.seconds:.0f} s]")
        print(f"   {verdict(question, answer)}: {question.judged}", flush=True)
    odd = sum(verdict(*pair) != "as judged" for pair in zip(asked, answers, strict=True))
    print(f"{len(answers)} questions, {odd} to judge again")
    if not words:
        RESULTS.write_text(json.dumps(msgspec.to_builtins(answers), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
