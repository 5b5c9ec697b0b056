"""Completions of the shell (Tab): names of models, devices, frameworks, and the closed words.

`millrace --install-completion` teaches the shell to ask. Each function takes what is typed so far
and returns the words that begin with it, and nothing is read but the catalogues.
"""

from millrace.commands.options.option_words import DISPATCHERS, PRECISIONS, SCHEDULES
from millrace.planner.errors import ClusterError

LOCAL, LOCAL_GPU = "local", "local-gpu"
SIZES = (1, 2, 4, 8)


def models(incomplete: str) -> list[str]:
    """Names of the zoo that begin with `incomplete`."""
    from millrace.models.zoo.catalogue import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def clusters(incomplete: str) -> list[str]:
    """Clusters that begin with `incomplete`: devices up to the colon, of a single device its sizes.

    A shell puts a space after the only word that is left, so this has to be a cluster.
    """
    names = _devices(incomplete)
    if len(names) > 1:
        return [f"{name}:" for name in names]
    return [text for name in names for text in _sizes(name) if text.startswith(incomplete)]


def listed_clusters(incomplete: str) -> list[str]:
    """Lists between commas whose last cluster, without its number of nodes, begins so."""
    before, comma, last = incomplete.rpartition(",")
    names = _devices(last)
    if len(names) > 1:
        return [f"{before}{comma}{name}:" for name in names]
    sizes = (text for name in names for text in _sizes(name))
    texts = dict.fromkeys(text.rpartition("x")[0] or text for text in sizes)
    return [f"{before}{comma}{text}" for text in texts if text.startswith(last)]


def devices(incomplete: str) -> list[str]:
    """Names of the catalogue's devices that begin with `incomplete`."""
    from millrace.planner.clusters import cluster_files

    return [name for name in cluster_files.names() if name.startswith(incomplete)]


def _devices(incomplete: str) -> list[str]:
    """Devices that begin so, `local` and `local-gpu` too; before a colon, the one that is typed."""
    typed, colon, _ = incomplete.partition(":")
    if colon:
        return [typed]
    local = [name for name in (LOCAL, LOCAL_GPU) if name.startswith(incomplete)]
    return [*local, *devices(incomplete)]


def _sizes(name: str) -> list[str]:
    """Clusters of a device, from one reference node on; none where there is no such device."""
    from millrace.planner.clusters import reference_node

    if name in (LOCAL, LOCAL_GPU):
        return [f"{name}:{number}" for number in SIZES]
    try:
        per_node = reference_node(name).devices_per_node
    except ClusterError:
        return []
    return [f"{name}:{per_node}x{nodes}" for nodes in SIZES]


def frameworks(incomplete: str) -> list[str]:
    """Names of the frameworks whose costs are known, that begin with `incomplete`."""
    from millrace.planner.frameworks import framework_tables

    return [name for name in framework_tables.frameworks() if name.startswith(incomplete)]


def trainers(incomplete: str) -> list[str]:
    """Names of the trainers that plans are exported to, that begin with `incomplete`."""
    from millrace.trainers.catalogue import TRAINERS

    return [name for name in TRAINERS if name.startswith(incomplete)]


def schedules(incomplete: str) -> list[str]:
    """Names of the pipeline schedules that begin with `incomplete`."""
    return [name for name in SCHEDULES.split(", ") if name.startswith(incomplete)]


def precisions(incomplete: str) -> list[str]:
    """Names of the precisions that begin with `incomplete`."""
    return [name for name in PRECISIONS.split(", ") if name.startswith(incomplete)]


def dispatchers(incomplete: str) -> list[str]:
    """Names of the dispatchers of tokens to experts that begin with `incomplete`."""
    return [name for name in DISPATCHERS.split(", ") if name.startswith(incomplete)]
