"""Published configurations against the free search: whether each is feasible, and is any better.

Run `python -m benchmarks.against_people CSV [--limit N] [--every K] [--patience S] [--simulate]
[--no-free] [--no-changes] [--processes P]` from the root of the repository.

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
from millrace.planner.children import in_children
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.memory import plan_memory
from millrace.planner.plan import MAX_GAP, Plan, plan_graph
from millrace.planner.roles import roles
from millrace.planner.search import Pins, SearchRequest, search
from millrace.planner.search.outer import Pure, Simulate
from millrace.planner.search.request import MemoryLimitError, NoPlanError
from millrace.published.language import question
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import Row, read

RESULTS = Path(__file__).parent / "results" / "against_people.json"
SEED = 0
PATIENCE_S = 300.0  # after which one search is given up
LIMITS = (1.02, 1.1, 1.3, 2.0, 4.0)  # of the least memory that was named, to see a plan's kinds
SLOWER = 1e-6  # relative difference of two costs that are not the same

Say = Callable[[str], None]


class TooLongError(Exception):
    """A search outlasted the patience."""


@dataclass(slots=True)
class Compared:
    """What came of one row; times in seconds a step, memory in bytes of the fullest device.

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


class Comparison:
    """Searches, each question once."""

    def __init__(
        self, simulate: Simulate | None, patience_s: float, *, freely: bool, changing: bool = True
    ) -> None:
        self.simulate = simulate
        self.patience_s = patience_s
        self.freely = freely
        self.changing = changing
        self._plans: dict[tuple[object, ...], Plan | Exception] = {}

    def plan(self, asked: Question, pins: Pins, limit_bytes: int | None = None) -> Plan:
        """The plan for a question under pins; raises what the search raised the first time."""
        key = (*asked.key, pins, limit_bytes)
        if key not in self._plans:
            try:
                self._plans[key] = self._searched(asked, pins, limit_bytes)
            except (InfeasibleError, PlanError, ModelError, TooLongError) as error:
                self._plans[key] = without_frames(error)
        found = self._plans[key]
        if isinstance(found, Exception):
            raise found
        return found

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
        """Step time of a plan: the simulator's where there is one."""
        if self.simulate is not None:
            return float(plan.figures["step_time_s"])
        assert plan.evidence is not None, "the search writes its evidence"
        return plan.evidence.objective_s

    def compare_all(self, rows: list[Row]) -> list[Compared]:
        """Plan rows that ask the same; plans are kept no longer than that."""
        found = [self.compare(row) for row in rows]
        self._plans.clear()
        return found

    def compare(self, row: Row) -> Compared:
        """Plan one row both ways."""
        found = Compared(line=int(row["line"]), source=row["source"], asked=row["model"])
        found.measured_s = float(row["iteration_time_s"]) if row["iteration_time_s"] else None
        try:
            asked, pins = question(row)
        except InexpressibleError as error:
            found.status, found.reason = "inexpressible", str(error)
            return found
        found.asked, found.pins = asked.text, pins.document
        found.limit_bytes = asked.cluster.device.memory_bytes
        peak_gb = row.get("peak_mem_gb", "")
        found.peak_bytes = int(float(peak_gb) * 1e9) if peak_gb else None
        began = perf_counter()
        try:
            self._pinned(found, asked, pins)
            if self.freely:
                self._free(found, asked, pins)
        except TooLongError as error:
            found.status, found.reason = "too long", str(error)
        found.seconds = perf_counter() - began
        return found

    def _pinned(self, found: Compared, asked: Question, pins: Pins) -> None:
        plan: Plan | None
        try:
            plan = self.plan(asked, pins)
        except (InfeasibleError, PlanError) as error:
            found.status, found.reason = "infeasible", str(error)
            plan = self._roomier(asked, pins, error)
        else:
            found.status, found.pinned_s = "feasible", self.seconds(plan)
        if plan is not None:
            found.pinned_plan = plan_text(plan)
            found.memory = fullest(plan)
            if found.status == "infeasible":
                found.wrong = wrong_kind(found.memory, found.limit_bytes)

    def _roomier(self, asked: Question, pins: Pins, error: Exception) -> Plan | None:
        """The plan on devices with the memory it needs; None where memory is not what it lacks."""
        least = least_bytes(error)
        if not least:
            return None
        for factor in LIMITS:
            try:
                return self.plan(asked, pins, int(least * factor) + 4 * 2**30)
            except (InfeasibleError, PlanError):
                continue
        return None

    def _free(self, found: Compared, asked: Question, pins: Pins) -> None:
        try:
            plan = self.plan(asked, Pins())
        except (InfeasibleError, PlanError) as error:
            if found.status == "feasible":
                found.status, found.reason = "free failed", str(error)
            return
        assert plan.evidence is not None, "the search writes its evidence"
        found.free_s, found.bound_s = self.seconds(plan), plan.evidence.bound_s
        found.free_plan = plan_text(plan)
        if found.pinned_s is None:
            return
        found.gain = found.pinned_s / found.free_s - 1
        if self.changing:
            self._changes(found, asked, pins, plan)
        found.status = verdict(found.gain, found.change_gain)

    def _changes(self, found: Compared, asked: Question, pins: Pins, free: Plan) -> None:
        """Change one pin at a time to the free plan's value; keep the best change."""
        assert found.pinned_s is not None, "compared only where it fits"
        for name, changed in changes(pins, free):
            try:
                plan = self.plan(asked, changed)
            except (InfeasibleError, PlanError):
                continue
            gain = found.pinned_s / self.seconds(plan) - 1
            if found.change_gain is None or gain > found.change_gain:
                found.change, found.change_gain = name, gain
                found.change_plan = plan_text(plan)


