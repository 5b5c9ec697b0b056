"""Comparison results: a plan's prediction and a run of it, actor by actor (`millrace.compare`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.api.data_frames import data_frame
from millrace.api.plan_results import PlanResult, document_of, plan_notes
from millrace.api.run_results import RunResult
from millrace.api.views import ResultView, ShownResult, TableView, check_matplotlib, table_view
from millrace.comparison import ActorRow, CauseRow, Comparison, ErrorCause, join
from millrace.files import load_trace
from millrace.planner.actors.trace import Trace
from millrace.planner.plan import Plan
from millrace.units import format_percent, format_seconds

if TYPE_CHECKING:
    from pandas import DataFrame

    from millrace.pictures.picture_file import Picture


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ComparisonResult(ShownResult):
    """Join of a predicted and a measured trace: the error of the step time, and its causes.

    Attributes
    ----------
    plan : Plan
        The plan that was simulated and run.
    predicted, measured : Trace
        The two traces.
    comparison : Comparison
        The document: actors, causes, phases and critical paths.
    """

    tables_in_text = False

    plan: Plan
    predicted: Trace
    measured: Trace
    comparison: Comparison

    @property
    def predicted_step_time_s(self) -> float:
        """Seconds of the predicted step."""
        return self.comparison.predicted_step_time_s

    @property
    def measured_step_time_s(self) -> float:
        """Seconds of the measured step."""
        return self.comparison.measured_step_time_s

    @property
    def step_time_error(self) -> float:
        """Predicted over measured step time, less one: a fraction."""
        return self.comparison.step_time_error

    @property
    def causes(self) -> tuple[CauseRow, ...]:
        """Seconds per step of the average rank by kind of work, the largest difference first."""
        return self.comparison.causes

    @property
    def error_causes(self) -> tuple[ErrorCause, ...]:
        """Shares of the error in seconds, largest first; together the whole error."""
        return self.comparison.error_causes

    @property
    def actors(self) -> tuple[ActorRow, ...]:
        """Seconds per step of every actor in both traces, the largest difference first."""
        return self.comparison.actors

    @property
    def document(self) -> dict[str, Any]:
        """Comparison as `millrace compare --json` has it."""
        document: dict[str, Any] = msgspec.to_builtins(self.comparison)
        return document

    def save_html(self, path: str | Path) -> None:
        """Write a page with both timelines.

        Parameters
        ----------
        path : str or Path
            The file.

        Raises
        ------
        FileError
            It cannot be written.
        """
        from millrace.comparison_page import write_page

        write_page(Path(path), self.plan, self.predicted, self.measured, self.comparison)

    def to_pandas(self) -> "DataFrame":
        """DataFrame of the actors: `name`, `kind`, `phase`, `predicted_s`, `measured_s`.

        Raises
        ------
        MissingPandasError
            pandas is not installed.
        """
        names = ("name", "kind", "phase", "predicted_s", "measured_s")
        return data_frame({name: getattr(row, name) for name in names} for row in self.actors)

    def picture(self) -> "Picture":
        """Picture of both timelines, on one scale of time.

        Raises
        ------
        MissingMatplotlibError
            matplotlib is not installed.
        """
        check_matplotlib()
        from millrace.pictures.run_pictures import timelines_picture
        from millrace.traces.timeline import timeline

        return timelines_picture([timeline(self.predicted), timeline(self.measured)])

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        from millrace.drawing import headline
        from millrace.tables.causes import blame, cause_table

        error = format_percent(self.step_time_error, signed=True)
        figures = (
            ("predicted step time", format_seconds(self.predicted_step_time_s)),
            ("measured step time", format_seconds(self.measured_step_time_s)),
            ("error", error),
        )
        tables = [table_view(cause_table(self.comparison))] if self.error_causes else []
        tables.append(_cause_rows(self.causes))
        sentence = blame(self.comparison)
        notes = (*plan_notes(self.plan), *filter(None, (sentence,)))
        return ResultView(
            title=headline(self.plan), figures=figures, tables=tuple(tables), notes=notes
        )


def _cause_rows(causes: tuple[CauseRow, ...]) -> TableView:
    return TableView(
        title="",
        columns=("cause (per step, average rank)", "predicted", "measured"),
        numbers=(False, True, True),
        rows=tuple(
            (row.name, format_seconds(row.predicted_s), format_seconds(row.measured_s))
            for row in causes
        ),
    )


def compare(
    planned: PlanResult | Plan, measured: RunResult | Trace | str | Path
) -> ComparisonResult:
    """Join of a plan's prediction with a run of it, actor by actor.

    Parameters
    ----------
    planned : PlanResult or Plan
        The plan that was run; it is simulated op by op.
    measured : RunResult or Trace or str or Path
        The run, its trace, or the file of that.

    Returns
    -------
    ComparisonResult
        The relative error of the step time, its causes, and seconds per step by actor.

    Raises
    ------
    PlanError, FileError
        The trace is of another plan, or holds no finished step or no firings; or its file cannot be
        read.
    """
    from millrace.simulator import predict

    plan = document_of(planned)
    if isinstance(measured, str | Path):
        measured = load_trace(Path(measured))
    trace = measured.trace if isinstance(measured, RunResult) else measured
    predicted = predict(plan, fidelity="op").trace
    return ComparisonResult(
        plan=plan, predicted=predicted, measured=trace, comparison=join(predicted, trace, plan)
    )
