"""Clusters by name, from the catalogue and from files.

In comes what the command line says, out comes a checked Cluster: `named` reads the forms, `files`
a TOML file (a user's own or an entry of the catalogue), `fabrics` a network by its name, `software`
a framework by its, `checks` says which value is wrong.
"""

from millrace.planner.clusters.cluster_files import device, names, reference_node
from millrace.planner.clusters.fabrics import network
from millrace.planner.clusters.parsing import (
    local_cluster,
    machine_cores,
    machine_memory_bytes,
    parse_cluster,
)
from millrace.planner.clusters.validation import validate
from millrace.planner.frameworks.framework_tables import framework

__all__ = [
    "device",
    "framework",
    "local_cluster",
    "machine_cores",
    "machine_memory_bytes",
    "names",
    "network",
    "parse_cluster",
    "reference_node",
    "validate",
]