def verdict(gain: float, change_gain: float | None) -> str:
    """Whether the free plan is beaten, by gains in throughput over the published plan."""
    if gain < -SLOWER:
        return "beaten"
    if change_gain is not None and change_gain > gain + SLOWER:
        return "beaten by a change"
    return "compared"


def without_frames(error: Exception) -> Exception:
    """The error, and what it came from, without the frames that hold all of a search."""
    found: BaseException | None = error
    while found is not None:
        found = found.with_traceback(None).__context__
    return error


def least_bytes(error: BaseException) -> int:
    """The least memory that the refusal of a request came from; 0 where memory was not it."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, (NoPlanError, MemoryLimitError)):
            return found.needed_bytes
        found = found.__context__
    return 0


def fullest(plan: Plan) -> dict[str, int]:
    """Bytes by kind of the stage that needs most."""
    stages = plan_memory(plan, plan_graph(plan))
    return dict(max(stages, key=lambda stage: stage.total_bytes).by_kind)


def wrong_kind(memory: dict[str, int], limit_bytes: int) -> str:
    """The kind of memory of which a half would let a plan fit: the first of those kept otherwise.

    Gradients, then states and weights are kept in 16 bits by some, activations in 8 or not at all.
    """
    over = sum(memory.values()) - limit_bytes
    for kind in ("gradient", "optimizer", "parameter", "activation"):
        if memory.get(kind, 0) >= 2 * over:
            return kind
    return "several"


def values(plan: Plan) -> dict[str, Any]:
    """A plan in the words of pins; None where its ops disagree."""
    graph = build_training(plan.model, plan.training, plan.global_batch)
    found: dict[str, Any] = dict(roles(plan, with_batch(graph, plan.batch)))
    replicas = found["dp"]
    found["micro_batch"] = None if replicas is None else max(1, plan.batch // replicas)
    found["interleave"], found["schedule"] = plan.interleave, plan.schedule
    modes = {variant.recompute for variant in plan.variants}
    found["recompute"] = modes.pop() if len(modes) == 1 else None
    return found


def changes(pins: Pins, free: Plan) -> list[tuple[str, Pins]]:
    """Pins with one choice changed to the free plan's; the number of replicas follows degrees."""
    new, old = values(free), pins.document
    found = []
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
        found.append((f"{name} {old[name]} → {'free' if value is None else value}", changed))
    scheduled = (free.schedule, free.interleave)
    if pins.schedule and free.stages > 1 and (pins.schedule, pins.interleave) != scheduled:
        changed = replace(pins, schedule=free.schedule, interleave=free.interleave)
        found.append((f"schedule → {free.schedule} with {free.interleave} chunks", changed))
    return found


