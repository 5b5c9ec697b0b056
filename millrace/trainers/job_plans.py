"""Plans of jobs that settings describe, on the devices that they or the user name."""

from collections.abc import Callable

from msgspec.structs import replace

from millrace.figures import prediction_of
from millrace.planner.plan import Plan
from millrace.requested_cluster import cluster_of, with_software
from millrace.trainers.asking import cluster_text, planned_as_stated
from millrace.trainers.job import TrainingJob


def plan_of_job(
    job: TrainingJob, cluster: str | None, progress: Callable[[str], None] | None = None
) -> Plan:
    """Plan that a job runs, with its predicted figures, whether or not it is thought to fit.

    Parameters
    ----------
    job : TrainingJob
        With all its choices as pins.
    cluster : str or None
        Its devices, where the job does not say which; see `cluster_text`.
    progress : callable, optional
        Called with a sentence about how far the search is.

    Raises
    ------
    SettingsError, ClusterError
        It is not said which devices they are, or there are others.
    InfeasibleError
        The choices contradict each other.
    """
    named = cluster_of(cluster_text(job, cluster), None, True, progress)
    plan = planned_as_stated(job, with_software(named, job.framework), progress)
    return plan if plan.figures else replace(plan, figures=prediction_of(plan).figures)
