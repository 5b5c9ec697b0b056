"""Published configurations against the free search: whether each is feasible, and is any better.

Run `python -m benchmarks.planner.against_people CSV [--limit N] [--every K] [--patience S]
[--simulate] [--no-free] [--no-changes] [--processes P]` from the root of the repository.

Every row of tier A is planned twice on its cluster, for its model and batch: with the published
choices pinned, and freely. Of each that fits, one pin at a time is also changed to the free plan's
value, which tells the single change that gains most (`--no-free`: only what fits; `--no-changes`:
without changes). The free plan has to be at least as fast as both by the planner's own cost (with
`--simulate`, by the simulator): a published plan, or a single change to it, that beats the search
is a bug in the search, and is printed with both plans. Rows that ask the same share one search. For
a published plan that does not fit, the kinds of memory of the least one are listed. Where the table
prints a peak of memory, it is compared with the pinned plan's.

Without `--limit` or `--every` the whole table is planned, which takes hours; a sample goes round
the sources. Results are also written to `benchmarks/results/against_people.json`.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import typer

from millrace.models.errors import ModelError
from millrace.models.graph import with_batch
from millrace.models.zoo.catalogue import build_training
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.memory import plan_memory
from millrace.planner.parallel_degrees import roles
from millrace.planner.plan import MAX_GAP, Plan
from millrace.planner.search import Pins, SearchRequest, search
from millrace.planner.search.choosing import Pure, Simulate
from millrace.planner.search.request import MemoryLimitError, NoPlanError
from millrace.planner.worker_processes import map_in_processes
from millrace.published.language import question
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import Row, read

RESULTS = Path(__file__).parents[1] / "results" / "against_people.json"
SEED = 0
PATIENCE_S = 300.0  # after which one search is given up
LIMITS = (1.02, 1.1, 1.3, 2.0, 4.0)  # times the least memory that was named: limits to plan within
SLOWER = 1e-6  # relative difference of two costs that are not the same

Say = Callable[[str], None]


class TooLongError(Exception):
    """Search that outlasted the patience."""


@dataclass(slots=True)
class RowComparison:
    """Comparison of one row; times in seconds a step, memory in bytes of the fullest device.

    `status` is compared, beaten (the published plan is the faster), beaten by a change (of one of
    its pins), infeasible (the published plan does not fit), free failed, inexpressible, too long,
    or feasible where no free search was wanted; `reason` says more.
    """

    line: int
    source: str
    asked: str
    pins: dict[str, Any] = field(default_factory=dict)
    status: str = ""
    reason: str = ""
    measured_s: float | None = None
    pinned_s: float | None = None
    free_s: float | None = None
    bound_s: float | None = None
    gain: float | None = None  # of throughput by the free plan over the pinned one
    pinned_plan: str = ""
    free_plan: str = ""
    change: str = ""  # the one pin whose change gains most
    change_gain: float | None = None
    change_plan: str = ""
    memory: dict[str, int] = field(default_factory=dict)  # of the pinned plan, by kind
    limit_bytes: int = 0
    wrong: str = ""  # where it does not fit: the kind of memory of which half would do
    peak_bytes: int | None = None  # as published
    seconds: float = 0.0


class FreePlans:
    """Comparisons of rows by searches, each question searched once."""

    def __init__(
        self, simulate: Simulate | None, patience_s: float, *, freely: bool, changing: bool = True
    ) -> None:
        self.simulate = simulate
        self.patience_s = patience_s
        self.freely = freely
        self.changing = changing
        self._plans: dict[tuple[object, ...], Plan | Exception] = {}

    def plan(self, asked: Question, pins: Pins, limit_bytes: int | None = None) -> Plan:
        """Plan for a question under pins; raises what the search raised the first time."""
        key = (*asked.key, pins, limit_bytes)
        if key not in self._plans:
            try:
                self._plans[key] = self._searched(asked, pins, limit_bytes)
            except (InfeasibleError, PlanError, ModelError, TooLongError) as error:
                self._plans[key] = without_frames(error)
        plan = self._plans[key]
        if isinstance(plan, Exception):
            raise plan
        return plan

    def _searched(self, asked: Question, pins: Pins, limit_bytes: int | None) -> Plan:
        request = SearchRequest(
            model=asked.model,
            training=asked.training,
            cluster=asked.cluster,
            global_batch=asked.global_batch,
            pins=pins,
            memory_limit_bytes=limit_bytes,
            max_gap=MAX_GAP,
        )
        began = perf_counter()

        def patience(line: str) -> None:
            if perf_counter() - began > self.patience_s:
                raise TooLongError(f"given up after {self.patience_s:.0f} s: {line}")

        return search(request, self.simulate, patience, remedies=False)

    def seconds(self, plan: Plan) -> float:
        """Step time of a plan, in seconds: the simulator's where there is one."""
        if self.simulate is not None:
            return float(plan.figures["step_time_s"])
        assert plan.evidence is not None, "the search writes its evidence"
        return plan.evidence.objective_s

    def compare_all(self, rows: list[Row]) -> list[RowComparison]:
        """Plan rows that ask the same; plans are kept no longer than that."""
        comparisons = [self.compare(row) for row in rows]
        self._plans.clear()
        return comparisons

    def compare(self, row: Row) -> RowComparison:
        """Plan one row both ways."""
        comparison = RowComparison(line=int(row["line"]), source=row["source"], asked=row["model"])
        comparison.measured_s = float(row["iteration_time_s"]) if row["iteration_time_s"] else None
        try:
            asked, pins = question(row)
        except InexpressibleError as error:
            comparison.status, comparison.reason = "inexpressible", str(error)
            return comparison
        comparison.asked, comparison.pins = asked.text, pins.document
        comparison.limit_bytes = asked.cluster.device.memory_bytes
        peak_gb = row.get("peak_mem_gb", "")
        comparison.peak_bytes = int(float(peak_gb) * 1e9) if peak_gb else None
        began = perf_counter()
        try:
            self._pinned(comparison, asked, pins)
            if self.freely:
                self._free(comparison, asked, pins)
        except TooLongError as error:
            comparison.status, comparison.reason = "too long", str(error)
        comparison.seconds = perf_counter() - began
        return comparison

    def _pinned(self, comparison: RowComparison, asked: Question, pins: Pins) -> None:
        plan: Plan | None
        try:
            plan = self.plan(asked, pins)
        except (InfeasibleError, PlanError) as error:
            comparison.status, comparison.reason = "infeasible", str(error)
            plan = self._roomier(asked, pins, error)
        else:
            comparison.status, comparison.pinned_s = "feasible", self.seconds(plan)
        if plan is not None:
            comparison.pinned_plan = plan_text(plan)
            comparison.memory = fullest(plan)
            if comparison.status == "infeasible":
                comparison.wrong = wrong_kind(comparison.memory, comparison.limit_bytes)

    def _roomier(self, asked: Question, pins: Pins, error: Exception) -> Plan | None:
        """Plan on devices with the memory it needs; None where memory is not what it lacks."""
        least = least_bytes(error)
        if not least:
            return None
        for factor in LIMITS:
            try:
                return self.plan(asked, pins, int(least * factor) + 4 * 2**30)
            except (InfeasibleError, PlanError):
                continue
        return None

    def _free(self, comparison: RowComparison, asked: Question, pins: Pins) -> None:
        try:
            plan = self.plan(asked, Pins())
        except (InfeasibleError, PlanError) as error:
            if comparison.status == "feasible":
                comparison.status, comparison.reason = "free failed", str(error)
            return
        assert plan.evidence is not None, "the search writes its evidence"
        comparison.free_s, comparison.bound_s = self.seconds(plan), plan.evidence.bound_s
        comparison.free_plan = plan_text(plan)
        if comparison.pinned_s is None:
            return
        comparison.gain = comparison.pinned_s / comparison.free_s - 1
        if self.changing:
            self._changes(comparison, asked, pins, plan)
        comparison.status = verdict(comparison.gain, comparison.change_gain)

    def _changes(self, comparison: RowComparison, asked: Question, pins: Pins, free: Plan) -> None:
        """Change one pin at a time to the free plan's value; keep the best change."""
        assert comparison.pinned_s is not None, "compared only where it fits"
        for name, changed in changes(pins, free):
            try:
                plan = self.plan(asked, changed)
            except (InfeasibleError, PlanError):
                continue
            gain = comparison.pinned_s / self.seconds(plan) - 1
            if comparison.change_gain is None or gain > comparison.change_gain:
                comparison.change, comparison.change_gain = name, gain
                comparison.change_plan = plan_text(plan)


