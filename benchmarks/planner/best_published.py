"""Free plans over the best published runs: the speed that `plan` promises, and what people reached.

Run `python -m benchmarks.planner.best_published CSV [--limit N] [--processes P]` from the root of
the repository (docs/accuracy.md says where such a table is from). Of the rows of tier A the fastest
run of every model, kind of device, number of devices and framework is taken, in a fixed random
order that goes round the sources. Each question is planned freely for its framework, as `plan` does
it, with the dispatcher of experts that ran; and the run itself is predicted from its own settings.
A line has the speed of the free plan over the published one, and that of the prediction over the
published one: where the first is high and the second is too, costs are wrong; where only the first
is, people had not found the plan, or it is no good. Results are also written to
`benchmarks/results/best_published.json`.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import typer
from msgspec.structs import replace

from benchmarks.planner.against_people import plan_text, sample
from millrace.api.plan_search import search
from millrace.models.errors import ModelError
from millrace.planner.cluster import Cluster
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.frameworks.capabilities import check_pins
from millrace.planner.frameworks.experts import dispatcher_of, overlaps
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.runnable import unrunnable
from millrace.planner.search import Pins
from millrace.planner.worker_processes import map_in_processes
from millrace.published.language import measured_s, question
from millrace.published.prediction import answer
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import Row, read

RESULTS = Path(__file__).parents[1] / "results" / "best_published.json"
# Versions of a framework that a table has under one name, older first.
NEWER = {"megatron-2021": ("megatron-2022",)}
LEAST, MOST = 0.95, 1.30  # speeds of a free plan over the best published run that are plausible


@dataclass(slots=True)
class BestRunComparison:
    """Comparison of a free plan with the best published run; times in seconds a step.

    `free` and `predicted` are speeds over the published one: of the free plan, and of the run as it
    was set. `reason` says why one of them is missing, `unrunnable` what of the free plan its
    framework cannot run.
    """

    line: int
    source: str
    question: str
    framework: str
    measured_s: float
    free: float | None = None
    predicted: float | None = None
    plan: str = ""
    unrunnable: list[str] = field(default_factory=list)
    reason: str = ""
    search_s: float = 0.0


def best_runs(rows: Sequence[Row]) -> list[Row]:
    """Fastest row, in tokens a second, of every model, device, number of devices and framework."""
    best: dict[tuple[str, ...], tuple[float, Row]] = {}
    for row in rows:
        try:
            asked, _ = question(row)
            speed = asked.global_batch * asked.model.seq_len / measured_s(row)
        except InexpressibleError:
            continue
        key = row["model"], row["gpu"], row["gpus"], asked.cluster.software.name
        if key not in best or speed > best[key][0]:
            best[key] = speed, row
    return [row for _, row in best.values()]


def compare(row: Row) -> BestRunComparison:
    """Comparison of the free plan for a row's question with the row."""
    asked, pins = question(row)
    comparison = BestRunComparison(
        line=int(row["line"]),
        source=row["source"],
        question=asked.text,
        framework=asked.cluster.software.name,
        measured_s=measured_s(row),
    )
    cluster, comparison.framework = running(asked, pins)
    refusal, predictions, _ = answer(asked, pins, (asked.cluster,))
    if predictions:
        comparison.predicted = comparison.measured_s / predictions[0].step_time_s
    began = perf_counter()
    try:
        plan = search(
            asked.model,
            cluster,
            asked.global_batch,
            training=asked.training,
            pins=Pins.of(_experts(asked)),
        )
    except (InfeasibleError, PlanError, ModelError) as error:
        comparison.reason = str(error)
    else:
        comparison.free = comparison.measured_s / plan.figures["step_time_s"]
        comparison.plan = plan_text(plan)
        comparison.unrunnable = unrunnable(plan, capabilities(comparison.framework))
    comparison.reason = comparison.reason or refusal
    comparison.search_s = perf_counter() - began
    return comparison


def running(asked: Question, pins: Pins) -> tuple[Cluster, str]:
    """Cluster of a question, with the version of its framework that can run it, and that's name."""
    cluster, name = asked.cluster, asked.cluster.software.name
    for version in (name, *NEWER.get(name, ())):
        try:
            check_pins(capabilities(version), version, pins.document)
        except InfeasibleError:
            continue
        return replace(cluster, software=replace(cluster.software, name=version)), version
    return cluster, name


def _experts(asked: Question) -> dict[str, str | int | bool]:
    """Pins that leave the exchange of experts as it was where the run was made."""
    if not asked.model.config.get("experts"):
        return {}
    software = asked.cluster.software
    runs = capabilities(software.name)
    if not runs.dispatchers:
        return {}
    return {"dispatcher": dispatcher_of(software), "expert_overlap": overlaps(software)}


def line(comparison: BestRunComparison) -> str:
    """Comparison in a line."""
    speeds = [
        f"{'none' if speed is None else f'{speed:.2f}'}"
        for speed in (comparison.free, comparison.predicted)
    ]
    faults = f"; not runnable: {'; '.join(comparison.unrunnable)}" if comparison.unrunnable else ""
    reason = f"; {comparison.reason[:200]}" if comparison.reason else ""
    return (
        f"free {speeds[0]}, as set {speeds[1]} of {comparison.measured_s:.3f} s "
        f"[{comparison.source}:{comparison.line}] {comparison.question}, {comparison.framework}: "
        f"{comparison.plan}{faults}{reason} [{comparison.search_s:.0f} s]"
    )


def summary(comparisons: Sequence[BestRunComparison]) -> Iterator[str]:
    """Lines that say what all comparisons say together."""
    for name in ("free", "predicted"):
        speeds = sorted(
            speed for comparison in comparisons if (speed := getattr(comparison, name)) is not None
        )
        if speeds:
            slow = sum(speed < LEAST for speed in speeds)
            fast = sum(speed > MOST for speed in speeds)
            words = "free plans" if name == "free" else "the runs as they were set"
            yield (
                f"{words}, speed over the published: {len(speeds)} runs, least {speeds[0]:.2f}, "
                f"median {median(speeds):.2f}, most {speeds[-1]:.2f}; below {LEAST}: {slow}, above "
                f"{MOST}: {fast}"
            )
    pairs = [
        comparison.free / comparison.predicted
        for comparison in comparisons
        if comparison.free and comparison.predicted
    ]
    if pairs:
        yield f"free plan over the run's own prediction: median {median(pairs):.2f}"
    refused = sum(comparison.free is None for comparison in comparisons)
    faulty = sum(bool(comparison.unrunnable) for comparison in comparisons)
    yield f"without a plan: {refused}; plans that the framework cannot run: {faulty}"


def main(table: Path, limit: int | None = None, processes: int = os.cpu_count() or 1) -> None:
    """Compare the best runs of TABLE that are of tier A."""
    rows = sample(best_runs(read(table)), 1, limit)
    print(f"{len(rows)} best published runs", flush=True)
    comparisons: list[BestRunComparison] = []
    for comparison in map_in_processes(compare, rows, processes):
        comparisons.append(comparison)
        print(f"{len(comparisons):3d} {line(comparison)}", flush=True)
        documents = [asdict(each) for each in comparisons]
        RESULTS.write_text(json.dumps(documents, indent=1) + "\n", "utf-8")
    for text in summary(comparisons):
        print(text)


if __name__ == "__main__":
    typer.run(main)
