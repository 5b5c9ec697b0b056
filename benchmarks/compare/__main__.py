"""Predictions of plans before and after runs are folded in, beside what was measured.

Run `python -m benchmarks.compare [--model NAME]… [--quick] [--json FILE]` from the root of the
repository, while nothing else runs: some twenty minutes, three with `--quick`.

Of every model the machine is profiled, all its plans (`suite.py`) are predicted, then run; the runs
are folded into the profile as `millrace compare --update-profile` does, and all plans are predicted
and run once more. A row tells how much slower the machine was in the run than when it was profiled,
by a yardstick that is measured after both: rows of a machine that changed by more than `UNCHANGED`
say nothing of predictions, and figures are printed with and without them.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import numpy as np
import typer

from benchmarks.compare.ranking import in_order, settled, spearman
from benchmarks.compare.suite import SUITE, Pins, SuiteModel
from benchmarks.compare.yardstick import UNCHANGED, Yardstick, yardstick
from millrace import api
from millrace.models.spec import TrainingSpec
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.profile_update import updated_profile

TRAINING = TrainingSpec(learning_rate=1e-3, warmup_steps=5)
RUN_S, STEPS = 3.0, (12, 30)
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan, predicted and run once: seconds of a step, and how much slower the machine was."""

    model: str
    ranks: int
    pins: str
    round: str
    predicted_s: float
    measured_s: float
    spread: float
    slower: float

    @property
    def error(self) -> float:
        """Predicted over measured step time, less 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_counted(self) -> bool:
        """True where the machine was as fast as when it was profiled."""
        return abs(self.slower - 1) <= UNCHANGED


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
            rows += _model_rows(suite_model, 3 if quick else None)
        _print_ranking(rows, suite_model)
    _print_summary(rows)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def _model_rows(suite_model: SuiteModel, limit: int | None) -> list[Row]:
    """Rows of a model's plans, before and after the fold."""
    profiled = yardstick()
    clusters = {
        ranks: api.cluster(f"local:{ranks}", progress=_say)
        for ranks in (2, *suite_model.others)
        if limit is None or ranks == 2
    }
    plans = [
        (ranks, pins, plan)
        for ranks, on in clusters.items()
        for pins in (suite_model.plans if ranks == 2 else suite_model.others[ranks])[:limit]
        if (plan := _plan(suite_model, on, pins)) is not None
    ]
    rows, traces = [], []
    for ranks, pins, plan in plans:
        row, trace = _run(suite_model, ranks, pins, plan, BEFORE, profiled)
        rows.append(row)
        traces.append((ranks, plan, trace))
    for ranks, on in clusters.items():
        runs = [(compile_plan(plan), trace) for count, plan, trace in traces if count == ranks]
        clusters[ranks] = msgspec.structs.replace(on, device=updated_profile(on, *runs))
    profiled = yardstick()
    for ranks, pins, plan in plans:
        learned = msgspec.structs.replace(plan, cluster=clusters[ranks])
        rows.append(_run(suite_model, ranks, pins, learned, AFTER, profiled)[0])
    if (pick := _plan(suite_model, clusters[2], {})) is not None:
        rows.append(_run(suite_model, 2, {"pick": True}, pick, AFTER, profiled)[0])
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


def _run(
    suite_model: SuiteModel, ranks: int, pins: Pins, plan: Plan, name: str, profiled: Yardstick
) -> tuple[Row, Trace]:
    """Row of a plan, and the trace of its run."""
    predicted_ns = api.simulate(plan).step_time_ns
    least, most = STEPS
    steps = max(least, min(most, round(RUN_S * 1e9 / predicted_ns)))
    measured = api.execute(plan, steps=steps)
    now = yardstick()
    times = measured.trace.step_times_ns()[5:]
    low, high = np.quantile(times, (0.25, 0.75))
    row = Row(
        model=suite_model.name,
        ranks=ranks,
        pins=" ".join(f"{pin} {value}" for pin, value in pins.items()) or "free",
        round=name,
        predicted_s=predicted_ns / 1e9,
        measured_s=measured.step_time_ns / 1e9,
        spread=float(high - low) / median(times),
        slower=now.over(profiled),
    )
    print(
        f"{name:6} {row.model:15} {ranks} {row.pins:52} predicted {row.predicted_s * 1e3:6.1f} ms, "
        f"measured {row.measured_s * 1e3:6.1f} ms, error {row.error:+7.1%}, spread "
        f"{row.spread:5.1%}, machine x {row.slower:.2f}",
        flush=True,
    )
    return row, measured.trace


def _print_ranking(rows: Sequence[Row], suite_model: SuiteModel) -> None:
    """Print how well the plans of a model on two ranks are ordered, and what the pick came to."""
    for name in (BEFORE, AFTER):
        chosen = [
            row for row in rows if (row.model, row.ranks, row.round) == (suite_model.name, 2, name)
        ]
        picks = [row for row in chosen if row.pins.startswith("pick")]
        ranked = [row for row in chosen if row not in picks]
        if len(ranked) < 2:
            continue
        predicted, measured, spreads = (
            [getattr(row, field) for row in ranked]
            for field in ("predicted_s", "measured_s", "spread")
        )
        right, pairs = in_order(predicted, measured, spreads)
        text = (
            f"{name:6} {suite_model.name:15} Spearman {spearman(predicted, measured):.2f}, "
            f"{spearman(predicted, settled(measured, spreads)):.2f} with ties within the spread; "
            f"{right} of {pairs} pairs that differ by more are in order"
        )
        for pick in picks:
            text += f"; the planner's pick {pick.measured_s / min(measured):.3f} of the best"
        print(text, flush=True)


def _print_summary(rows: Sequence[Row]) -> None:
    for name, chosen in _groups(rows):
        errors = [abs(row.error) for row in chosen]
        if errors:
            print(
                f"{name}: {len(errors)} rows, error {fmean(errors):.1%} in the mean, "
                f"{median(errors):.1%} in the median, {max(errors):.1%} at worst"
            )


def _groups(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for name in (BEFORE, AFTER):
        of_round = [row for row in rows if row.round == name]
        yield f"{name}, all", of_round
        counted = [row for row in of_round if row.is_counted]
        yield f"{name}, machine within {UNCHANGED:.0%}", counted


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
