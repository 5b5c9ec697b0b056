"""Rows of the planner's benchmark: an answer's figures beside those of an earlier commit."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.planner.questions import CommandAnswer, PlannerQuestion

EARLIER = Path(__file__).parents[1] / "results" / "planner-earlier.json"
SLOWER = 1.01  # times the earlier plan's simulated step

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRow:
    """Figures of one answer that are printed, beside the earlier one's."""

    question: str
    framework: str
    wall_s: float
    cpu_s: float
    memory_bytes: int
    step_time_s: float | None
    objective_s: float | None
    bound_s: float | None
    gap: float | None
    plan: str  # in short; without one, why
    layers_s: dict[str, float]
    earlier: Document
    marks: tuple[str, ...]


def row(
    question: PlannerQuestion, framework: str, answer: CommandAnswer, earlier: Document
) -> PrintedRow:
    """Row of an answer, beside an earlier row (empty where there is none)."""
    document: Document = json.loads(answer.text) if answer.code == 0 else {}
    return PrintedRow(
        question=question.name,
        framework=framework,
        wall_s=answer.wall_s,
        cpu_s=answer.cpu_s,
        memory_bytes=answer.memory_bytes,
        step_time_s=document.get("step_time_s"),
        objective_s=document.get("objective"),
        bound_s=document.get("bound"),
        gap=document.get("gap"),
        plan=plan_text(document) if document else f"no plan: {answer.error[:200]}",
        layers_s={
            layer["name"]: layer["seconds"]
            for layer in document.get("layers", ())
            if "seconds" in layer
        },
        earlier={name: earlier.get(name) for name in ("wall_s", "gap", "step_time_s")},
        marks=tuple(_marks(question, answer, document, earlier)),
    )


def _marks(
    question: PlannerQuestion, answer: CommandAnswer, document: Document, earlier: Document
) -> Iterable[str]:
    if not document:
        yield "no plan"
    if answer.wall_s > question.bar_s:
        yield f"seconds over {question.bar_s:g}"
    if document and question.bar_gap is not None and document["gap"] > question.bar_gap:
        yield f"gap over {question.bar_gap:.0%}"
    before_s = earlier.get("step_time_s")
    if document and before_s and document["step_time_s"] > SLOWER * before_s:
        yield f"slower plan, {document['step_time_s'] / before_s - 1:+.1%}"


def plan_text(document: Document) -> str:
    """Plan in one line; a choice in which its ops disagree is `mixed`."""
    axes = " × ".join(f"{axis['name']} {axis['size']}" for axis in document["axes"])
    microbatches = document["microbatches"]
    chunks = f" of {document['interleave']} chunks" if document["interleave"] > 1 else ""
    extras = [
        f"{name} {document[name]}" for name in ("offload", "fusion") if document[name] != "none"
    ]
    return ", ".join(
        [
            f"pp {document['pp']} of {axes or 'one device'}",
            f"{microbatches} microbatches of {document['global_batch'] // microbatches}",
            f"{document['schedule']}{chunks}",
            *(f"{name} {_or_mixed(document[name])}" for name in ("zero", "recompute")),
            *extras,
            f"mfu {document['mfu']:.1%}",
        ]
    )


def _or_mixed(value: Any) -> str:
    return "mixed" if value is None else str(value)


def header(commit: str) -> str:
    """Names of the columns, with the commit of the earlier figures."""
    left = f"{'question':16}{'framework':14}" + "".join(
        f"{name:>9}" for name in ("wall s", "CPU s", "GiB", "step s", "obj s", "bound s", "gap")
    )
    return f"{left} | {commit}:" + "".join(f"{name:>9}" for name in ("wall s", "gap", "step s"))


def lines(answer_row: PrintedRow, commit: str, peer: str = "") -> list[str]:
    """Row as it is printed: its figures, the earlier ones and marks, and below what explains."""
    now = [
        f"{answer_row.wall_s:.1f}",
        f"{answer_row.cpu_s:.1f}",
        f"{answer_row.memory_bytes / 2**30:.2f}",
    ]
    now += [
        _seconds(s) for s in (answer_row.step_time_s, answer_row.objective_s, answer_row.bound_s)
    ]
    wall_s, gap, step_s = answer_row.earlier.values()
    before = ["" if wall_s is None else f"{wall_s:.1f}", _share(gap), _seconds(step_s)]
    head = f"{answer_row.question:16}{answer_row.framework:14}"
    head += "".join(f"{cell:>9}" for cell in (*now, _share(answer_row.gap)))
    head += f" | {'':{len(commit) + 1}}" + "".join(f"{cell:>9}" for cell in before)
    layers = ", ".join(f"{name} {seconds:.1f}" for name, seconds in answer_row.layers_s.items())
    below = (answer_row.plan, layers and f"seconds: {layers}", peer)
    marks = "; ".join(answer_row.marks)
    return [f"{head}  {marks}".rstrip(), *(f"    {text}" for text in below if text)]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:#.5g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def summary(rows: Sequence[PrintedRow]) -> str:
    """Line that says how many rows have which mark."""
    kinds = ("no plan", "seconds over", "gap over", "slower plan")
    counts = {
        kind: sum(any(mark.startswith(kind) for mark in row.marks) for row in rows)
        for kind in kinds
    }
    return f"{len(rows)} rows: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())


def earlier_rows(path: Path = EARLIER) -> tuple[str, dict[tuple[str, str], Document]]:
    """Commit of a file that `--json` wrote, and its rows by question and framework."""
    document = json.loads(path.read_text("utf-8"))
    rows = {(row["question"], row["framework"]): row for row in document["rows"]}
    return document["commit"], rows


def unsteady(answers: Sequence[CommandAnswer]) -> list[str]:
    """Differences between answers to one question; none where they are the same.

    Seconds of the search and of its layers are left out.
    """
    told = [f"{answer.code} {answer.error}" for answer in answers if answer.code]
    if told:
        return [f"no plan in {len(told)} of {len(answers)}: {told[0][:200]}"]
    documents = [_timeless(answer.text) for answer in answers]
    first = documents[0]
    for number, document in enumerate(documents[1:], 2):
        keys = [key for key in {**first, **document} if first.get(key) != document.get(key)]
        if json.dumps(document) != json.dumps(first):
            told.append(f"time {number} prints other {', '.join(keys) or 'order of keys'}")
        if answers[number - 1].plan != answers[0].plan:
            told.append(f"time {number} writes another plan")
    return told


def _timeless(text: str) -> Document:
    document: Document = json.loads(text)
    document.pop("search_time_s", None)
    for layer in document.get("layers", ()):
        layer.pop("seconds", None)
    return document
