"""Clusters as they are named in Python: a text of the command line, or a Cluster."""

from collections.abc import Callable
from pathlib import Path

from millrace.planner.cluster import Cluster
from millrace.requested_cluster import cluster_of, with_software

Progress = Callable[[str], None]


def cluster(
    text: str,
    *,
    framework: str | None = None,
    profile: str | Path | None = None,
    measured: bool = True,
    progress: Progress | None = None,
) -> Cluster:
    """Cluster that a text of the command line names, for what takes more than its text.

    The verbs take the text itself too.

    Parameters
    ----------
    text : str
        `a100-sxm-80gb:8x16` (devices of a node x nodes), `local:4` (processes on this machine),
        `local-gpu:4` (its GPUs), or the path of a TOML file.
    framework : str, optional
        Framework that drives it, a name in `planner/frameworks/frameworks.toml`; by default the one
        that its file names, or else the one that a verb takes for it.
    profile : str or Path, optional
        A device profile to use in place of the catalogue's device or of this machine's own.
    measured : bool
        Measure this machine for `local:N` and `local-gpu:N` the first time, and keep the profile;
        else take built-in figures of CPUs.
    progress : callable, optional
        Called with a sentence where something takes long.

    Returns
    -------
    Cluster
        Validated, with devices, links and software.

    Raises
    ------
    ClusterError, FileError
        The text has another form or names an unknown device or framework; the profile cannot be
        read.
    InfeasibleError, ExecutorError
        This machine has fewer GPUs, or could not be measured.

    Examples
    --------
    >>> cluster("a100:8x2").devices
    16
    """
    path = None if profile is None else Path(profile)
    named = cluster_of(text, path, measured, progress)
    return named if framework is None else with_software(named, framework)


def opened_cluster(
    cluster: str | Cluster, profile: Path | None = None, progress: Progress | None = None
) -> Cluster:
    """Cluster of an argument that is one, or its text.

    Parameters
    ----------
    cluster : str or Cluster
        The argument.
    profile : Path, optional
        A device profile for a cluster that is named by its text.
    progress : callable, optional
        Called with a sentence where this machine is measured.

    Raises
    ------
    ClusterError, FileError, InfeasibleError, ExecutorError
        As `millrace.api.clusters.cluster` says.
    """
    return cluster if isinstance(cluster, Cluster) else cluster_of(cluster, profile, True, progress)
