"""Predicted steps on a GPU beside measured ones, by kind of actor, from committed files alone.

Run `python -m benchmarks.gpu.predictions [--profile FILE] [--results FILE] [--kinds] [--markdown]
[--json]` from the root of the repository; it takes seconds and needs no GPU.

Every model that the results have times of kinds of is planned for the profile's device and
predicted four times: from the profile as it was measured; with the model's own run folded in; with
the runs of the other models folded in, which is what a model can expect that was never run; and
with all runs folded in. Folding is `millrace compare --update-profile`'s, except that the results
have times by kind where a trace has them by actor: every actor of a kind took as many times its
prediction as the kind did in all. Times of kinds are from steps that are slower for being timed;
they count as the share of the captured step that they are of such a step. Of several runs of a
model the mean counts.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

import millrace
from benchmarks.gpu.results import RESULTS, read_summaries
from benchmarks.gpu.roofline import RooflineWork, kind_of, works
from benchmarks.gpu.trained_models import benchmark_model, planned
from millrace.models.documents import FileError
from millrace.models.errors import ModelError
from millrace.planner.cluster import Cluster, Device
from millrace.planner.compile import compile_plan
from millrace.planner.costs.measured_tables import MeasuredOp, measured_ops, with_measured
from millrace.planner.errors import ClusterError, PlanError
from millrace.planner.plan import Plan

Figures = Mapping[str, Any]
PROFILE = RESULTS / "profile-h100-80gb-hbm3.json"
STEPS = RESULTS / "gpu-h100-80gb-hbm3.json"
SHOWN = 0.004  # Kinds that are off by less of the step are not shown.
FOLDS = ("profile", "own", "others", "all")
HEADS = (
    "model, batch × tokens",
    "measured",
    "from the profile",
    "its own run folded in",
    "the others' folded in",
    "all folded in",
)


class MeasuredStep(NamedTuple):
    """A model's step in the results: seconds in all, and of every kind of actor."""

    batch: int
    seq_len: int
    step_s: float
    kind_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPrediction:
    """Seconds of a step that one kind of actor takes: measured, and by fold as in `FOLDS`."""

    kind: str
    actors: int
    measured_s: float
    predicted_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """Seconds of a model's step: measured, and by fold as in `FOLDS`; the same of its kinds."""

    model: str
    batch: int
    seq_len: int
    measured_s: float
    predicted_s: tuple[float, ...]
    kinds: tuple[KindPrediction, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted over measured, less 1, by fold."""
        return tuple(seconds / self.measured_s - 1 for seconds in self.predicted_s)


def measured_steps(rows: Iterable[Figures]) -> dict[str, MeasuredStep]:
    """Steps by model, the mean of several runs of one.

    Examples
    --------
    >>> kinds = [{"kind": "relu", "actors": 2, "measured_s": 0.9}]
    >>> row = {"model": "a", "batch": 1, "seq_len": 1, "kinds": kinds, "idle_share": 0.1}
    >>> measured_steps([row | {"measured_s": 0.5}])["a"].kind_s
    {'relu': 0.5}
    """
    runs: dict[str, list[Figures]] = defaultdict(list)
    for row in rows:
        if row.get("kinds") and row.get("measured_s"):
            runs[row["model"]].append(row)
    steps = {}
    for model, model_runs in runs.items():
        of_runs = [_kind_s(run) for run in model_runs]
        steps[model] = MeasuredStep(
            batch=model_runs[0]["batch"],
            seq_len=model_runs[0]["seq_len"],
            step_s=fmean(run["measured_s"] for run in model_runs),
            kind_s={kind: fmean(each.get(kind, 0.0) for each in of_runs) for kind in of_runs[0]},
        )
    return steps


def _kind_s(run: Figures) -> dict[str, float]:
    """Seconds of a captured step by kind; what lies between actors counts equally for each."""
    busy_s = sum(kind["measured_s"] for kind in run["kinds"])
    actors = sum(kind["actors"] for kind in run["kinds"])
    timed_step_s = busy_s / (1 - run["idle_share"])
    gap_s = (timed_step_s - busy_s) / actors
    share = run["measured_s"] / timed_step_s
    return {
        kind["kind"]: share * (kind["measured_s"] + kind["actors"] * gap_s) for kind in run["kinds"]
    }


def predictions(cluster: Cluster, steps: Mapping[str, MeasuredStep]) -> list[StepPrediction]:
    """Predictions of all models, each with every fold.

    Raises
    ------
    ModelError, PlanError
        A model is not known, or does not fit on the device.
    """
    plans = {
        model: planned(benchmark_model(model), step.batch, cluster) for model, step in steps.items()
    }
    ops = {model: ops_of_kinds(plan, steps[model].kind_s) for model, plan in plans.items()}
    rows = []
    for model, plan in plans.items():
        others = [op for other, of in ops.items() if other != model for op in of]
        folded: list[Sequence[MeasuredOp]] = [(), ops[model], others, [*others, *ops[model]]]
        devices = [with_measured(cluster.device, each) for each in folded]
        rows.append(_prediction(plan, devices, steps[model]))
    return rows


def ops_of_kinds(plan: Plan, kind_s: Mapping[str, float]) -> list[MeasuredOp]:
    """Ops of a plan on one device with what they took, by what their kinds of actor took.

    Parameters
    ----------
    plan : Plan
        With the profile that it is predicted from.
    kind_s : mapping
        Seconds of a step by kind of actor; kinds that are not in it were not measured.
    """
    (program,) = (compiled := compile_plan(plan)).programs
    predicted_s = _by_kind(actor_works := works(plan, compiled))
    ops: list[MeasuredOp] = []
    for actor, work in zip(program.actors, actor_works, strict=True):
        kind = kind_of(work)
        if kind in kind_s:
            took_ns = round(work.predicted_s * kind_s[kind] / predicted_s[kind] * 1e9)
            ops += measured_ops(actor, program, plan.cluster.device, took_ns, actor.firings)
    return ops


def _by_kind(actor_works: Iterable[RooflineWork]) -> Counter[str]:
    """Predicted seconds of a step by kind of actor."""
    seconds: Counter[str] = Counter()
    for work in actor_works:
        seconds[kind_of(work)] += work.predicted_s * work.firings
    return seconds


def _prediction(plan: Plan, devices: Sequence[Device], step: MeasuredStep) -> StepPrediction:
    plans, compiled = [_on(plan, device) for device in devices], compile_plan(plan)
    kinds = [_by_kind(actor_works := works(each, compiled)) for each in plans]
    actors = Counter(kind_of(work) for work in actor_works)
    return StepPrediction(
        model=plan.model.name,
        batch=step.batch,
        seq_len=step.seq_len,
        measured_s=step.step_s,
        predicted_s=tuple(millrace.simulate(each).step_time_s for each in plans),
        kinds=tuple(
            KindPrediction(
                kind=kind,
                actors=actors[kind],
                measured_s=seconds,
                predicted_s=tuple(each[kind] for each in kinds),
            )
            for kind, seconds in sorted(step.kind_s.items(), key=lambda pair: -pair[1])
        ),
    )


def _on(plan: Plan, device: Device) -> Plan:
    return msgspec.structs.replace(
        plan, cluster=msgspec.structs.replace(plan.cluster, device=device)
    )


def step_table(rows: Iterable[StepPrediction]) -> list[list[str]]:
    """Cells of a row per model."""
    return [
        [
            f"{row.model}, {row.batch} × {row.seq_len}",
            f"{row.measured_s * 1e3:.1f} ms",
            *(
                f"{seconds * 1e3:.1f} ms ({100 * error:+.1f} %)"
                for seconds, error in zip(row.predicted_s, row.errors, strict=True)
            ),
        ]
        for row in rows
    ]


def kind_table(rows: Iterable[StepPrediction], shown: float = SHOWN) -> list[list[str]]:
    """Cells of a row per kind of a model whose prediction is off by some of the step, in ms."""
    return [
        [row.model, kind.kind, str(kind.actors), f"{kind.measured_s * 1e3:.2f}"]
        + [f"{seconds * 1e3:.2f}" for seconds in kind.predicted_s]
        for row in rows
        for kind in row.kinds
        if abs(kind.predicted_s[0] - kind.measured_s) >= shown * row.measured_s
    ]


def print_table(heads: Sequence[str], cells: Iterable[Sequence[str]], markdown: bool) -> None:
    """Print a table, of which all columns but the first and those of words lean to the right."""
    words = {"model", "kind"}
    if markdown:
        print(f"| {' | '.join(heads)} |")
        leans = ["---" if head in words or head == heads[0] else "--:" for head in heads]
        print(f"|{'|'.join(leans)}|")
        for row in cells:
            print(f"| {' | '.join(row)} |")
        return
    table = Table()
    for head in heads:
        leans_left = head in words or head == heads[0]
        table.add_column(head, justify="left" if leans_left else "right", overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console(width=150).print(table)


@cache
def predicted(profile: Path, results: Path) -> list[StepPrediction]:
    """Predictions of all models that a file has times of kinds of, made once for all tables."""
    steps = measured_steps(row for each in read_summaries(results) for row in each["rows"])
    if not steps:
        raise FileError(f"{results} has no times of kinds: name one of `benchmarks.gpu.results`")
    return predictions(millrace.cluster("local-gpu:1", profile=profile), steps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit code."""
    asked = argparse.ArgumentParser(prog="benchmarks.gpu.predictions", description=__doc__)
    asked.add_argument("--profile", type=Path, default=PROFILE)
    asked.add_argument("--results", type=Path, default=STEPS)
    asked.add_argument("--kinds", action="store_true", help="kinds of actors in place of steps")
    asked.add_argument("--markdown", action="store_true")
    asked.add_argument("--json", action="store_true", help="steps and all kinds")
    options = asked.parse_args(arguments)
    try:
        rows = predicted(options.profile, options.results)
    except (ClusterError, FileError, ModelError, PlanError) as error:
        print(f"benchmarks.gpu.predictions: {error}", file=sys.stderr)
        return 2
    if options.json:
        documents = [asdict(row) | {"errors": row.errors} for row in rows]
        print(json.dumps({"folds": FOLDS, "rows": documents}, indent=1))
    elif options.kinds:
        heads = ("model", "kind", "actors", "measured, ms", *HEADS[2:])
        print_table(heads, kind_table(rows), options.markdown)
    else:
        print_table(HEADS, step_table(rows), options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
