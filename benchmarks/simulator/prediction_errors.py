"""Errors of predictions of published runs by group, and the file of them that the package ships.

Run `python -m benchmarks.simulator.prediction_errors [CSV...] [--per-source N] [--peaks]
[--processes P] [--write]` from the root of the repository. Without a table it prints the groups
that the package ships. With tables (docs/accuracy.md says where from) at most N runs, evenly
spaced, of every source, framework, class of devices and kind of model are predicted with what is
known without their source (`millrace/calibration/leave_one_out.py`), and again with the shares that
their device would have if none of its generation had been measured
(`millrace/planner/clusters/assumed_shares.py`). With `--peaks` it is the peaks of memory of all
runs that print one, on which no fitted figure has a bearing. With `--write` the groups' quantiles
of measured over predicted step time, less one, or those of peaks, replace what is in
`millrace/published/prediction_errors.toml`; figures of single runs are written nowhere.
"""

import datetime
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

import millrace.published
from millrace.calibration.leave_one_out import left_out_of
from millrace.planner.cluster import Cluster
from millrace.planner.clusters.assumed_shares import assumed_shares
from millrace.planner.frameworks.framework_tables import DEFAULT
from millrace.published.reading import Row, Table, TableFormat, read_table
from millrace.published.step_time_range import (
    ERRORS_FILE,
    UNMEASURED,
    ErrorGroup,
    ErrorTable,
    ModelKind,
    PeakErrors,
    device_class,
    error_table,
    model_kind,
)
from millrace.published.validation import (
    RowOutcome,
    RowQuestion,
    Told,
    Tuned,
    ask,
    source,
    validate,
)

COMMAND = "python -m benchmarks.simulator.prediction_errors"
DIGITS = 4
PEAK_STEPS = 50  # between quantiles of the errors of peaks
HEAD = """\
# Errors of Millrace's predictions of published training runs, by group: quantiles of measured over
# predicted step time, less one. Each run was predicted with what is known without its source; a
# framework that no other source runs, with the default settings. Groups of the device `unmeasured`
# hold all runs, each predicted as if no device of its generation had been measured. Written by the
# command below.
"""
PEAKS_HEAD = (
    "# Quantiles of measured less predicted peak of memory, as shares of the device's memory."
)
# The table in DLPerf's layout names frameworks only; all of it is one publisher's.
DLPERF_SOURCE = "DLPerf"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """Error of a run's prediction, and the groups that it counts in.

    `deviation` is measured over predicted step time, less one. `frameworks` holds the run's own
    and, where it was predicted with the default settings, these too.
    """

    frameworks: tuple[str, ...]
    device: str
    kind: ModelKind
    source: str
    deviation: float


