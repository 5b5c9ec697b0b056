"""Clusters as they are asked for: of the catalogue, or of this machine as it is measured."""

from collections.abc import Callable
from pathlib import Path
from re import fullmatch
from typing import TypeVar

import msgspec

from millrace.files import load_profile
from millrace.planner.cluster import Cluster, Software
from millrace.planner.clusters import framework as software_of
from millrace.planner.clusters import machine_cores, parse_cluster, validate
from millrace.planner.clusters.named import LOCAL, LOCAL_GPU, local_ranks
from millrace.planner.errors import ClusterError

Found = TypeVar("Found")

CROWDED = 4  # processes a core, beyond which they mostly wait for one another


def is_local(text: str) -> bool:
    """Whether a cluster is of this machine."""
    return text.partition(":")[0] in (LOCAL, LOCAL_GPU)


def cluster_of(
    text: str, profile: Path | None, measured: bool, progress: Callable[[str], None] | None
) -> Cluster:
    """Return the cluster of a text, as `millrace.api.cluster` says."""
    if not is_local(text):
        found = catalogue_cluster(text, progress)
        if profile is None:
            return found
        return validate(msgspec.structs.replace(found, device=load_profile(profile)))
    if profile is not None or not measured:
        return parse_cluster(text, None if profile is None else load_profile(profile))
    return measured_cluster(text, progress)


def with_software(cluster: Cluster, framework: str | None) -> Cluster:
    """Return the cluster driven by a framework, as `millrace.api.driven` says."""
    said = cluster.software.name != Software().name
    if framework is None and (said or cluster.cores_per_node is not None):
        return cluster
    software = named("--framework", software_of, framework or "default")
    return msgspec.structs.replace(cluster, software=software)


def with_nodes(text: str) -> str:
    """The text of a cluster that need not say how many nodes it has, with one where it does not."""
    return f"{text}x1" if fullmatch(r"[^:]+:[0-9]+", text) and not is_local(text) else text


def named(option: str, read: Callable[..., Found], text: str, *rest: int) -> Found:
    """What `read` makes of an option's value; its refusal names the option."""
    try:
        return read(text, *rest)
    except ClusterError as error:
        raise ClusterError(f"{option} {text}: {error}") from None


def catalogue_cluster(text: str, progress: Callable[[str], None] | None) -> Cluster:
    """Return a cluster of the catalogue or of a file.

    `progress` is told which device a shorter name was taken as.

    Raises
    ------
    ClusterError
        The text has another form or names an unknown device.
    """
    found = parse_cluster(text)
    if progress is not None and not text.endswith(".toml") and found.name != text:
        progress(f"--cluster {text}: taken as {found.name}")
    return found


def crowding(ranks: int, cores: int) -> str:
    """Say what becomes of many processes on few cores; empty where they are not so many.

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
    """Return a cluster of this machine as it is measured, once, and kept.

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
    ranks = local_ranks(name, shape)
    if name == LOCAL_GPU:
        from millrace.executor.gpu.probing.measuring import cached_gpu_profile

        needed_by = f"--cluster {text}"
        device = cached_gpu_profile(ranks, needed_by=needed_by, progress=progress)
    else:
        from millrace.executor.measure import cached_profile

        parse_cluster(text)  # refuses what the machine cannot hold
        crowded = crowding(ranks, machine_cores())
        if progress is not None and crowded:
            progress(f"--cluster {text}: {crowded}")
        device = cached_profile(ranks, progress=progress)
    return parse_cluster(text, device)
