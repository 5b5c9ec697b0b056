"""Validation: every row of a table predicted, equal questions once, and its error.

`validate` gives one document per row, in the file's order. Figures of a cluster may be changed per
row (`Tuned`): what a source was left out of is predicted with what was fitted without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from millrace.planner.children import in_children
from millrace.planner.cluster import Cluster
from millrace.planner.search import Pins
from millrace.published import dlperf, language
from millrace.published.prediction import Predicted, answer
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import LINE, Layout, Row, Table, check_whole

# A row and its cluster -> the cluster to predict it on.
Tuned = Callable[[Row, Cluster], Cluster]
Told = Callable[[int, int], None]  # how many questions are answered, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A row as a question with pins and the cluster to predict on, or why it is not."""

    row: Row
    question: Question | None = None
    pins: Pins = field(default_factory=Pins)
    cluster: Cluster | None = None
    measured_s: float = 0.0
    peak_bytes: float | None = None
    notes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class Job:
    """A question with pins, and the clusters that it is predicted on."""

    question: Question
    pins: Pins
    clusters: list[Cluster] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a row: a prediction, or the reason why there is none."""

    asked: Asked
    predicted: Predicted | None = None
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, less one."""
        if self.predicted is None:
            return None
        return self.predicted.step_time_s / self.asked.measured_s - 1


class Reader(Protocol):
    """What the module of a layout makes of a row."""

    def question(self, row: Row) -> tuple[Question, Pins]:
        """What a row asks and what it pins; raises InexpressibleError."""

    def measured_s(self, row: Row) -> float:
        """The step time that was measured; raises InexpressibleError."""

    def peak_bytes(self, row: Row) -> float | None:
        """The peak of allocated memory, where it is printed; raises InexpressibleError."""

    def approximations(self, row: Row) -> list[str]:
        """What the row says and its question does not; raises InexpressibleError."""

    def framework_name(self, row: Row) -> str:
        """The software of a row."""


READERS: dict[Layout, Reader] = {Layout.LANGUAGE: language, Layout.DLPERF: dlperf}


def source(row: Row) -> str:
    """Who published a row; where the table does not say, the framework."""
    return row.get("source") or row["framework"]


def ask(row: Row, layout: Layout, tuned: Tuned | None = None) -> Asked:
    """Return a row as a question, or the reason why it is none."""
    reader = READERS[layout]
    try:
        check_whole(row)
        measured_s, peak_bytes = reader.measured_s(row), reader.peak_bytes(row)
        question, pins = reader.question(row)
        notes = tuple(reader.approximations(row))
    except InexpressibleError as error:
        return Asked(row=row, reason=f"line {row[LINE]}: {error}")
    cluster = question.cluster
    if tuned is not None:
        cluster = tuned(row, cluster)
    return Asked(
        row=row,
        question=question,
        pins=pins,
        cluster=cluster,
        measured_s=measured_s,
        peak_bytes=peak_bytes,
        notes=notes,
    )


def validate(
    table: Table,
    *,
    tuned: Tuned | None = None,
    processes: int = 1,
    told: Told = lambda done, of: None,
) -> list[Outcome]:
    """Predict every row of a table.

    Parameters
    ----------
    table : Table
        As `read_table` gives it.
    tuned : callable, optional
        Changes the figures (not the shape) of a row's cluster before it is predicted.
    processes : int
        In how many processes to plan; what comes out does not depend on it.
    told : callable
        Told how many of the questions are answered.

    Returns
    -------
    list of Outcome
        One per row, in the table's order.
    """
    asked = [ask(row, table.layout, tuned) for row in table.rows]
    jobs: dict[object, Job] = {}
    for one in asked:
        if one.question is None or one.cluster is None:
            continue
        job = jobs.setdefault(_key(one), Job(one.question, one.pins))
        if one.cluster not in job.clusters:
            job.clusters.append(one.cluster)
    answers = {}
    for key, found in zip(jobs, in_children(_work, list(jobs.values()), processes), strict=True):
        answers[key] = found
        told(len(answers), len(jobs))
    return [_outcome(one, jobs, answers) for one in asked]


def _key(one: Asked) -> object:
    assert one.question is not None
    return one.question.key, one.pins


def _outcome(one: Asked, jobs: dict[object, Job], answers: dict[object, Any]) -> Outcome:
    if one.question is None or one.cluster is None:
        return Outcome(asked=one, reason=one.reason)
    reason, predictions, notes = answers[_key(one)]
    if reason:
        return Outcome(asked=one, reason=f"line {one.row[LINE]}: {reason}")
    at = jobs[_key(one)].clusters.index(one.cluster)
    return Outcome(asked=one, predicted=predictions[at], notes=(*one.notes, *notes))


def _work(job: Job) -> Any:
    return answer(job.question, job.pins, tuple(job.clusters))
