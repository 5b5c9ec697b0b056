"""Asking the planner about a job: the model, cluster, batch and pins of the question."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from millrace.api.plan_search import search
from millrace.models.recompute import NONE, layers_of
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.cluster import Cluster
from millrace.planner.errors import ClusterError
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.layer_split import split_as_given
from millrace.planner.plan import Plan, recomputed
from millrace.planner.search import Pins
from millrace.published.framework_of_row import as_set
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import SettingsError

UNLIMITED = 10**15  # bytes: the job runs, whatever the account of its memory says


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuestion:
    """Question of a job to the planner, with the pins that make its answer the job's own plan."""

    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    global_batch: int
    pins: Pins


def cluster_text(job: TrainingJob, asked: str | None) -> str:
    """Text of the cluster of a job.

    Parameters
    ----------
    job : TrainingJob
        Its own cluster counts where no other is asked for.
    asked : str or None
        A cluster, or a device alone: as many of it as the job was started on.

    Raises
    ------
    SettingsError
        Neither says which devices they are.
    """
    if not asked and not job.cluster:
        raise SettingsError(
            f"the settings do not say which GPUs they are for: name them with --cluster, for "
            f"example --cluster h100, of which there are {job.nodes} nodes of "
            f"{job.devices_per_node}"
        )
    if asked and ":" not in asked and not asked.endswith(".toml"):
        return f"{asked}:{job.devices_per_node}x{job.nodes}"
    sized = re.fullmatch(r"([^:]+):[0-9]+x[0-9]+", job.cluster)
    if not asked and sized:  # the user may have said another number of nodes
        return f"{sized[1]}:{job.devices_per_node}x{job.nodes}"
    return asked or job.cluster


def question_of(job: TrainingJob, cluster: Cluster) -> JobQuestion:
    """Question whose answer is the plan of a job.

    Parameters
    ----------
    job : TrainingJob
        With all its choices as pins.
    cluster : Cluster
        The devices, with the job's framework as software.

    Raises
    ------
    ClusterError
        The cluster has another number of devices.
    """
    if cluster.devices != job.devices:
        raise ClusterError(
            f"--cluster {cluster.name}: it has {cluster.devices} devices, and the job is started "
            f"on {job.nodes} nodes of {job.devices_per_node}"
        )
    row = {"framework": job.framework, **job.software}
    software = as_set(cluster.software, row, cluster.device)
    return JobQuestion(
        model=job.model,
        training=job.training,
        cluster=replace(cluster, software=software),
        global_batch=job.global_batch,
        pins=job.pins,
    )


def planned_as_stated(
    job: TrainingJob, cluster: Cluster, progress: Callable[[str], None] | None = None
) -> Plan:
    """Plan that a job runs, whether or not it is thought to fit.

    Parameters
    ----------
    job : TrainingJob
        With all its choices as pins.
    cluster : Cluster
        Its devices, with its framework as software.
    progress : callable, optional
        Called with a sentence about how far the search is.

    Raises
    ------
    ClusterError
        The cluster has another number of devices.
    InfeasibleError
        The choices contradict each other.
    """
    asked = question_of(job, cluster)
    plan = search(
        asked.model,
        asked.cluster,
        asked.global_batch,
        training=asked.training,
        pins=asked.pins,
        memory_limit_bytes=UNLIMITED,
        progress=progress,
        # A job may leave out what its framework's recipes, and so its plans, always have.
        runs=replace(capabilities(job.framework), sequence_parallel="free"),
    )
    return replace(as_split(plan, job), memory_limit_bytes=0)


def as_split(plan: Plan, job: TrainingJob) -> Plan:
    """Plan with as many layers in each chunk as the job has, of them as many recomputed.

    Parameters
    ----------
    plan : Plan
        As the search answers the job's question.
    job : TrainingJob
        Its `chunk_layers`; the plan stays where they are even. Its `recompute_layers`.
    """
    if len(job.chunk_layers) == len(plan.chunks):
        plan = replace(split_as_given(plan, job.chunk_layers), evidence=None, figures={})
    if not job.recompute_layers:
        return plan
    layers = layers_of(plan.graph)
    others = [
        [choice.block for choice in chunk.blocks if choice.block in layers][job.recompute_layers :]
        for chunk in plan.chunks
    ]
    return recomputed(plan, dict.fromkeys(chain(*others), NONE))
