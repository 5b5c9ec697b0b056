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

        cores = machine_cores()
        parse_cluster(text)  # refuses what the machine cannot hold
        if progress is not None and ranks > CROWDED * cores:
            progress(
                f"--cluster {text}: {ranks} processes share {cores} cores, so measuring them takes "
                f"minutes, and so does every step"
            )
        device = cached_profile(ranks, progress=progress)
    return parse_cluster(text, device)