def plan_text(plan: Plan) -> str:
    """A plan in one line."""
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
        Whether to search freely too, or only for the pinned plans and their memory.
    changing : bool
        Whether to look for the single pin whose change gains most.
    processes : int
        In how many processes to plan.
    say : callable
        Told every line.

    Returns
    -------
    list of dict
        One per row, as `Compared`.
    """
    if not table.is_file():
        say(f"no table `{table}`: published configurations are not compared")
        return []
    everything = read(table)
    chosen = sample(everything, every, limit)
    say(f"{len(chosen)} of {len(everything)} rows of tier A")
    found: list[Compared] = []
    comparison = Comparison(simulate, patience_s, freely=freely, changing=changing)
    for one in compared(chosen, comparison, processes):
        found.append(one)
        for line in lines(one):
            say(f"{len(found):3d} {line}")
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", "utf-8")
    for line in summary(found):
        say(line)
    return [asdict(one) for one in found]


def compared(rows: list[Row], comparison: Comparison, processes: int) -> Iterator[Compared]:
    """What comes of every row; those that ask the same come where the first of them is."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        try:
            key: object = question(row)[0].key
        except InexpressibleError:
            key = row["line"]
        groups.setdefault(key, []).append(row)
    work = in_children(comparison.compare_all, list(groups.values()), processes)
    yield from chain.from_iterable(work)


def lines(one: Compared) -> list[str]:
    """One row in a line, and what explains it where it is beaten or does not fit."""
    pins = " ".join(f"{name}={value}" for name, value in one.pins.items())
    head = f"[{one.source}:{one.line}] {one.asked}; {pins}: {one.status}"
    if one.gain is not None:
        head += f", pinned {one.pinned_s:.3f} s, free {one.free_s:.3f} s, {one.gain:+.1%}"
    if one.change and one.change_gain is not None:
        alone = one.change_gain > 0
        head += f"; most by {one.change}" if alone else f"; nothing alone, not {one.change}"
        head += f" ({one.change_gain:+.1%})"
    found = [f"{head} [{one.seconds:.0f} s]"]
    if one.status == "infeasible" and one.memory:
        kinds = ", ".join(f"{kind} {size / 1e9:.1f}" for kind, size in one.memory.items())
        total = sum(one.memory.values())
        over = total - one.limit_bytes
        size = f"{over / 1e9:+.1f} GB of {one.limit_bytes / 1e9:.0f}"
        half = "no half of one kind" if one.wrong == "several" else f"half of {one.wrong}"
        found.append(f"    {size}, {half} would do: {kinds} GB")
    elif one.reason:
        found.append(f"    {one.reason}")
    better = {"beaten": one.pinned_plan, "beaten by a change": one.change_plan}
    if one.status in better:
        found += [f"    faster: {better[one.status]}", f"    searched: {one.free_plan}"]
    return found


def summary(found: list[Compared]) -> list[str]:
    """What all rows say together."""
    counts = Counter(one.status for one in found)
    told = [
        f"{len(found)} rows, {len(found) - counts['inexpressible']} expressed: "
        + ", ".join(f"{count} {status}" for status, count in counts.most_common())
    ]
    gains = sorted(one.gain for one in found if one.gain is not None)
    if gains:
        tenth = len(gains) // 10
        told.append(
            f"gain of the free plan in throughput: least {gains[0]:+.1%}, tenth part "
            f"{gains[tenth]:+.1%}, median {median(gains):+.1%}, ninth "
            f"{gains[-1 - tenth]:+.1%}, most {gains[-1]:+.1%}"
        )
    kinds = Counter(one.wrong or "not memory" for one in found if one.status == "infeasible")
    if kinds:
        told.append(
            "kind of memory of which half would let a published plan fit: "
            + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        )
    moved = Counter(
        one.change.split(" ", 1)[0] if (one.change_gain or 0) > 0 else "none alone"
        for one in found
        if one.change
    )
    if moved:
        told.append(
            "single change that gains most: "
            + ", ".join(f"{name} {count}" for name, count in moved.most_common())
        )
    peaks = [
        sum(one.memory.values()) / one.peak_bytes for one in found if one.peak_bytes and one.memory
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
    from millrace import api
    from millrace.figures import block_times

    report(
        table,
        limit,
        every=every,
        simulate=Pure(api.figures, block_times) if simulate else None,
        patience_s=patience,
        freely=free,
        changing=changes,
        processes=processes,
        say=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    typer.run(main)
