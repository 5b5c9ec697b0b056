"""Seconds, memory and gaps of the planner, and whether its plans got slower.

Run `python -m benchmarks.planner [NAME…] [--framework NAME] [--json FILE]` from the root of the
repository; a name is that of a question, `peers`, `mesh` or `depth`.

Every question is a command of its own, `millrace plan … --json`, timed from typing to printing, and
asked once with `--framework any` and once with `--framework megatron-core`. A row tells its wall
and processor seconds, the memory of its largest process, the simulated step of the plan, the
objective, its bound and the gap between them; then wall seconds, gap and step of an earlier commit
(`benchmarks/results/planner-earlier.json`, itself what `--json` once wrote). Marked is what is over
the question's bar of seconds or of the gap, and a plan that is slower than the earlier one. Below
stand the plan and the seconds of every layer. A question without a plan makes it exit with 1.

`peers` are questions that other planners have answered, whose times are quoted. Two more are asked
in this process: `mesh`, the block program of Llama-3 8B on a mesh of 8 × 8, beside the integer
program that HiGHS is given whole, and `depth`, how layers enter (96 against 12).

`python -m benchmarks.planner --repeat N [NAME…]` asks each question N times instead, every time
with another seed of Python's hashes, and says whether what is printed (but for its seconds) and the
plan's file are the same, byte for byte; if not, it exits with 1.

`python -m benchmarks.planner --figures [--quick] [NAME…]` asks each question free and with every
schedule pinned, and prints of every plan that is compiled the search's cost and memory beside the
laid-out memory and the simulated step; `--random N` does so for N questions drawn from other models
and clusters, and `--alive` prints, of three questions, the activations that are laid out beside
those that are alive at once in a step. `--pins` asks every question under textbook pins, and exits
with 1 where one of them gives a plan that is faster than the free one by more than half a percent.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated

import typer

from benchmarks.planner.answers import (
    Document,
    PrintedRow,
    earlier_rows,
    header,
    lines,
    row,
    summary,
    unsteady,
)
from benchmarks.planner.figures import (
    GIB,
    FrameworkQuestion,
    alive_bytes,
    drawn_questions,
    faster_pins,
    figures_header,
    figures_line,
    figures_summary,
    pinned_steps,
    pins_text,
    question_rows,
    quick_questions,
    scheduled_questions,
)
from benchmarks.planner.questions import QUESTIONS, WHOLE_SPACE, PlannerQuestion, arguments, ask
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.clusters import framework as software
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import ClusterError
from millrace.planner.search import Pins, SearchRequest, search

FRAMEWORKS = (WHOLE_SPACE, "megatron-core")
DEPTHS = (12, 96)
IN_PROCESS = ("mesh", "depth")


def chosen(names: Sequence[str]) -> list[PlannerQuestion]:
    """Questions of the names, all where there are none.

    Raises
    ------
    typer.BadParameter
        A name is of no row.
    """
    names_of_rows = {question.name for question in QUESTIONS} | {"peers", *IN_PROCESS}
    for name in names:
        if name not in names_of_rows:
            raise typer.BadParameter(
                f"there is no row `{name}`: {', '.join(sorted(names_of_rows))}"
            )
    return [
        question
        for question in QUESTIONS
        if not names or question.name in names or (question.peer and "peers" in names)
    ]


def asked_of(framework: str) -> tuple[str, ...]:
    """Frameworks that a question is asked under: one that is named, else both.

    Raises
    ------
    typer.BadParameter
        There is no such framework.
    """
    if not framework:
        return FRAMEWORKS
    try:
        software(framework)
    except ClusterError as error:
        raise typer.BadParameter(str(error)) from None
    return (framework,)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _timed(
    questions: Sequence[PlannerQuestion], frameworks: Sequence[str], folder: Path
) -> list[PrintedRow]:
    """Print the row of every question, and return all rows."""
    commit, before = earlier_rows()
    rows = []
    print(header(commit))
    for question in questions:
        for framework in frameworks:
            answer = ask(arguments(question, framework), folder)
            earlier = before.get((question.name, framework), {})
            rows.append(row(question, framework, answer, earlier))
            print("\n".join(lines(rows[-1], commit, question.peer)), flush=True)
    print(summary(rows))
    return rows


def _repeated(
    questions: Sequence[PlannerQuestion], frameworks: Sequence[str], times: int, folder: Path
) -> list[Document]:
    """Print whether every question has the same answer every time."""
    repeats = []
    for question in questions:
        for framework in frameworks:
            asked = arguments(question, framework)
            told = unsteady([ask(asked, folder, hash_seed) for hash_seed in range(times)])
            repeats.append({"question": question.name, "framework": framework, "times": times})
            repeats[-1]["differences"] = told
            text = "; ".join(told) or "the same bytes"
            print(f"{question.name:16}{framework:14} {times} times: {text}", flush=True)
    return repeats


def _figures(searches: Iterable[FrameworkQuestion], folder: Path) -> list[Document]:
    """Print the figures of every plan that the searches compile."""
    rows = []
    print(figures_header())
    for asked in searches:
        for plan_row in question_rows(asked, folder):
            rows.append(plan_row)
            print(figures_line(plan_row), flush=True)
    print(figures_summary(rows))
    return [asdict(plan_row) for plan_row in rows]


def _alive(searches: Iterable[FrameworkQuestion], folder: Path) -> list[Document]:
    """Print what every plan lays out for activations beside what is alive of it at once."""
    rows: list[Document] = []
    for asked in searches:
        text = f"{asked.question.name:16} {asked.framework:13} {pins_text(asked.pins):31}"
        if sizes := alive_bytes(asked, folder):
            laid_out, alive = sizes
            rows.append(asdict(asked) | {"laid_out_bytes": laid_out, "alive_bytes": alive})
            print(
                f"{text}laid out {laid_out / GIB:7.2f} GiB, alive at once {alive / GIB:7.2f} GiB, "
                f"{laid_out / alive - 1:+.1%}",
                flush=True,
            )
    beyond = [row["laid_out_bytes"] / row["alive_bytes"] - 1 for row in rows] or [0.0]
    print(f"alive: {len(rows)} plans, mean {fmean(beyond):.1%}, worst {max(beyond):.1%}")
    return rows


def _pins(
    questions: Sequence[PlannerQuestion], frameworks: Sequence[str], folder: Path
) -> list[Document]:
    """Print the simulated steps of every question's free plan and of those under pins."""
    answers: list[Document] = []
    for question in questions:
        for framework in frameworks:
            steps = list(pinned_steps(question, framework, folder))
            faster = faster_pins(steps)
            answers.append({"question": question.name, "framework": framework})
            answers[-1] |= {"steps_s": dict(steps), "faster": faster}
            print(f"{question.name:16}{framework:14} {'; '.join(faster) or 'no pin is faster'}")
            told = (f"{text} {'none' if s is None else f'{s:#.5g}'}" for text, s in steps)
            print(f"    {', '.join(told)}", flush=True)
    return answers


