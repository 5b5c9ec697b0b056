"""A job as it runs, its single changes ranked by what each gains, and its framework's free plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from millrace.api.plan_search import search
from millrace.figures import prediction_of
from millrace.improvement.setting_changes import SettingChange, setting_changes
from millrace.improvement.single_changes import SingleChange, single_changes
from millrace.planner.cluster import Cluster
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError, ProtocolError
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.memory import DEFAULT_RESERVE
from millrace.planner.plan import Plan, Prediction
from millrace.planner.search import Pins
from millrace.planner.worker_processes import map_in_processes
from millrace.published.step_time_range import StepTimeRange, plan_range
from millrace.requested_cluster import cluster_of, with_software
from millrace.scaling.bottlenecks import resources, step_bottlenecks
from millrace.simulator import SimulationError
from millrace.trainers.asking import cluster_text, planned_as_stated, question_of
from millrace.trainers.job import TrainingJob
from millrace.trainers.job_of_plan import job_of
from millrace.trainers.trainer import Trainer

Progress = Callable[[str], None]
# What a change may be refused for: its choices contradict each other, or nothing can run it.
REFUSED = (InfeasibleError, PlanError, ClusterError, ProtocolError, SimulationError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOutcome:
    """Outcome of one change.

    Attributes
    ----------
    change : SingleChange
        The change.
    step_time_s : float
        Seconds of a step with it, corrected by the measured step where there is one.
    gain : float
        Share of the step that it saves; below zero where it is slower.
    memory_bytes_max : int
        Bytes on the fullest device.
    spare_bytes : int
        Bytes that a device has left; below zero where it does not fit.
    risky : bool
        The reserve is not left free: it may not fit once it runs.
    settings : tuple of SettingChange
        Settings of the trainer that are new or other with it.
    """

    change: SingleChange
    step_time_s: float
    gain: float
    memory_bytes_max: int
    spare_bytes: int
    risky: bool
    settings: tuple[SettingChange, ...] = ()

    @property
    def speed_gain(self) -> float:
        """Share by which tokens a second grow."""
        return speed_gain(self.gain)

    @property
    def fits(self) -> bool:
        """True if all of it fits on every device."""
        return self.spare_bytes >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A job as it runs, and what would make it faster.

    Attributes
    ----------
    job : TrainingJob
        As its settings describe it.
    plan : Plan
        The plan that it runs.
    predicted_s : float
        Seconds of its step as predicted.
    measured_s : float or None
        Seconds as they were measured, where the user says.
    range_text : str
        How sure the prediction is, in words.
    expected : StepTimeRange or None
        The range of the prediction; None where no published run is like the job.
    memory_bytes_max, spare_bytes : int
        Bytes on its fullest device, and what is left of it.
    bottlenecks : mapping
        Fractions of the step by what they go to, the largest first.
    binding : mapping
        The same by resource.
    outcomes : tuple of ChangeOutcome
        Changes that can run, the one that gains most first; those that do not fit come last.
    refused : tuple of (SingleChange, str)
        Changes that cannot run, with the reason.
    free_plan : Plan or None
        The fastest plan of the same framework that fits, with no choice pinned.
    free_gain : float or None
        Share of the step that it saves.
    free_job : TrainingJob or None
        The same plan as a job of the trainer.
    free_settings : tuple of SettingChange
        Settings by which it differs from the job.
    """

    job: TrainingJob
    plan: Plan
    predicted_s: float
    measured_s: float | None
    range_text: str
    expected: StepTimeRange | None
    memory_bytes_max: int
    spare_bytes: int
    bottlenecks: Mapping[str, float]
    binding: Mapping[str, float]
    outcomes: tuple[ChangeOutcome, ...]
    refused: tuple[tuple[SingleChange, str], ...]
    free_plan: Plan | None
    free_gain: float | None
    free_job: TrainingJob | None = None
    free_settings: tuple[SettingChange, ...] = ()

    @property
    def correction(self) -> float:
        """Factor on all predicted step times: measured over predicted, within the range."""
        return _correction(self.measured_s, self.predicted_s, self.expected)

    @property
    def unexpected(self) -> bool:
        """True where the measured step lies outside of the range of the prediction."""
        return _unexpected(self.measured_s, self.expected)

    @property
    def gaining(self) -> list[tuple[float, str, TrainingJob]]:
        """Gains, names and jobs of what fits safely and gains, the largest first."""
        jobs = [
            (outcome.gain, outcome.change.text, outcome.change.job)
            for outcome in self.outcomes
            if outcome.fits and not outcome.risky and outcome.settings
        ]
        if self.free_job is not None and self.free_settings:
            name = f"the best plan of {self.job.framework}"
            jobs.append((self.free_gain or 0.0, name, self.free_job))
        return sorted((row for row in jobs if row[0] > 0), key=lambda row: -row[0])


def _unexpected(measured_s: float | None, expected: StepTimeRange | None) -> bool:
    if measured_s is None or expected is None:
        return False
    return not expected.low_s <= measured_s <= expected.high_s


def _correction(
    measured_s: float | None, predicted_s: float, expected: StepTimeRange | None
) -> float:
    """Factor on predicted step times; 1 where another thing than predicted was measured."""
    if measured_s is None or _unexpected(measured_s, expected):
        return 1.0
    return measured_s / predicted_s


def speed_gain(gain: float) -> float:
    """Share by which tokens a second grow where a step saves a share of its time.

    Parameters
    ----------
    gain : float
        The share of time, below 1.
    """
    return 1 / (1 - gain) - 1


