"""Plans of jobs that settings describe: the search with every choice pinned."""

from collections.abc import Callable

from msgspec.structs import replace

from millrace import api
from millrace.planner.plan import Plan
from millrace.trainers.asking import as_split, cluster_text, question_of
from millrace.trainers.job import TrainingJob

UNLIMITED = 10**15  # bytes: the job runs, whatever the account of its memory says


def plan_of_job(
    job: TrainingJob, cluster: str | None, told: Callable[[str], None] | None = None
) -> Plan:
    """Plan that a job runs, whether or not it is thought to fit.

    Parameters
    ----------
    job : TrainingJob
        With all its choices as pins.
    cluster : str or None
        Its devices, where the job does not say which; see `cluster_text`.
    told : callable, optional
        Called with a sentence about how far the search is.

    Raises
    ------
    SettingsError, ClusterError
        It is not said which devices they are, or there are others.
    InfeasibleError
        The choices contradict each other.
    """
    named = api.cluster(cluster_text(job, cluster), progress=told)
    asked = question_of(job, api.with_framework(named, job.framework, model=job.model))
    plan = api.search(
        asked.model,
        asked.cluster,
        asked.global_batch,
        training=asked.training,
        pins=asked.pins.document,
        memory_limit_bytes=UNLIMITED,
        progress=told,
    )
    split = as_split(plan, job)
    split = replace(split, memory_limit_bytes=0)
    return split if split.figures else replace(split, figures=api.figures(split))
