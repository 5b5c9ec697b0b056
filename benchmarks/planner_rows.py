"""Rows of the planner's benchmark: an answer's figures beside those of an earlier commit."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.planner_questions import Answer, Question

EARLIER = Path(__file__).parent / "results" / "planner-earlier.json"
SLOWER = 1.01  # times the earlier plan's simulated step

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is printed of one answer, beside the earlier one."""

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


def row(question: Question, framework: str, answer: Answer, earlier: Document) -> Row:
    """The figures of an answer beside an earlier row (empty where there is none)."""
    found: Document = json.loads(answer.text) if answer.code == 0 else {}
    return Row(
        question=question.name,
        framework=framework,
        wall_s=answer.wall_s,
        cpu_s=answer.cpu_s,
        memory_bytes=answer.memory_bytes,
        step_time_s=found.get("step_time_s"),
        objective_s=found.get("objective"),
        bound_s=found.get("bound"),
        gap=found.get("gap"),
        plan=plan_text(found) if found else f"no plan: {answer.error[:200]}",
        layers_s={
            one["name"]: one["seconds"] for one in found.get("layers", ()) if "seconds" in one
        },
        earlier={name: earlier.get(name) for name in ("wall_s", "gap", "step_time_s")},
        marks=tuple(_marks(question, answer, found, earlier)),
    )


def _marks(question: Question, answer: Answer, found: Document, earlier: Document) -> Iterable[str]:
    if not found:
        yield "no plan"
    if answer.wall_s > question.bar_s:
        yield f"seconds over {question.bar_s:g}"
    if found and question.bar_gap is not None and found["gap"] > question.bar_gap:
        yield f"gap over {question.bar_gap:.0%}"
    before_s = earlier.get("step_time_s")
    if found and before_s and found["step_time_s"] > SLOWER * before_s:
        yield f"slower plan, {found['step_time_s'] / before_s - 1:+.1%}"


def plan_text(found: Document) -> str:
    """A plan in one line; a choice in which its ops disagree is `mixed`."""
    axes = " × ".join(f"{axis['name']} {axis['size']}" for axis in found["axes"])
    microbatches = found["microbatches"]
    chunks = f" of {found['interleave']} chunks" if found["interleave"] > 1 else ""
    extras = [f"{name} {found[name]}" for name in ("offload", "fusion") if found[name] != "none"]
    return ", ".join(
        [
            f"pp {found['pp']} of {axes or 'one device'}",
            f"{microbatches} microbatches of {found['global_batch'] // microbatches}",
            f"{found['schedule']}{chunks}",
            *(f"{name} {_or_mixed(found[name])}" for name in ("zero", "recompute")),
            *extras,
            f"mfu {found['mfu']:.1%}",
        ]
    )


def _or_mixed(value: Any) -> str:
    return "mixed" if value is None else str(value)


def header(commit: str) -> str:
    """The names of the columns, with the commit of the earlier figures."""
    left = f"{'question':16}{'framework':14}" + "".join(
        f"{name:>9}" for name in ("wall s", "CPU s", "GiB", "step s", "obj s", "bound s", "gap")
    )
    return f"{left} | {commit}:" + "".join(f"{name:>9}" for name in ("wall s", "gap", "step s"))


def lines(one: Row, commit: str, peer: str = "") -> list[str]:
    """A row as it is printed: its figures, the earlier ones and marks, and below what explains."""
    now = [f"{one.wall_s:.1f}", f"{one.cpu_s:.1f}", f"{one.memory_bytes / 2**30:.2f}"]
    now += [_seconds(s) for s in (one.step_time_s, one.objective_s, one.bound_s)]
    wall_s, gap, step_s = one.earlier.values()
    before = ["" if wall_s is None else f"{wall_s:.1f}", _share(gap), _seconds(step_s)]
    head = f"{one.question:16}{one.framework:14}"
    head += "".join(f"{cell:>9}" for cell in (*now, _share(one.gap)))
    head += f" | {'':{len(commit) + 1}}" + "".join(f"{cell:>9}" for cell in before)
    layers = ", ".join(f"{name} {seconds:.1f}" for name, seconds in one.layers_s.items())
    below = (one.plan, layers and f"seconds: {layers}", peer)
    marks = "; ".join(one.marks)
    return [f"{head}  {marks}".rstrip(), *(f"    {text}" for text in below if text)]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:#.5g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def bounds_header() -> str:
    """The names of the columns of `bounds_line`."""
    names = ("step s", "obj s", "ranked s", "gap", "proven s", "gap", "step gap", "seconds")
    left = f"{'question':16}{'framework':14}" + "".join(f"{name:>9}" for name in names)
    return f"{left}  programs"


def bounds_line(question: str, framework: str, found: Document) -> str:
    """A plan's step and cost, with the bounds of ranking and of cuts and the gaps to them.

    The last gap is that of the simulated step; programs are those of blocks, and linear ones.
    """
    layers = {one["name"]: one for one in found["layers"]}
    ranked, proof = layers["shapes"], layers["proof"]
    step_s, objective_s = found["step_time_s"], found["objective"]
    cells = [_seconds(s) for s in (step_s, objective_s, ranked["bound_s"])]
    cells += [_share(ranked["gap"]), _seconds(proof["bound_s"]), _share(proof["gap"])]
    cells += [_share(step_s / proof["bound_s"] - 1), f"{proof['seconds']:.1f}"]
    programs = f"{proof['block_programs']:,} + {proof['linear_programs']:,}"
    return f"{question:16}{framework:14}" + "".join(f"{one:>9}" for one in cells) + f"  {programs}"


def summary(rows: Sequence[Row]) -> str:
    """How many rows have which mark."""
    kinds = ("no plan", "seconds over", "gap over", "slower plan")
    counts = {
        kind: sum(any(mark.startswith(kind) for mark in one.marks) for one in rows)
        for kind in kinds
    }
    return f"{len(rows)} rows: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())


def earlier_rows(path: Path = EARLIER) -> tuple[str, dict[tuple[str, str], Document]]:
    """The commit of a file that `--json` wrote, and its rows by question and framework."""
    document = json.loads(path.read_text("utf-8"))
    rows = {(one["question"], one["framework"]): one for one in document["rows"]}
    return document["commit"], rows


def unsteady(answers: Sequence[Answer]) -> list[str]:
    """What differs between answers to one question; nothing where they are the same.

    Seconds of the search and of its layers are left out.
    """
    told = [f"{one.code} {one.error}" for one in answers if one.code]
    if told:
        return [f"no plan in {len(told)} of {len(answers)}: {told[0][:200]}"]
    documents = [_timeless(one.text) for one in answers]
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