def improved(
    job: TrainingJob,
    cluster: str | None = None,
    *,
    trainer: Trainer | None = None,
    given: Mapping[str, Any] | None = None,
    measured_s: float | None = None,
    free: bool = True,
    processes: int = 1,
    progress: Progress | None = None,
) -> Improvement:
    """A job as it runs today, with its single changes ranked, and the free plan.

    Parameters
    ----------
    job : TrainingJob
        As settings describe it.
    cluster : str, optional
        Its devices, where the job does not say which (`millrace.trainers.asking.cluster_text`).
    trainer : Trainer, optional
        In whose settings changes are said; by default in none.
    given : mapping, optional
        Settings of the job as they are given (`ReadSettings.given`).
    measured_s : float, optional
        Seconds of its step as measured: predictions are corrected by it where it lies in their
        range.
    free : bool
        Search for the framework's free plan too, which may take as long as `millrace plan`.
    processes : int
        Processes that try changes.
    progress : callable, optional
        Called with a sentence about what is being tried.

    Raises
    ------
    SettingsError, ClusterError
        It is not said which devices they are, or there are others.
    InfeasibleError
        The job's own choices contradict each other.
    PlanError
        The measured step is no positive number of seconds.
    """
    if measured_s is not None and not 0 < measured_s < 1e6:
        raise PlanError(f"--measured {measured_s:g}: expected seconds of a step, above 0")
    named = with_software(
        cluster_of(cluster_text(job, cluster), None, True, progress), job.framework
    )
    tell = progress or (lambda text: None)
    tell("planning the job as it runs")
    plan = planned_as_stated(job, named)
    today = prediction_of(plan)
    expected, range_text = plan_range(plan, today.step_time_s)
    correction = _correction(measured_s, today.step_time_s, expected)
    runs = capabilities(job.framework)
    changes = single_changes(job, runs)
    tried: list[Prediction | str] = []
    for answer in map_in_processes(partial(_tried, named), changes, processes):
        tell(f"{len(tried) + 1} of {len(changes)} changes")
        tried.append(answer)
    outcomes = [
        replace(
            _outcome(change, prediction, today, named, correction),
            settings=_settings(job, change.job, trainer, given),
        )
        for change, prediction in zip(changes, tried, strict=True)
        if isinstance(prediction, Prediction)
    ]
    refused = tuple(
        (change, text) for change, text in zip(changes, tried, strict=True) if isinstance(text, str)
    )
    bottlenecks = step_bottlenecks(plan)
    free_plan = _free_plan(job, named, progress) if free else None
    free_step = None if free_plan is None else prediction_of(free_plan).step_time_s
    free_job = _job_of(free_plan, job, trainer)
    return Improvement(
        job=job,
        plan=plan,
        predicted_s=today.step_time_s,
        measured_s=measured_s,
        range_text=range_text,
        expected=expected,
        memory_bytes_max=int(today.memory_bytes_max or 0),
        spare_bytes=_device_bytes(named) - int(today.memory_bytes_max or 0),
        bottlenecks=bottlenecks,
        binding=resources(bottlenecks),
        outcomes=tuple(sorted(outcomes, key=lambda outcome: (not outcome.fits, -outcome.gain))),
        refused=refused,
        free_plan=free_plan,
        free_gain=None if free_step is None else 1 - free_step / today.step_time_s,
        free_job=free_job,
        free_settings=() if free_job is None else _settings(job, free_job, trainer, given),
    )


def _tried(cluster: Cluster, change: SingleChange) -> Prediction | str:
    """Prediction of a change, or why it cannot run."""
    try:
        return prediction_of(planned_as_stated(change.job, cluster))
    except REFUSED as error:
        return str(error)


def _outcome(
    change: SingleChange,
    prediction: Prediction,
    today: Prediction,
    cluster: Cluster,
    correction: float,
) -> ChangeOutcome:
    needed = int(prediction.memory_bytes_max or 0)
    room = _device_bytes(cluster)
    return ChangeOutcome(
        change=change,
        step_time_s=prediction.step_time_s * correction,
        gain=1 - prediction.step_time_s / today.step_time_s,
        memory_bytes_max=needed,
        spare_bytes=room - needed,
        risky=needed > room * (1 - DEFAULT_RESERVE.fraction),
    )


def _device_bytes(cluster: Cluster) -> int:
    return min(group.device.memory_bytes for group in cluster.groups)


def _settings(
    before: TrainingJob,
    after: TrainingJob,
    trainer: Trainer | None,
    given: Mapping[str, Any] | None,
) -> tuple[SettingChange, ...]:
    """Settings of the trainer in which two jobs differ; none where it cannot be told one."""
    if trainer is None:
        return ()
    try:
        return setting_changes(before, after, trainer, given or {})
    except InfeasibleError:
        return ()


def _job_of(plan: Plan | None, job: TrainingJob, trainer: Trainer | None) -> TrainingJob | None:
    """The job with a plan's choices; None where there is no plan, or the trainer cannot run it."""
    if plan is None or trainer is None:
        return None
    try:
        planned = job_of(plan, trainer)
    except InfeasibleError:
        return None
    return replace(
        job,
        pins=planned.pins,
        chunk_layers=planned.chunk_layers,
        recompute_layers=planned.recompute_layers,
        software=_usual(job).software,
    )


def _usual(job: TrainingJob) -> TrainingJob:
    """The job with all overlaps on, as its framework usually is set."""
    words = {name: word for name, word in job.software.items() if word != "0"}
    return replace(job, software=words)


def _free_plan(job: TrainingJob, cluster: Cluster, progress: Progress | None) -> Plan | None:
    """Fastest plan of the framework that fits; None where none does."""
    asked = question_of(_usual(job), cluster)
    try:
        return search(
            asked.model,
            asked.cluster,
            asked.global_batch,
            training=asked.training,
            pins=Pins(),
            progress=progress,
        )
    except InfeasibleError:
        return None
