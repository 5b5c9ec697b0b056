"""Clusters as they are asked for: of the catalogue, or of this machine as it is measured."""

from collections.abc import Callable, Iterable
from pathlib import Path
from re import fullmatch
from typing import TypeVar

import msgspec

from millrace.files import load_profile
from millrace.planner.cluster import Cluster, NodeGroup, Software
from millrace.planner.clusters import framework as software_of
from millrace.planner.clusters import machine_cores, parse_cluster, validate
from millrace.planner.clusters.parsing import LOCAL, LOCAL_GPU, local_ranks
from millrace.planner.errors import ClusterError, PlanError

Answer = TypeVar("Answer")

WHOLE_SPACE = "any"  # the framework that can run all there is
USUAL, FULL = ("bf16", "fp16"), "fp32"  # precisions where none is said, the usual ones first
CROWDED = 4  # processes a core, beyond which they mostly wait for one another


def is_local(text: str) -> bool:
    """True if a text names a cluster of this machine."""
    return text.partition(":")[0] in (LOCAL, LOCAL_GPU)


def cluster_of(
    text: str, profile: Path | None, measured: bool, progress: Callable[[str], None] | None
) -> Cluster:
    """Cluster that a text names, as `millrace.api.clusters.cluster` says.

    Parameters
    ----------
    text : str
        A cluster of the catalogue, of a TOML file or of this machine.
    profile : Path or None
        Device profile in place of the catalogue's or of this machine's own.
    measured : bool
        Measure this machine where the text names it.
    progress : callable or None
        Called with a sentence where something takes long.

    Raises
    ------
    ClusterError, FileError, InfeasibleError, ExecutorError
        As `millrace.api.clusters.cluster` says.
    """
    if not is_local(text):
        named_cluster = parse_cluster(text)
        if profile is None:
            return named_cluster
        return validate(msgspec.structs.replace(named_cluster, device=load_profile(profile)))
    if profile is not None or not measured:
        return parse_cluster(text, None if profile is None else load_profile(profile))
    return measured_cluster(text, progress)


def usual_framework(cluster: Cluster, unit: str) -> str:
    """Name of the framework that a plan is for where none is said.

    Parameters
    ----------
    cluster : Cluster
        The devices and links.
    unit : str
        What the model's samples are made of (`unit_of`): language models have tokens.
    """
    if unit != "token":
        return WHOLE_SPACE  # no framework's record is about other models
    return "megatron-core" if cluster.torus is None else "jax-xla"


def usual_precision(cluster: Cluster | None, model: object) -> str:
    """Precision of a plan where none is said: bf16 where all devices have it, else fp16.

    It is fp32 where devices have neither, on this machine, and for models that a function builds.

    Parameters
    ----------
    cluster : Cluster or None
        The devices; None: this machine, which is not measured yet.
    model : str or ModelSpec
        The model as it is typed: what a function returns has a precision of its own.
    """
    if cluster is None or cluster.cores_per_node is not None:
        return FULL
    return _usual_on(cluster.groups, model)


def _usual_on(groups: Iterable[NodeGroup], model: object) -> str:
    """The first of the usual precisions that all devices have, or the full one."""
    if isinstance(model, str) and fullmatch(r"[\w.]+:\w+", model):
        return FULL
    every = [group.device.flops_per_s for group in groups]
    return next((name for name in USUAL if all(name in rates for rates in every)), FULL)


def usual_precision_on(clusters: Iterable[str | Cluster], model: object) -> str:
    """Precision of plans for several clusters where none is said.

    Parameters
    ----------
    clusters : iterable of str or Cluster
        Clusters, or as they are typed: `xNODES` may be left out; this machine is not measured.
    model : str or ModelSpec
        As for `usual_precision`.

    Raises
    ------
    ClusterError
        A text names no cluster.
    """
    groups: list[NodeGroup] = []
    for cluster in clusters:
        if is_local(cluster) if isinstance(cluster, str) else cluster.cores_per_node is not None:
            return FULL
        if isinstance(cluster, str):
            cluster = read_option("--cluster", parse_cluster, with_nodes(cluster))
        groups += cluster.groups
    return _usual_on(groups, model)


def with_software(cluster: Cluster, framework: str | None, unit: str = "token") -> Cluster:
    """Cluster driven by a framework, or by its usual one where none is said.

    Parameters
    ----------
    cluster : Cluster
        The devices and links.
    framework : str or None
        Name of the framework; None keeps the cluster's own, or takes `usual_framework`.
    unit : str
        What the model's samples are made of.

    Raises
    ------
    ClusterError
        There is no such framework.
    """
    said = cluster.software.name != Software().name
    if framework is None and (said or cluster.cores_per_node is not None):
        return cluster
    name = framework or usual_framework(cluster, unit)
    software = read_option("--framework", software_of, name)
    return msgspec.structs.replace(cluster, software=software)


def with_nodes(text: str) -> str:
    """Text of a cluster, with one node where it does not say how many it has."""
    return f"{text}x1" if fullmatch(r"[^:]+:[0-9]+", text) and not is_local(text) else text


def read_option(option: str, read: Callable[..., Answer], text: str, *rest: int | str) -> Answer:
    """Value that `read` makes of an option's text; its refusal names the option.

    Parameters
    ----------
    option : str
        Name of the option, as it is typed.
    read : callable
        Called with the text and `rest`.
    text : str
        The option's value.
    rest : int or str
        Further arguments of `read`.

    Raises
    ------
    ClusterError, PlanError
        That of `read`, with the option and its value in front.
    """
    try:
        return read(text, *rest)
    except (ClusterError, PlanError) as error:
        raise type(error)(f"{option} {text}: {error}") from None


def crowding(ranks: int, cores: int) -> str:
    """Say what becomes of many processes on few cores; empty where they are not so many.

    Parameters
    ----------
    ranks : int
        Processes.
    cores : int
        Cores that they share.

    Returns
    -------
    str
        A clause without a full stop.

    Examples
    --------
    >>> crowding(64, 2)
    '64 processes share 2 cores: measuring them takes minutes, and their steps are mostly waiting'
    >>> crowding(8, 2)
    ''
    """
    if ranks <= CROWDED * cores:
        return ""
    return (
        f"{ranks} processes share {cores} cores: measuring them takes minutes, and their steps "
        f"are mostly waiting"
    )


def measured_cluster(text: str, progress: Callable[[str], None] | None) -> Cluster:
    """Cluster of this machine as it is measured, once, and kept.

    Parameters
    ----------
    text : str
        `local:N` or `local-gpu:N`.
    progress : callable or None
        Called with a sentence about a measurement that takes long.

    Raises
    ------
    ClusterError
        The text has another form.
    InfeasibleError
        This machine cannot hold so many ranks, or has fewer GPUs.
    ExecutorError
        What running on a GPU needs is missing, or the machine could not be measured.
    """
    name, _, shape = text.partition(":")
    ranks, _ = local_ranks(name, shape)
    if name == LOCAL_GPU:
        from millrace.executor.gpu.probing.measuring import cached_gpu_profile

        needed_by = f"--cluster {text}"
        device = cached_gpu_profile(ranks, needed_by=needed_by, progress=progress)
    else:
        from millrace.profiling.local_profile import local_profile

        parse_cluster(text)  # refuses what the machine cannot hold
        crowded = crowding(ranks, machine_cores())
        if progress is not None and crowded:
            progress(f"--cluster {text}: {crowded}")
        device = local_profile(ranks, progress=progress)
    return parse_cluster(text, device)