def verdict(gain: float, change_gain: float | None) -> str:
    """Status of a comparison, by gains in throughput over the published plan."""
    if gain < -SLOWER:
        return "beaten"
    if change_gain is not None and change_gain > gain + SLOWER:
        return "beaten by a change"
    return "compared"


def without_frames(error: Exception) -> Exception:
    """Error, and its causes, without the frames that hold all of a search."""
    cause: BaseException | None = error
    while cause is not None:
        cause = cause.with_traceback(None).__context__
    return error


def least_bytes(error: BaseException) -> int:
    """Least memory that the refusal of a request came from, in bytes; 0 where it was not memory."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (NoPlanError, MemoryLimitError)):
            return cause.needed_bytes
        cause = cause.__context__
    return 0


def fullest(plan: Plan) -> dict[str, int]:
    """Bytes by kind of the stage that needs most."""
    stages = plan_memory(plan)
    return dict(max(stages, key=lambda stage: stage.total_bytes).by_kind)


def wrong_kind(memory: dict[str, int], limit_bytes: int) -> str:
    """Kind of memory of which a half would let a plan fit: the first of those kept otherwise.

    Gradients, then states and weights are kept in 16 bits by some, activations in 8 or not at all.
    """
    over = sum(memory.values()) - limit_bytes
    for kind in ("gradient", "optimizer", "parameter", "activation"):
        if memory.get(kind, 0) >= 2 * over:
            return kind
    return "several"


def values(plan: Plan) -> dict[str, Any]:
    """Choices of a plan by the names of pins; None where its ops disagree."""
    graph = build_training(plan.model, plan.training, plan.global_batch)
    choices: dict[str, Any] = dict(roles(plan, with_batch(graph, plan.batch)))
    replicas = choices["dp"]
    choices["micro_batch"] = None if replicas is None else max(1, plan.batch // replicas)
    choices["interleave"], choices["schedule"] = plan.interleave, plan.schedule
    modes = {variant.recompute for variant in plan.variants}
    choices["recompute"] = modes.pop() if len(modes) == 1 else None
    return choices


def changes(pins: Pins, free: Plan) -> list[tuple[str, Pins]]:
    """Pins with one choice changed to the free plan's; the number of replicas follows degrees."""
    new, old = values(free), pins.document
    changed_pins = []
    for name in ("tp", "pp", "cp", "ep", "micro_batch", "recompute", "zero", "sequence_parallel"):
        value = new[name]
        if name not in old or value == old[name] or str(value) == str(old[name]):
            continue
        changed = replace(pins, **{name: value})
        if name in ("tp", "pp", "cp"):
            changed = replace(changed, dp=None)
        if name == "tp" and value == 1:
            changed = replace(changed, sequence_parallel=None)
        if name == "pp":
            changed = replace(changed, schedule=new["schedule"], interleave=new["interleave"])
        changed_pins.append((f"{name} {old[name]} → {'free' if value is None else value}", changed))
    scheduled = (free.schedule, free.interleave)
    if pins.schedule and free.stages > 1 and (pins.schedule, pins.interleave) != scheduled:
        changed = replace(pins, schedule=free.schedule, interleave=free.interleave)
        changed_pins.append((f"schedule → {free.schedule} with {free.interleave} chunks", changed))
    return changed_pins


