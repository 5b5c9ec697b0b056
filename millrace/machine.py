"""Clusters as they are asked for: of the catalogue, or of this machine as it is measured."""

from collections.abc import Callable

from millrace.planner.cluster import Cluster
from millrace.planner.clusters import machine_cores, parse_cluster
from millrace.planner.clusters.named import LOCAL, LOCAL_GPU, local_ranks

CROWDED = 4  # processes a core, beyond which they mostly wait for one another


def is_local(text: str) -> bool:
    """Whether a cluster is of this machine."""
    return text.partition(":")[0] in (LOCAL, LOCAL_GPU)


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