def _mesh() -> Document:
    """Time operator-level sharding on one mesh, whole proof, from graph to plan, and print it."""
    spec = model_spec("llama3-8b", seq_len=8192, precision="bf16")
    cluster = parse_cluster("h100-sxm-80gb:8x8")
    began = perf_counter()
    plan = search(
        SearchRequest(
            model=spec,
            training=TrainingSpec(),
            cluster=cluster,
            global_batch=64,
            pins=Pins(pp=1, schedule="1f1b"),
            max_gap=1e-4,
        )
    )
    seconds = perf_counter() - began
    assert plan.evidence is not None
    sizes = " × ".join(str(axis.size) for axis in plan.mesh.axes)
    print(
        f"llama3-8b, one stage of 64: best mesh {sizes}, {plan.microbatches} microbatches, "
        f"gap {plan.evidence.gap:.2%} over {plan.evidence.candidates} meshes and microbatches, "
        f"{seconds:.1f} s (AutoParallel, mesh 8 × 8 alone: 262 s build + 174 s solve)"
    )
    return {"mesh": sizes, "gap": plan.evidence.gap, "wall_s": seconds}


def _depth() -> list[Document]:
    """Time the same search for few layers and for many, and print what layers cost."""
    depths: list[Document] = []
    for layers in DEPTHS:
        spec = model_spec("gpt3-175b", seq_len=2048, precision="bf16")
        config = {**spec.config, "layers": layers}
        request = SearchRequest(
            model=type(spec)(
                name=f"gpt3 of {layers}",
                family=spec.family,
                config=config,
                seq_len=spec.seq_len,
                precision=spec.precision,
            ),
            training=TrainingSpec(),
            cluster=parse_cluster("a100-sxm-80gb:8x8"),
            global_batch=64,
            pins=Pins(pp=4, tp=8, micro_batch=1),
            memory_limit_bytes=2**40,
        )
        began = perf_counter()
        build_training(request.model, request.training, request.global_batch)
        built = perf_counter()
        search(request)
        graph_s, search_s = built - began, perf_counter() - built
        depths.append({"layers": layers, "graph_s": graph_s, "search_s": search_s})
        print(f"{layers:3} layers: graph {graph_s:5.2f} s, search {search_s:5.2f} s")
    print(f"ratio {depths[-1]['search_s'] / depths[0]['search_s']:.2f}")
    return depths


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME…")] = None,
    framework: Annotated[str, typer.Option(help="Only with this: default, or a name.")] = "",
    repeat: Annotated[int | None, typer.Option(min=2, help="Ask so often.")] = None,
    figures: Annotated[bool, typer.Option("--figures", help="Cost beside simulation.")] = False,
    drawn: Annotated[int, typer.Option("--random", min=0, help="Figures of so many others.")] = 0,
    alive: Annotated[bool, typer.Option("--alive", help="Activations laid out and alive.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Three questions in a minute.")] = False,
    pins: Annotated[bool, typer.Option("--pins", help="Textbook pins beside none.")] = False,
    file: Annotated[Path | None, typer.Option("--json", help="Write what was printed.")] = None,
) -> None:
    """Print every row that is asked for."""
    wanted, frameworks = names or [], asked_of(framework)
    document: Document = {"commit": _commit(), "cores": os.cpu_count()}
    questions = chosen(wanted)
    if drawn and wanted:
        raise typer.BadParameter(f"--random draws its own questions: leave {wanted[0]} out")
    try:
        with TemporaryDirectory() as folder:
            short = quick or alive
            if drawn:
                document["figures"] = _figures(drawn_questions(drawn, frameworks), Path(folder))
            elif figures or short:
                if short:
                    questions, frameworks = quick_questions(questions), frameworks[-1:]
                searches = scheduled_questions(questions, frameworks, short)
                told = _alive if alive else _figures
                document["alive" if alive else "figures"] = told(searches, Path(folder))
            elif pins:
                document["pins"] = _pins(questions, frameworks, Path(folder))
            elif repeat:
                document["repeats"] = _repeated(questions, frameworks, repeat, Path(folder))
            elif questions:
                rows = _timed(questions, frameworks, Path(folder))
                document["rows"] = [asdict(entry) for entry in rows]
        alone = not (repeat or figures or drawn or short or pins)
        if alone and (not wanted or "mesh" in wanted):
            document["mesh"] = _mesh()
        if alone and (not wanted or "depth" in wanted):
            document["depth"] = _depth()
    finally:
        if file is not None:
            file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    differ = any(entry["differences"] for entry in document.get("repeats", ()))
    differ = differ or any(entry["faster"] for entry in document.get("pins", ()))
    if differ or any("no plan" in entry["marks"] for entry in document.get("rows", ())):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