def plan_text(plan: Plan) -> str:
    """Plan in one line."""
    mesh = " × ".join(f"{axis.name} {axis.size}" for axis in plan.mesh.axes) or "one device"
    modes = "+".join(sorted({variant.recompute for variant in plan.variants}))
    schedule = f", {plan.schedule} with {plan.interleave} chunks" if plan.stages > 1 else ""
    return (
        f"{plan.stages} stages of {mesh}, {plan.microbatches} microbatches of {plan.batch}"
        f"{schedule}, recompute {modes}"
    )


def sample(rows: list[Row], every: int, limit: int | None, seed: int = SEED) -> list[Row]:
    """Rows in a fixed random order that goes round the sources; every so many, at most so many."""
    order = random.Random(seed)
    by_source: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_source[row["source"]].append(row)
    for group in by_source.values():
        order.shuffle(group)
    mixed = [row for turn in zip_longest(*by_source.values()) for row in turn if row is not None]
    return mixed[::every][:limit]


def report(
    table: Path,
    limit: int | None = None,
    *,
    every: int = 1,
    simulate: Simulate | None = None,
    patience_s: float = PATIENCE_S,
    freely: bool = True,
    changing: bool = True,
    processes: int = 1,
    say: Say = print,
) -> list[dict[str, Any]]:
    """Compare a sample of a table, print what came of it and write it as JSON.

    Parameters
    ----------
    table : Path
        In the layout of published training runs; where it is absent that is said, and nothing done.
    limit, every : int
        At most so many rows; every so many of them.
    simulate : callable, optional
        Ranks plans by the simulator.
    patience_s : float
        A search that takes longer is given up, and its rows are counted as too long.
    freely : bool
        Search freely too, not only for the pinned plans and their memory.
    changing : bool
        Look for the single pin whose change gains most.
    processes : int
        Number of processes that plan.
    say : callable
        Told every line.

    Returns
    -------
    list of dict
        One per row, as `RowComparison`.
    """
    if not table.is_file():
        say(f"no table `{table}`: published configurations are not compared")
        return []
    everything = read(table)
    chosen = sample(everything, every, limit)
    say(f"{len(chosen)} of {len(everything)} rows of tier A")
    comparisons: list[RowComparison] = []
    comparison = FreePlans(simulate, patience_s, freely=freely, changing=changing)
    for comparison_of_row in compared(chosen, comparison, processes):
        comparisons.append(comparison_of_row)
        for line in lines(comparison_of_row):
            say(f"{len(comparisons):3d} {line}")
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(
            json.dumps([asdict(each) for each in comparisons], indent=1) + "\n", "utf-8"
        )
    for line in summary(comparisons):
        say(line)
    return [asdict(comparison_of_row) for comparison_of_row in comparisons]


