"""Published runs as a user would have them improved: predictions, and signs of single changes.

Run `python -m benchmarks.trainers.improvements TABLE [--runs N] [--processes P]` from the root of
the repository. First N runs, of as many sources and models as there are, are written as their
trainer's settings, read back and predicted as `millrace improve` does; a line has the predicted and
the measured step and whether the measured one lies in the printed range. Then pairs of rows of one
source, of all tiers and frameworks, that differ in one setting: does the predicted change have the
measured one's sign? Pairs whose steps differ by less than `NOISE` say nothing and are left out.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.trainers.round_trips import trainers_of
from benchmarks.trainers.rows import job_of_row
from millrace.figures import prediction_of
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError, ProtocolError
from millrace.planner.worker_processes import map_in_processes
from millrace.published.language import cluster, measured_s
from millrace.published.question import InexpressibleError
from millrace.published.reading import Row, read_table
from millrace.published.single_setting_pairs import KINDS, shared_settings
from millrace.published.step_time_range import plan_range
from millrace.simulator import SimulationError
from millrace.trainers.asking import planned_as_stated
from millrace.trainers.trainer import SettingsError, SettingsSource

NOISE = 0.01  # by so much repeated runs differ
REFUSED = (InexpressibleError, InfeasibleError, PlanError, ClusterError, ProtocolError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """Row with its measured and predicted step, and the range that is printed of it."""

    row: Row
    measured_s: float
    predicted_s: float
    least_s: float = 0.0
    greatest_s: float = 0.0

    @property
    def within(self) -> bool | None:
        """True if the measured step lies in the range; None where none is printed."""
        if not self.greatest_s:
            return None
        return self.least_s <= self.measured_s <= self.greatest_s


def predicted(row: Row) -> PredictedRow | None:
    """Prediction of a row's run, by its trainer's settings where it has any; None: refused."""
    try:
        job, on = job_of_row(row), cluster(row)
        trainer = next(trainers_of(row["framework"]), None)
        if trainer is not None:
            source = SettingsSource(files=trainer.write(job).files, values={})
            job = trainer.read(source).job
        plan = planned_as_stated(job, on)
        step_s = prediction_of(plan).step_time_s
        bounds, _ = plan_range(plan, step_s)
        measured = measured_s(row)
    except (*REFUSED, SettingsError, SimulationError):
        return None
    ends = (0.0, 0.0) if bounds is None else (bounds.low_s, bounds.high_s)
    return PredictedRow(
        row=row, measured_s=measured, predicted_s=step_s, least_s=ends[0], greatest_s=ends[1]
    )


def pairs(rows: Sequence[Row]) -> Iterator[tuple[str, Row, Row]]:
    """Yield pairs of rows that differ in one setting, with its name."""
    for kind, columns in KINDS.items():
        groups: dict[object, list[Row]] = defaultdict(list)
        for row in rows:
            groups[shared_settings(row, kind, columns)].append(row)
        for group in groups.values():
            for first, second in combinations(group, 2):
                if first[kind] != second[kind]:
                    yield kind, first, second


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """Rows of as many sources and models as there are, at most `count`."""
    queues: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        queues[row["source"], row["model"]].append(row)
    chosen: list[Row] = []
    while queues and len(chosen) < count:
        for key in list(queues):
            chosen.append(queues[key].pop(0))
            if not queues[key]:
                del queues[key]
    return chosen[:count]


def main(
    table: Annotated[Path, typer.Argument(help="A table of published runs.")],
    runs: Annotated[int, typer.Option(help="Runs that are predicted one by one.")] = 30,
    pairs_max: Annotated[int, typer.Option(help="Pairs of each setting, at most.")] = 100,
    processes: Annotated[int, typer.Option(help="Processes that plan.")] = 2,
) -> None:
    """Print predictions of runs, then signs of single changes."""
    rows = [row for row in read_table(table).rows if row.get("tier") == "A"]
    runnable = [row for row in rows if any(trainers_of(row["framework"]))]
    answers = map_in_processes(predicted, spread(runnable, 2 * runs), processes)
    shown = [answer for answer in answers if answer is not None][:runs]
    for answer in shown:
        row, error = answer.row, answer.predicted_s / answer.measured_s - 1
        place = {True: "within", False: "outside", None: "no range"}[answer.within]
        print(
            f"{row['framework']:14} {row['model'][:24]:24} {row['gpus']:>5} x {row['gpu']:16} "
            f"{answer.predicted_s:8.3f} s, measured {answer.measured_s:8.3f} s, {error:+6.1%} "
            f"{place}"
        )
    ranged = [answer for answer in shown if answer.within is not None]
    inside = sum(bool(answer.within) for answer in ranged)
    print(f"{inside} of {len(ranged)} measured steps lie in the range that is printed")
    _signs(read_table(table).rows, pairs_max, processes)


def _signs(rows: Sequence[Row], most: int, processes: int) -> None:
    chosen: dict[str, list[tuple[Row, Row]]] = defaultdict(list)
    for kind, first, second in pairs(rows):
        if len(chosen[kind]) < most:
            chosen[kind].append((first, second))
    wanted = {id(row): row for row_pairs in chosen.values() for pair in row_pairs for row in pair}
    answers = dict(
        zip(wanted, map_in_processes(predicted, list(wanted.values()), processes), strict=True)
    )
    total = right = 0
    for kind, row_pairs in chosen.items():
        counted = agreed = 0
        for first, second in row_pairs:
            before, after = answers[id(first)], answers[id(second)]
            if before is None or after is None:
                continue
            measured = after.measured_s / before.measured_s - 1
            if kind == "gpus" or abs(measured) < NOISE:
                continue
            counted += 1
            agreed += (after.predicted_s > before.predicted_s) == (measured > 0)
        if counted:
            print(f"{kind}: {agreed} of {counted} changes have the measured sign")
        total, right = total + counted, right + agreed
    print(f"all: {right} of {total} changes have the measured sign")


if __name__ == "__main__":
    typer.run(main)
