"""Predictions of plans before and after runs are folded in, beside what was measured.

Run `python -m benchmarks.compare [--model NAME]… [--quick] [--json FILE]` from the root of the
repository, while nothing else runs: half an hour, three minutes with `--quick`.

Of every model the machine is profiled and all its plans (`suite.py`) are found, as `millrace plan`
does it: the ops of a plan are timed on this machine. They are predicted, from the profile alone and
with those ops, then run; the runs are folded into the profile as `millrace compare
--update-profile` does, all plans are predicted anew and run a second time. The planner's own pick
is run before and after. What counts as measured is the faster of both runs, minutes apart: a
virtual machine changes its speed, and nothing inside it says so. How far the two runs of a plan
differ is printed beside the errors, for no prediction can be surer than that.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import typer

import millrace
from benchmarks.compare.ranking import in_order, settled, spearman
from benchmarks.compare.suite import SUITE, Pins, SuiteModel
from millrace.executor.measure import keep_profile
from millrace.models.spec import TrainingSpec
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.profiling.profile_update import updated_profile

TRAINING = TrainingSpec(learning_rate=1e-3, warmup_steps=5)
RUN_S, STEPS, WARM_UP = 3.0, (12, 30), 5
RANKED = 2  # ranks of the plans that are ordered
PICK, PICK_AFTER = "the planner's pick", "its pick after the fold"


class Run(NamedTuple):
    """One run: seconds of a step, and the middle half of its steps' times as a share of it."""

    step_s: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan: seconds of a step as predicted, and its runs.

    It is predicted by the `profile` alone, `before` runs were folded in and `after` that; the pick
    once more is made after that alone.
    """

    model: str
    ranks: int
    pins: str
    profile_s: float | None
    before_s: float | None
    after_s: float
    runs: tuple[Run, ...]

    @property
    def is_pick(self) -> bool:
        """True of what the planner chooses where nothing is pinned."""
        return self.pins in (PICK, PICK_AFTER)

    @property
    def measured(self) -> Run:
        """Faster run."""
        return min(self.runs)

    @property
    def repeated(self) -> float:
        """Share by which the slower run took longer."""
        return max(self.runs).step_s / self.measured.step_s - 1

    def error(self, predicted_s: float) -> float:
        """Predicted over measured step time, less 1."""
        return predicted_s / self.measured.step_s - 1


def main(
    model: Annotated[list[str] | None, typer.Option(help="Of these models alone.")] = None,
    quick: Annotated[bool, typer.Option(help="Three plans of two models.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all rows here.")] = None,
) -> None:
    """Predict, run, fold in, predict and run again."""
    chosen = [each for each in SUITE if model is None or each.name in model]
    rows: list[Row] = []
    for suite_model in chosen[:2] if quick else chosen:
        with TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            model_rows = _model_rows(suite_model, 3 if quick else None)
        _print_rows(model_rows)
        rows += model_rows
        if json_file is not None:
            json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    _print_summary(rows)


def _model_rows(suite_model: SuiteModel, limit: int | None) -> list[Row]:
    """Rows of a model's plans, and of the planner's own."""
    by_ranks = {RANKED: suite_model.plans[:limit], **({} if limit else suite_model.others)}
    profiled = {ranks: millrace.cluster(f"local:{ranks}", progress=_say) for ranks in by_ranks}
    on, asked = dict(profiled), []
    for ranks, pinned in by_ranks.items():
        names = [(_name(pins), pins) for pins in pinned]
        for name, pins in [*names, (PICK, {})] if ranks == RANKED else names:
            if (plan := _plan(suite_model, on[ranks], pins)) is not None:
                on[ranks] = plan.cluster  # knows more ops than before
                asked.append((ranks, name, plan))
    alone_s = [_predicted_s(_on(plan, profiled[ranks])) for ranks, _, plan in asked]
    before_s = [_predicted_s(plan) for _, _, plan in asked]
    first = [_run(plan) for _, _, plan in asked]
    for ranks, cluster in on.items():
        runs = [
            (compile_plan(plan), trace)
            for (count, _, plan), (_, trace) in zip(asked, first, strict=True)
            if count == ranks
        ]
        on[ranks] = msgspec.structs.replace(cluster, device=updated_profile(cluster, *runs))
        keep_profile(ranks, on[ranks].device)  # so that the next plan is found as a user's is
    second = [_run(plan)[0] for _, _, plan in asked]
    rows = [
        Row(
            model=suite_model.name,
            ranks=ranks,
            pins=name,
            profile_s=alone,
            before_s=before,
            after_s=_predicted_s(_on(plan, on[ranks])),
            runs=(first_run, second_run),
        )
        for (ranks, name, plan), alone, before, (first_run, _), second_run in zip(
            asked, alone_s, before_s, first, second, strict=True
        )
    ]
    picked = next((plan for _, name, plan in asked if name == PICK), None)
    again = _plan(suite_model, on[RANKED], {})
    if picked is None or again is None or _on(again, picked.cluster).digest() == picked.digest():
        return rows
    later = Row(
        model=suite_model.name,
        ranks=RANKED,
        pins=PICK_AFTER,
        profile_s=None,
        before_s=None,
        after_s=_predicted_s(again),
        runs=tuple(_run(again)[0] for _ in range(3)),
    )
    # Both at one time: the machine's speed is not what is asked about.
    return [
        replace(row, runs=(*row.runs, _run(picked)[0])) if row.pins == PICK else row for row in rows
    ] + [later]


def _name(pins: Pins) -> str:
    return " ".join(f"{pin} {value}" for pin, value in pins.items()) or "free"


def _on(plan: Plan, cluster: Cluster) -> Plan:
    """Plan with other figures of the same machine."""
    return msgspec.structs.replace(plan, cluster=cluster)


def _plan(suite_model: SuiteModel, on: Cluster, pins: Pins) -> Plan | None:
    try:
        planned = millrace.plan(
            suite_model.name,
            on,
            global_batch=suite_model.global_batch,
            seq_len=suite_model.seq_len,
            precision="fp32",
            training=TRAINING,
            pins=millrace.Pins.of(pins),
        )
    except InfeasibleError as error:
        _say(f"{suite_model.name} {pins}: {error}")
        return None
    return planned.plan


def _predicted_s(plan: Plan) -> float:
    return millrace.simulate(plan).step_time_s


def _run(plan: Plan) -> tuple[Run, Trace]:
    """Run of a plan, and its trace."""
    least, most = STEPS
    steps = max(least, min(most, round(RUN_S / _predicted_s(plan))))
    measured = millrace.run(plan, steps=steps)
    times = measured.trace.step_times_ns()[WARM_UP:]
    low, high = np.quantile(times, (0.25, 0.75))
    return Run(measured.step_time_ns / 1e9, float(high - low) / median(times)), measured.trace


def _print_rows(rows: Sequence[Row]) -> None:
    """Print a model's rows, how well its plans are ordered, and what the picks came to."""
    for row in rows:
        alone, before, after = (
            "" if predicted_s is None else f"{row.error(predicted_s):+.1%}"
            for predicted_s in (row.profile_s, row.before_s, row.after_s)
        )
        print(
            f"{row.model:15} {row.ranks} {row.pins:51} measured {row.measured.step_s * 1e3:6.1f} "
            f"ms, error {alone:>7} by the profile, {before:>6} before, {after:>6} after; the other "
            f"run {row.repeated:+.1%}",
            flush=True,
        )
    ranked = [row for row in rows if row.ranks == RANKED and not row.is_pick]
    if len(ranked) < 2:
        return
    measured, spreads = zip(*(row.measured for row in ranked), strict=True)
    for name in ("before", "after"):
        predicted = [float(getattr(row, f"{name}_s")) for row in ranked]
        right, pairs = in_order(predicted, measured, spreads)
        print(
            f"{rows[0].model:15} {name}: Spearman {spearman(predicted, measured):.2f}, "
            f"{spearman(predicted, settled(measured, spreads)):.2f} with plans within their spread "
            f"tied; {right} of {pairs} pairs that differ by more are in order",
            flush=True,
        )
    for pick in (row for row in rows if row.is_pick):
        share = pick.measured.step_s / min(measured)
        print(f"{pick.model:15} {pick.pins} takes {share:.3f} of the best", flush=True)


def _print_summary(rows: Sequence[Row]) -> None:
    for name, field in (("by the profile alone", "profile"), ("before", "before"), ("after",) * 2):
        errors = [
            abs(row.error(predicted_s))
            for row in rows
            if not row.is_pick and (predicted_s := getattr(row, f"{field}_s"))
        ]
        print(
            f"{name}: {len(errors)} plans, error {fmean(errors):.1%} in the mean, "
            f"{median(errors):.1%} in the median, {max(errors):.1%} at worst; "
            f"{sum(error <= 0.15 for error in errors)} within 15 %"
        )
    repeated = [row.repeated for row in rows]
    print(
        f"two runs of a plan differ by {fmean(repeated):.1%} in the mean, "
        f"{max(repeated):.1%} at worst"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