def compared(rows: list[Row], comparison: FreePlans, processes: int) -> Iterator[RowComparison]:
    """Yield comparisons of all rows; those that ask the same come where the first of them is."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        try:
            key: object = question(row)[0].key
        except InexpressibleError:
            key = row["line"]
        groups.setdefault(key, []).append(row)
    work = map_in_processes(comparison.compare_all, list(groups.values()), processes)
    yield from chain.from_iterable(work)


def lines(comparison: RowComparison) -> list[str]:
    """Comparison of a row in a line, and what explains it where it is beaten or does not fit."""
    pins = " ".join(f"{name}={value}" for name, value in comparison.pins.items())
    head = (
        f"[{comparison.source}:{comparison.line}] {comparison.asked}; {pins}: {comparison.status}"
    )
    if comparison.gain is not None:
        head += (
            f", pinned {comparison.pinned_s:.3f} s, free {comparison.free_s:.3f} s, "
            f"{comparison.gain:+.1%}"
        )
    if comparison.change and comparison.change_gain is not None:
        alone = comparison.change_gain > 0
        head += (
            f"; most by {comparison.change}"
            if alone
            else f"; nothing alone, not {comparison.change}"
        )
        head += f" ({comparison.change_gain:+.1%})"
    texts = [f"{head} [{comparison.seconds:.0f} s]"]
    if comparison.status == "infeasible" and comparison.memory:
        kinds = ", ".join(f"{kind} {size / 1e9:.1f}" for kind, size in comparison.memory.items())
        total = sum(comparison.memory.values())
        over = total - comparison.limit_bytes
        size = f"{over / 1e9:+.1f} GB of {comparison.limit_bytes / 1e9:.0f}"
        half = (
            "no half of one kind"
            if comparison.wrong == "several"
            else f"half of {comparison.wrong}"
        )
        texts.append(f"    {size}, {half} would do: {kinds} GB")
    elif comparison.reason:
        texts.append(f"    {comparison.reason}")
    better = {"beaten": comparison.pinned_plan, "beaten by a change": comparison.change_plan}
    if comparison.status in better:
        texts += [
            f"    faster: {better[comparison.status]}",
            f"    searched: {comparison.free_plan}",
        ]
    return texts


def summary(comparisons: list[RowComparison]) -> list[str]:
    """Lines that say what all rows say together."""
    counts = Counter(comparison.status for comparison in comparisons)
    told = [
        f"{len(comparisons)} rows, {len(comparisons) - counts['inexpressible']} expressed: "
        + ", ".join(f"{count} {status}" for status, count in counts.most_common())
    ]
    gains = sorted(comparison.gain for comparison in comparisons if comparison.gain is not None)
    if gains:
        tenth = len(gains) // 10
        told.append(
            f"gain of the free plan in throughput: least {gains[0]:+.1%}, tenth part "
            f"{gains[tenth]:+.1%}, median {median(gains):+.1%}, ninth "
            f"{gains[-1 - tenth]:+.1%}, most {gains[-1]:+.1%}"
        )
    kinds = Counter(
        comparison.wrong or "not memory"
        for comparison in comparisons
        if comparison.status == "infeasible"
    )
    if kinds:
        told.append(
            "kind of memory of which half would let a published plan fit: "
            + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        )
    moved = Counter(
        comparison.change.split(" ", 1)[0] if (comparison.change_gain or 0) > 0 else "none alone"
        for comparison in comparisons
        if comparison.change
    )
    if moved:
        told.append(
            "single change that gains most: "
            + ", ".join(f"{name} {count}" for name, count in moved.most_common())
        )
    peaks = [
        sum(comparison.memory.values()) / comparison.peak_bytes
        for comparison in comparisons
        if comparison.peak_bytes and comparison.memory
    ]
    if peaks:
        error = sum(abs(ratio - 1) for ratio in peaks) / len(peaks)
        told.append(
            f"peak of memory, planned over published, {len(peaks)} rows: median "
            f"{median(peaks):.2f}, mean error {error:.0%}"
        )
    return told


def main(
    table: Path,
    limit: int | None = None,
    every: int = 1,
    patience: float = PATIENCE_S,
    simulate: bool = False,
    free: bool = True,
    changes: bool = True,
    processes: int = 1,
) -> None:
    """Compare the rows of TABLE that are of tier A."""
    from millrace.figures import block_times, prediction_of

    report(
        table,
        limit,
        every=every,
        simulate=Pure(prediction_of, block_times) if simulate else None,
        patience_s=patience,
        freely=free,
        changing=changes,
        processes=processes,
        say=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    typer.run(main)
