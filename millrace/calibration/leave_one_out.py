"""Leaving a source out: each source is predicted with what is known without it.

All figures are fitted again to the rows of the other sources (`millrace.calibration`); a framework
that no other source runs has the default settings.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import exp

import numpy as np
from msgspec.structs import replace

from millrace.calibration.fitting import fitted
from millrace.calibration.parameters import FittedParameter, scaled
from millrace.calibration.sensitivities import Sensitivities, sensitivities_of
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import framework
from millrace.planner.frameworks.framework_tables import DEFAULT
from millrace.published import framework_of_row
from millrace.published.reading import Row, Table
from millrace.published.validation import ROW_READERS, RowQuestion, Told, Tuned, ask, source

Factors = dict[FittedParameter, float]


def left_out(table: Table, processes: int = 1, told: Told = lambda done, of: None) -> Tuned:
    """Make a function that changes a row's cluster to what is known without the row's source.

    Its figures are fitted to all other sources. `told` is told how many questions are answered,
    and how many there are; what comes out does not depend on `processes`.
    """
    questions = [ask(row, table.layout) for row in table.rows if row["tier"] == "A"]
    return left_out_of(table, questions, processes, told)


def left_out_of(
    table: Table,
    questions: Sequence[RowQuestion],
    processes: int = 1,
    told: Told = lambda done, of: None,
) -> Tuned:
    """Make the function of `left_out` from some of a table's rows only.

    Parameters
    ----------
    table : Table
        All rows: they say which frameworks no other source runs.
    questions : sequence of RowQuestion
        Those of its rows that figures are fitted to.
    processes : int
        Worker processes; what comes out does not depend on them.
    told : callable
        Called with how many questions are answered, and how many there are.
    """
    answers = sensitivities_of(questions, processes, told)
    fits = {
        left_source: _without(left_source, questions, answers)
        for left_source in {source(question.row) for question in questions}
    }
    return _tuned(table, fits)


def _without(left: str, questions: Sequence[RowQuestion], answers: Sensitivities) -> Factors:
    """Factors on all figures when they are fitted to the other sources, by parameter."""
    counts = np.array([float(source(questions[row].row) != left) for row in answers.rows])
    fit = fitted(answers.parameters, answers.now, answers.slopes, answers.residuals, counts=counts)
    return {
        parameter: fit.values[parameter] / exp(now)
        for parameter, now in zip(answers.parameters, answers.now, strict=True)
    }


def _tuned(table: Table, fits: dict[str, Factors]) -> Callable[[Row, Cluster], Cluster]:
    reader = ROW_READERS[table.layout]
    sources: dict[str, set[str]] = defaultdict(set)
    for row in table.rows:
        if row["tier"] == "A":
            sources[reader.framework_name(row)].add(source(row))

    def tuned(row: Row, cluster: Cluster) -> Cluster:
        left = source(row)
        if not sources[reader.framework_name(row)] - {left}:
            software = framework_of_row.as_set(framework(DEFAULT), row, cluster.device)
            cluster = replace(cluster, software=software)
        return scaled(cluster, fits.get(left, {}))

    return tuned
