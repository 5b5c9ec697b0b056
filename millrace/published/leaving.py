"""Leaving a source out: each source is predicted with what is known without it.

`left_out` gives the function that `validate` takes as `tuned`: a framework that no other source
runs has the default settings, and what `calibrate` fits on the rows of the other sources is put in.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from millrace.published.reading import Row, Table
from millrace.published.validation import READERS, Tuned, source
from planner.cluster import Cluster
from planner.clusters import framework
from planner.clusters.software import DEFAULT

# Rows of the other sources -> what a cluster is, given its framework, by what was fitted on them.
Calibrate = Callable[[Sequence[Row]], Callable[[Cluster, str], Cluster]]


def left_out(table: Table, calibrate: Calibrate | None = None) -> Tuned:
    """Return what changes the cluster of a row to what is known without the row's source.

    Parameters
    ----------
    table : Table
        All rows, of which those of tier A are known.
    calibrate : callable, optional
        Fits figures to rows; called once per source. Without it the catalogue's figures stand.
    """
    reader = READERS[table.layout]
    known = [row for row in table.rows if row["tier"] == "A"]
    sources: dict[str, set[str]] = defaultdict(set)
    for row in known:
        sources[reader.framework_name(row)].add(source(row))
    fits: dict[str, Callable[[Cluster, str], Cluster]] = {}

    def tuned(cluster: Cluster, name: str, left: str) -> Cluster:
        seen = bool(sources[name] - {left})
        if not seen:
            cluster = replace(cluster, software=framework(DEFAULT))
        if calibrate is None:
            return cluster
        if left not in fits:
            fits[left] = calibrate([row for row in known if source(row) != left])
        return fits[left](cluster, name if seen else DEFAULT)

    return tuned
