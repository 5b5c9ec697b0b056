"""Improvement results: gains of single changes to a job that runs today (`millrace.improve`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.api.data_frames import data_frame
from millrace.api.plan_results import PlanResult
from millrace.api.views import ResultView, ShownResult, table_view
from millrace.improvement import Improvement, improved
from millrace.improvement.improved_job import ChangeOutcome
from millrace.improvement.improvement_tables import (
    change_document,
    change_table,
    closing_lines,
    improvement_document,
    today_lines,
)
from millrace.trainers.catalogue import read_settings
from millrace.trainers.sources import source_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ImprovementResult(ShownResult):
    """A job as it runs, its changes ranked by what each gains, and the best plan of its trainer.

    Attributes
    ----------
    improvement : Improvement
        The values behind it.
    remarks : tuple of str
        Sentences on what the settings leave open, and on what of them has no place in a plan.
    """

    improvement: Improvement
    remarks: tuple[str, ...] = ()

    @property
    def today(self) -> PlanResult:
        """Plan that the job runs."""
        return PlanResult(plan=self.improvement.plan)

    @property
    def best(self) -> PlanResult | None:
        """Best plan of the trainer that fits; None where it was not searched or none fits."""
        plan = self.improvement.free_plan
        return None if plan is None else PlanResult(plan=plan)

    @property
    def changes(self) -> tuple[ChangeOutcome, ...]:
        """Changes, the one that gains most first; those that do not fit come last."""
        return self.improvement.outcomes

    @property
    def document(self) -> dict[str, Any]:
        """Fields as `millrace improve --json` has them."""
        return improvement_document(self.improvement)

    def to_pandas(self) -> "DataFrame":
        """DataFrame of the changes.

        Raises
        ------
        MissingPandasError
            pandas is not installed.
        """
        return data_frame([change_document(outcome) for outcome in self.changes])

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        title, *lines = today_lines(self.improvement)
        gains = [max(outcome.gain, 0.0) for outcome in self.changes]
        return ResultView(
            title=title,
            tables=(table_view(change_table(self.improvement), gains, "gain"),),
            notes=(*lines, *closing_lines(self.improvement), *self.remarks),
        )


def improve(
    settings: str | Path | Sequence[str],
    cluster: str | None = None,
    *,
    trainer: str | None = None,
    measured_s: float | None = None,
    nodes: int = 0,
    devices_per_node: int = 0,
    values: Mapping[str, str] | None = None,
    search: bool = True,
    progress: Callable[[str], None] | None = None,
) -> ImprovementResult:
    """Gains of a job that runs today: from each single change, and from its trainer's best plan.

    Parameters
    ----------
    settings : str, Path or sequence of str
        Files, a folder of files, or the command line that starts the job.
    cluster : str, optional
        Its devices: `h100`, or a whole cluster; exported settings say it themselves.
    trainer : str, optional
        Whose settings they are; by default told from the settings.
    measured_s : float, optional
        Seconds of its step as measured: predictions are corrected by it where it lies in their
        range, and else left as they are.
    nodes, devices_per_node : int
        Of the job, where the settings leave them open.
    values : mapping, optional
        Variables of scripts, or settings, that the files leave open.
    search : bool
        Search for the best plan of the trainer too.
    progress : callable, optional
        Called with a sentence about what is being tried.

    Returns
    -------
    ImprovementResult
        Changes by gain, with what each does to memory.

    Raises
    ------
    SettingsError, FileError
        The settings cannot be read or understood; names the place and the fix.
    ClusterError, InfeasibleError
        The devices are others than the job's, or its choices contradict each other.
    """
    named = [str(settings)] if isinstance(settings, str | Path) else list(settings)
    source = source_of(named, values or {}, nodes, devices_per_node, cluster)
    reader, read = read_settings(source, trainer, "trainer")
    improvement = improved(
        read.job,
        cluster,
        trainer=reader,
        given=read.given,
        measured_s=measured_s,
        free=search,
        progress=progress,
    )
    return ImprovementResult(improvement=improvement, remarks=read.remarks)
