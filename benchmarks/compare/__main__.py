"""Predictions of plans before and after runs are folded in, beside what was measured.

Run `python -m benchmarks.compare [--model NAME]… [--quick] [--json FILE]` from the root of the
repository, while nothing else runs: half an hour, two minutes with `--quick`.

Of every model the machine is profiled, all its plans (`suite.py`) are predicted, then run; the runs
are folded into the profile as `millrace compare --update-profile` does, all plans are predicted
anew and run a second time. What counts as measured is the faster of both runs, minutes apart: a
virtual machine changes its speed, and nothing inside it says so. How far the two runs of a plan
differ is printed beside the errors, for no prediction can be surer than that.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import typer

from benchmarks.compare.ranking import in_order, settled, spearman
from benchmarks.compare.suite import SUITE, Pins, SuiteModel
from millrace import api
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


class Run(NamedTuple):
    """One run: seconds of a step, and the middle half of its steps' times as a share of it."""

    step_s: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan: seconds of a step as predicted before and after runs were folded in, and its runs.

    The planner's pick, chosen with the runs folded in, has no prediction before.
    """

    model: str
    ranks: int
    pins: str
    before_s: float | None
    after_s: float
    runs: tuple[Run, ...]

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
    clusters = {ranks: api.cluster(f"local:{ranks}", progress=_say) for ranks in by_ranks}
    plans = [
        (ranks, pins, plan)
        for ranks, pinned in by_ranks.items()
        for pins in pinned
        if (plan := _plan(suite_model, clusters[ranks], pins)) is not None
    ]
    before = [_predicted_s(plan) for _, _, plan in plans]
    first = [_run(plan) for _, _, plan in plans]
    for ranks, on in clusters.items():
        runs = [
            (compile_plan(plan), trace)
            for (count, _, plan), (_, trace) in zip(plans, first, strict=True)
            if count == ranks
        ]
        clusters[ranks] = msgspec.structs.replace(on, device=updated_profile(on, *runs))
    second = [_run(plan)[0] for _, _, plan in plans]
    rows = [
        Row(
            model=suite_model.name,
            ranks=ranks,
            pins=" ".join(f"{pin} {value}" for pin, value in pins.items()) or "free",
            before_s=before_s,
            after_s=_predicted_s(msgspec.structs.replace(plan, cluster=clusters[ranks])),
            runs=(first_run, second_run),
        )
        for (ranks, pins, plan), before_s, (first_run, _), second_run in zip(
            plans, before, first, second, strict=True
        )
    ]
    if (pick := _plan(suite_model, clusters[RANKED], {})) is not None:
        runs = (_run(pick)[0], _run(pick)[0])
        after_s = _predicted_s(pick)
        rows.append(
            Row(
                model=suite_model.name,
                ranks=RANKED,
                pins="the planner's pick",
                before_s=None,
                after_s=after_s,
                runs=runs,
            )
        )
    return rows


def _plan(suite_model: SuiteModel, on: Cluster, pins: Pins) -> Plan | None:
    try:
        return api.search(
            suite_model.name,
            on,
            suite_model.global_batch,
            seq_len=suite_model.seq_len,
            precision="fp32",
            training=TRAINING,
            pins=pins,
        )
    except InfeasibleError as error:
        _say(f"{suite_model.name} {pins}: {error}")
        return None


def _predicted_s(plan: Plan) -> float:
    return api.simulate(plan).step_time_ns / 1e9


def _run(plan: Plan) -> tuple[Run, Trace]:
    """Run of a plan, and its trace."""
    least, most = STEPS
    steps = max(least, min(most, round(RUN_S / _predicted_s(plan))))
    measured = api.execute(plan, steps=steps)
    times = measured.trace.step_times_ns()[WARM_UP:]
    low, high = np.quantile(times, (0.25, 0.75))
    return Run(measured.step_time_ns / 1e9, float(high - low) / median(times)), measured.trace


def _print_rows(rows: Sequence[Row]) -> None:
    """Print a model's rows, how well its plans are ordered, and what the pick came to."""
    for row in rows:
        before = "" if row.before_s is None else f"{row.error(row.before_s):+.1%}"
        print(
            f"{row.model:15} {row.ranks} {row.pins:51} measured {row.measured.step_s * 1e3:6.1f} "
            f"ms, error {before:>6} before, {row.error(row.after_s):+6.1%} after; the other run "
            f"{row.repeated:+.1%}",
            flush=True,
        )
    ranked = [row for row in rows if row.ranks == RANKED and row.before_s is not None]
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
    for pick in rows:
        if pick.before_s is None:
            share = pick.measured.step_s / min(measured)
            print(f"{pick.model:15} the planner's pick takes {share:.3f} of the best", flush=True)


def _print_summary(rows: Sequence[Row]) -> None:
    for name in ("before", "after"):
        errors = [
            abs(row.error(predicted_s))
            for row in rows
            if row.before_s is not None and (predicted_s := getattr(row, f"{name}_s"))
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
