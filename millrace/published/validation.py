"""Validation: every row of a table predicted, equal questions once, and its error.

`validate` gives one document per row, in the file's order. Figures of a cluster may be changed per
row (`Tuned`): what a source was left out of is predicted with what was fitted without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from millrace.models.graph import to_json
from millrace.planner.cluster import Cluster
from millrace.planner.search import Pins
from millrace.planner.worker_processes import map_in_processes
from millrace.published import dlperf, language, named_models
from millrace.published.prediction import Predicted, answer
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import LINE, Row, Table, TableFormat, check_whole, number

# A row and its cluster -> the cluster to predict it on.
Tuned = Callable[[Row, Cluster], Cluster]
STATE = "mem_alloc_bytes"  # column of what is allocated between steps, where a layout has it


class Asking(Protocol):
    """Job about a question."""

    @property
    def question(self) -> Question:
        """The question."""


Job = TypeVar("Job", bound=Asking)
Answer = TypeVar("Answer")
Told = Callable[[int, int], None]  # how many questions are answered, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuestion:
    """Row as a question with pins and the cluster to predict on, or the reason why it is none.

    `measured_s` is 0 where the run ended for want of memory, and None where it is not judged.
    """

    row: Row
    question: Question | None = None
    pins: Pins = field(default_factory=Pins)
    cluster: Cluster | None = None
    measured_s: float | None = 0.0
    peak_bytes: float | None = None
    state_bytes: float | None = None
    notes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class PredictionJob:
    """Question with pins, and the clusters that it is predicted on."""

    question: Question
    pins: Pins
    clusters: list[Cluster] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """Outcome of a row: a prediction, or the reason why there is none."""

    row_question: RowQuestion
    predicted: Predicted | None = None
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Error of the predicted step time: predicted over measured, less one; None without."""
        if self.predicted is None or not self.row_question.measured_s:
            return None
        return self.predicted.step_time_s / self.row_question.measured_s - 1


class TableReader(Protocol):
    """Module of a layout: what it makes of a row."""

    def question(self, row: Row) -> tuple[Question, Pins]:
        """Question that a row asks, and what it pins; raises InexpressibleError."""

    def measured_s(self, row: Row) -> float | None:
        """Step time that was measured, in seconds, 0 or None; raises InexpressibleError."""

    def peak_bytes(self, row: Row) -> float | None:
        """Peak of allocated memory, where it is printed; raises InexpressibleError."""

    def approximations(self, row: Row) -> list[str]:
        """Differences between the row and its question; raises InexpressibleError."""

    def framework_name(self, row: Row) -> str:
        """Software of a row."""


ROW_READERS: dict[TableFormat, TableReader] = {
    TableFormat.LANGUAGE: language,
    TableFormat.DLPERF: dlperf,
    TableFormat.NAMED: named_models,
}


def source(row: Row) -> str:
    """Publisher of a row; where the table does not say, the framework."""
    return row.get("source") or row["framework"]


def ask(
    row: Row,
    layout: TableFormat,
    tuned: Tuned | None = None,
    readers: Mapping[TableFormat, TableReader] = ROW_READERS,
) -> RowQuestion:
    """Row as a question, or the reason why it is none."""
    reader = readers[layout]
    try:
        check_whole(row)
        measured_s, peak_bytes = reader.measured_s(row), reader.peak_bytes(row)
        state = number(row, STATE) if STATE in row else None
        question, pins = reader.question(row)
        notes = tuple(reader.approximations(row))
    except InexpressibleError as error:
        return RowQuestion(row=row, reason=f"line {row[LINE]}: {error}")
    cluster = question.cluster
    if tuned is not None:
        cluster = tuned(row, cluster)
    return RowQuestion(
        row=row,
        question=question,
        pins=pins,
        cluster=cluster,
        measured_s=measured_s,
        peak_bytes=peak_bytes,
        state_bytes=state,
        notes=notes,
    )


def validate(
    table: Table,
    *,
    tuned: Tuned | None = None,
    readers: Mapping[TableFormat, TableReader] = ROW_READERS,
    processes: int = 1,
    told: Told = lambda done, of: None,
    fidelity: str | None = None,
) -> list[RowOutcome]:
    """Predict every row of a table.

    `tuned` changes the figures (not the shape) of a row's cluster before it is predicted, `readers`
    read the rows of a layout, `told` is told how many of the questions are answered. What comes out
    does not depend on `processes`. `fidelity` is another than a plan's size allows, as for
    `predict_fast`.
    """
    asked = [ask(row, table.layout, tuned, readers) for row in table.rows]
    jobs: dict[object, PredictionJob] = {}
    for row_question in asked:
        if row_question.question is None or row_question.cluster is None:
            continue
        job = jobs.setdefault(
            _key(row_question), PredictionJob(row_question.question, row_question.pins)
        )
        if row_question.cluster not in job.clusters:
            job.clusters.append(row_question.cluster)
    answers = answered(partial(_work, fidelity), jobs, processes, told)
    return [_outcome(question_row, jobs, answers) for question_row in asked]


def answered(
    work: Callable[[Job], Answer], jobs: Mapping[object, Job], processes: int, told: Told
) -> dict[object, Answer]:
    """Answers to questions about models; those of one training graph are one process's, in turn.

    Parameters
    ----------
    work : callable
        Answers one job.
    jobs : mapping
        Jobs by their keys; each has a `question`.
    processes : int
        Worker processes; what comes out does not depend on them.
    told : callable
        Called with how many questions are answered, and how many there are.
    """
    groups: dict[object, list[object]] = {}
    for key, job in jobs.items():
        graph = to_json(job.question.model), to_json(job.question.training)
        groups.setdefault(graph, []).append(key)
    # Large groups come first, so that no process waits for another's last.
    keys = sorted(groups.values(), key=len, reverse=True)
    rows = map_in_processes(
        lambda group: [work(jobs[key]) for key in group], keys, min(processes, len(keys) or 1)
    )
    answers: dict[object, Answer] = {}
    for group, row in zip(keys, rows, strict=True):
        answers |= zip(group, row, strict=True)
        told(len(answers), len(jobs))
    return answers


def _key(row_question: RowQuestion) -> object:
    assert row_question.question is not None
    return row_question.question.key, row_question.pins


def _outcome(
    row_question: RowQuestion, jobs: dict[object, PredictionJob], answers: dict[object, Any]
) -> RowOutcome:
    if row_question.question is None or row_question.cluster is None:
        return RowOutcome(row_question=row_question, reason=row_question.reason)
    reason, predictions, notes = answers[_key(row_question)]
    if reason:
        return RowOutcome(
            row_question=row_question, reason=f"line {row_question.row[LINE]}: {reason}"
        )
    index = jobs[_key(row_question)].clusters.index(row_question.cluster)
    return RowOutcome(
        row_question=row_question, predicted=predictions[index], notes=(*row_question.notes, *notes)
    )


def _work(fidelity: str | None, job: PredictionJob) -> Any:
    return answer(job.question, job.pins, tuple(job.clusters), fidelity)