def sampled_questions(table: Table, per_source: int) -> list[RowQuestion]:
    """Questions of at most so many rows of every source, framework, class of devices and kind.

    Twice as many hold those of half as many, so that a larger sample adds to a smaller one.
    """
    asked = [ask(row, table.layout) for row in table.rows if row["tier"] == "A"]
    expressed = [question_row for question_row in asked if question_row.question is not None]
    places: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for index, question_row in enumerate(expressed):
        places[source(question_row.row), *_place(question_row)].append(index)
    chosen = {
        indices[number * len(indices) // per_source]
        for indices in places.values()
        for number in range(per_source)
    }
    return [expressed[index] for index in sorted(chosen)]


def _place(question_row: RowQuestion) -> tuple[str, str, ModelKind]:
    """Framework, class of devices and kind of model of a row."""
    assert question_row.question is not None
    cluster = question_row.question.cluster
    kind = model_kind(question_row.question.model)
    return cluster.software.name, device_class(cluster.device.name), kind


def as_unmeasured(tuned: Tuned) -> Tuned:
    """Make a function that also gives a row's device the shares of one that nobody measured."""

    def retuned(row: Row, cluster: Cluster) -> Cluster:
        cluster = tuned(row, cluster)
        shares = assumed_shares(cluster.device.name, alien=True)
        device = msgspec.structs.replace(cluster.device, **shares)
        return msgspec.structs.replace(cluster, device=device)

    return retuned


def run_errors(
    table: Table, questions: Sequence[RowQuestion], tuned: Tuned, processes: int, told: Told
) -> list[RunError]:
    """Errors of runs, each predicted with the figures that `tuned` gives its cluster."""
    rows: tuple[Row, ...] = tuple(question_row.row for question_row in questions)
    outcomes = validate(replace(table, rows=rows), tuned=tuned, processes=processes, told=told)
    errors = []
    for outcome in outcomes:
        if outcome.error is None:
            continue
        framework, device, kind = _place(outcome.row_question)
        assert outcome.row_question.cluster is not None
        settings = outcome.row_question.cluster.software.name
        dlperf = table.layout is TableFormat.DLPERF
        errors.append(
            RunError(
                frameworks=tuple({framework, settings} if settings == DEFAULT else {framework}),
                device=device,
                kind=kind,
                source=DLPERF_SOURCE if dlperf else source(outcome.row_question.row),
                deviation=1 / (1 + outcome.error) - 1,
            )
        )
    return errors


def error_groups(errors: Iterable[RunError]) -> tuple[ErrorGroup, ...]:
    """Groups of runs of one kind of model, framework and class of devices, and of any of these."""
    members: dict[tuple[ModelKind, str, str], list[RunError]] = defaultdict(list)
    for error in errors:
        for framework, device in product((*error.frameworks, ""), (error.device, "")):
            members[error.kind, framework, device].append(error)
    return tuple(
        _error_group(*place, group) for place, group in sorted(members.items(), key=lambda m: m[0])
    )


def unmeasured_groups(errors: Iterable[RunError]) -> tuple[ErrorGroup, ...]:
    """Groups by kind of model of runs that were predicted as if on devices nobody measured."""
    of_devices = [replace(error, frameworks=(), device=UNMEASURED) for error in errors]
    return tuple(group for group in error_groups(of_devices) if group.device)


def _error_group(
    kind: ModelKind, framework: str, device: str, group: Sequence[RunError]
) -> ErrorGroup:
    quantiles = np.quantile([error.deviation for error in group], [0, 0.1, 0.5, 0.9, 1])
    names = ("least", "tenth", "median", "ninetieth", "greatest")
    return ErrorGroup(
        framework=framework,
        device=device,
        kind=kind,
        runs=len(group),
        sources=len({error.source for error in group}),
        **dict(zip(names, (round(float(value), DIGITS) for value in quantiles), strict=True)),
    )


def peak_share(outcome: RowOutcome) -> float | None:
    """Measured less predicted peak of a run as a share of its device's memory; None without."""
    asked, predicted = outcome.row_question, outcome.predicted
    if predicted is None or asked.peak_bytes is None or asked.cluster is None:
        return None
    return (asked.peak_bytes - predicted.peak_bytes) / asked.cluster.device.memory_bytes


def peak_errors(shares: Iterable[float | None], command: str, date: str) -> PeakErrors:
    """Errors of the peaks of runs, as the package ships them."""
    told = [share for share in shares if share is not None]
    quantiles = np.quantile(told, np.linspace(0, 1, PEAK_STEPS + 1)).tolist()
    return PeakErrors(
        command=command,
        date=date,
        rows=len(told),
        quantiles=tuple(round(share, DIGITS) for share in quantiles),
    )


def drawn(table: ErrorTable) -> str:
    """Text of a table of the groups, a line each."""
    columns = "".join(f"{name:>8}" for name in ("least", "10 %", "median", "90 %", "most"))
    lines = [f"{'published runs of':56}{'runs':>6}{'sources':>8}{columns}"]
    for group in table.groups:
        shares = (group.least, group.tenth, group.median, group.ninetieth, group.greatest)
        cells = "".join(f"{f'{share:+.0%}':>8}" for share in shares)
        lines.append(f"{group.text:56}{group.runs:>6}{group.sources:>8}{cells}")
    said = f"{table.rows} runs, predicted without their source ({table.date}: {table.command})"
    return "\n".join([*lines, said])


def toml_text(table: ErrorTable) -> str:
    """Text of the file that the package ships, a line per group."""
    fields = msgspec.to_builtins(table)
    groups = [_inline(group) for group in fields.pop("groups")]
    peaks = fields.pop("peaks")
    head = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    lines = [*head, "groups = [", *(f"    {group}," for group in groups), "]"]
    if peaks is not None:
        lines += ["", PEAKS_HEAD, "[peaks]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in peaks.items()]
    return HEAD + "\n".join([*lines, ""])


def _inline(fields: dict[str, str | int | float]) -> str:
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in fields.items())
    return f"{{ {pairs} }}"


def main(
    tables: Annotated[list[Path] | None, typer.Argument()] = None,
    per_source: int = 4,
    peaks: Annotated[bool, typer.Option("--peaks")] = False,
    processes: int = os.cpu_count() or 1,
    write: Annotated[bool, typer.Option("--write")] = False,
) -> None:
    """Print the groups, and write them where wanted."""
    if not tables:
        typer.echo(drawn(error_table()))
        return
    errors: list[RunError] = []
    shares: list[float | None] = []
    unmeasured: list[RunError] = []
    for path in tables:

        def report_progress(done: int, of: int, name: str = path.name) -> None:
            if done % 20 == 0 or done == of:
                typer.echo(f"{name}: {done} of {of} questions", err=True)

        table = read_table(path)
        if peaks:
            rows = tuple(row for row in table.rows if row.get("peak_mem_gb") and row["tier"] == "A")
            judged = replace(table, rows=rows)
            shares += map(peak_share, validate(judged, processes=processes, told=report_progress))
            continue
        questions = sampled_questions(table, per_source)
        tuned = left_out_of(table, questions, processes, report_progress)
        asked = (table, questions)
        errors += run_errors(*asked, tuned, processes, report_progress)
        unmeasured += run_errors(*asked, as_unmeasured(tuned), processes, report_progress)
    names = " ".join(path.as_posix() for path in tables)
    today = datetime.date.today().isoformat()
    document = ErrorTable(
        command=f"{COMMAND} {names} --per-source {per_source} --write",
        date=today,
        rows=len(errors),
        groups=(*error_groups(errors), *unmeasured_groups(unmeasured)),
        peaks=error_table().peaks,
    )
    if peaks:
        document = msgspec.structs.replace(
            error_table(),
            peaks=peak_errors(shares, command=f"{COMMAND} {names} --peaks --write", date=today),
        )
    typer.echo(drawn(document))
    if write:
        path = Path(millrace.published.__file__).parent / ERRORS_FILE
        path.write_text(toml_text(document), "utf-8")


if __name__ == "__main__":
    typer.run(main)
