"""Sweep results: plans for many clusters, sizes, networks and batches (`millrace.scale`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from millrace.api.clusters import Progress
from millrace.api.data_frames import data_frame
from millrace.api.plan_search import check_question, search
from millrace.api.sweep_rows import SweepRow
from millrace.api.views import ResultView, ShownResult, check_matplotlib, table_view
from millrace.models.documents import write_bytes
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import unit_of
from millrace.planner.cluster import Cluster
from millrace.planner.errors import ClusterError
from millrace.planner.plan import Plan
from millrace.requested_cluster import (
    cluster_of,
    read_option,
    usual_precision_on,
    with_nodes,
    with_software,
)
from millrace.scaling import WORTH, Failures, Sweep, sweep

if TYPE_CHECKING:
    from pandas import DataFrame

    from millrace.pictures.picture_file import Picture
    from millrace.planner.search import Pins


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepResult(ShownResult):
    """Rows of a sweep, by cluster, then network, then batch, then size.

    Attributes
    ----------
    rows : tuple of SweepRow
        A row for every point; one without a plan says why.
    worth : float
        Least marginal efficiency at which more devices pay.
    """

    rows: tuple[SweepRow, ...]
    worth: float = WORTH

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def document(self) -> dict[str, Any]:
        """Rows as `millrace scale --json` has them."""
        return {"rows": [row.document for row in self.rows]}

    def save_csv(self, path: str | Path) -> None:
        """Write all columns but `parts` to a CSV file.

        Parameters
        ----------
        path : str or Path
            The file.

        Raises
        ------
        FileError
            It cannot be written.
        """
        from millrace.scaling.scaling_tables import csv_text

        write_bytes(Path(path), csv_text(self.document["rows"]).encode())

    def to_pandas(self) -> "DataFrame":
        """DataFrame with a column for every field but `parts`; bounds of a range are lists.

        Raises
        ------
        MissingPandasError
            pandas is not installed.
        """
        return rows_frame(self.rows)

    def picture(self) -> "Picture":
        """Picture of throughput, efficiency and cost over devices.

        Raises
        ------
        MissingMatplotlibError
            matplotlib is not installed.
        """
        check_matplotlib()
        from millrace.pictures.scaling_picture import scaling_picture

        return scaling_picture(self.document["rows"])

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        from millrace.scaling.scaling_tables import line_of, line_table, range_texts

        documents = self.document["rows"]
        lines = [list(rows) for _, rows in groupby(documents, line_of)]
        tables = (
            table_view(line_table(line), [row["scaling_efficiency"] for row in line], "efficiency")
            for line in lines
        )
        models = dict.fromkeys(row.model for row in self.rows)
        title = f"sweep of {', '.join(models)}: {len(self.rows)} points"
        notes = (*range_texts(documents), *reason_texts(self.rows))
        return ResultView(title=title, tables=tuple(tables), notes=notes)


def rows_frame(rows: Sequence[SweepRow], **columns: Sequence[object]) -> "DataFrame":
    """DataFrame of rows of a sweep, without their `parts`.

    Parameters
    ----------
    rows : sequence of SweepRow
        The rows.
    **columns : sequence
        Further columns, a value for every row.
    """
    frame = data_frame(
        {name: value for name, value in row.document.items() if name != "parts"} for row in rows
    )
    return frame.assign(**columns)


def reason_texts(rows: Sequence[SweepRow]) -> tuple[str, ...]:
    """Reasons of the points that have no plan.

    Parameters
    ----------
    rows : sequence of SweepRow
        All rows of a sweep.
    """
    from millrace.scaling.scaling_tables import line_name

    return tuple(
        f"{line_name(row.document)}, {row.devices:,} devices: {row.reason}"
        for row in rows
        if row.reason is not None
    )


class SweepOptions(TypedDict, total=False):
    """Options that `scale` and `recommend` share; `scale` explains them."""

    networks: Sequence[str]
    seq_len: int | None
    precision: str | None
    framework: str | None
    pins: "Pins | None"
    training: TrainingSpec | None
    memory_limit_bytes: int | None
    reserve: str | None
    prices_usd_per_hour: Mapping[str, float] | None
    failures: Failures | None
    jitter: float
    seed: int
    progress: Progress | None


def scale(
    model: str | ModelSpec,
    clusters: Sequence[str | Cluster],
    *,
    nodes: Sequence[int],
    global_batches: Sequence[int | str],
    networks: Sequence[str] = (),
    seq_len: int | None = None,
    precision: str | None = None,
    framework: str | None = None,
    pins: "Pins | None" = None,
    training: TrainingSpec | None = None,
    memory_limit_bytes: int | None = None,
    reserve: str | None = None,
    prices_usd_per_hour: Mapping[str, float] | None = None,
    tokens: float | None = None,
    failures: Failures | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    worth: float = WORTH,
    progress: Progress | None = None,
) -> SweepResult:
    """Sweep: every cluster, network, batch and size planned and simulated, as by `millrace scale`.

    Parameters
    ----------
    model : str or ModelSpec
        As for `millrace.plan`.
    clusters : sequence of str or Cluster
        As for `millrace.plan`; `xNODES` may be left out.
    nodes : sequence of int
        Sizes, in nodes; they replace those that the clusters have.
    global_batches : sequence of int or str
        Samples of a step; `8/device` grows with the devices.
    networks : sequence of str, optional
        Between the nodes (`8xhdr`; docs/clusters.md has all forms), in place of a cluster's own.
    seq_len, framework, pins, training, memory_limit_bytes, reserve : optional
        As for `millrace.plan`, of every plan.
    precision : str, optional
        As for `millrace.plan`; by default bf16, or fp16, where all clusters have it, else fp32.
    prices_usd_per_hour : mapping, optional
        Dollars for an hour of a device, by the text of its cluster; `""`: of all other clusters.
    tokens : float, optional
        Tokens that a row's time, energy and cost are counted to; a million by default.
    failures : Failures, optional
        Rate and cost of failing devices; by default none fails.
    jitter : float
        As for `millrace.simulate`: the mean and the tail of step times are estimated.
    seed : int
        Of the jitter.
    worth : float
        The least marginal efficiency, a fraction, at which more devices pay.
    progress : callable, optional
        Called with lines on every point: that it is planned, how far its search is, its answer.

    Returns
    -------
    SweepResult
        A row for every point; one without a plan says why.

    Raises
    ------
    PlanError, ModelError, ClusterError
        A value cannot be understood; names the option and the value.
    """
    from millrace.planner.clusters.fabrics import network
    from millrace.scaling.batches import parse_batch

    spec = opened_model(model, clusters, seq_len, precision, pins, progress)
    asked = Sweep(
        model=spec,
        clusters=tuple(
            (name, with_software(named, framework, unit_of(spec)))
            for name, named in named_clusters(clusters, progress)
        ),
        nodes=tuple(nodes),
        global_batches=tuple(parse_batch(str(batch)) for batch in global_batches),
        networks=tuple(
            (text, partial(read_option, "--network", network, text)) for text in networks
        ),
        tokens=tokens,
        failures=failures,
        worth=worth,
        prices=prices_usd_per_hour or {},
        jitter=jitter,
        seed=seed,
    )

    def plan_point(cluster: Cluster, batch: int, tell: Progress) -> Plan:
        return search(
            spec,
            cluster,
            batch,
            training=training,
            pins=pins,
            memory_limit_bytes=memory_limit_bytes,
            reserve=reserve,
            progress=tell,
        )

    rows = sweep(asked, plan_point, progress)
    return SweepResult(rows=tuple(map(SweepRow.of, rows)), worth=worth)


def opened_model(
    model: str | ModelSpec,
    clusters: Sequence[str | Cluster],
    seq_len: int | None,
    precision: str | None,
    pins: "Pins | None",
    progress: Progress | None,
) -> ModelSpec:
    """Opened model of a sweep, in the usual precision of its clusters where none is said.

    Parameters
    ----------
    model, clusters, seq_len, precision, pins, progress
        As for `scale`.

    Raises
    ------
    ClusterError
        One text stands where a list of clusters does, which would be read letter by letter.
    """
    if isinstance(clusters, str):
        raise ClusterError(f"clusters are the text `{clusters}`: expected a list, [{clusters!r}]")
    if isinstance(model, str):
        precision = precision or usual_precision_on(clusters, model)
    return check_question(model, seq_len=seq_len, precision=precision, pins=pins, progress=progress)


def named_clusters(
    clusters: Sequence[str | Cluster], progress: Progress | None
) -> Iterator[tuple[str, Cluster]]:
    """Names and clusters of a sweep, one node each where a text does not say.

    Parameters
    ----------
    clusters : sequence of str or Cluster
        As for `scale`.
    progress : callable or None
        Called with a sentence where this machine is measured.
    """

    def measured(text: str) -> Cluster:
        return cluster_of(text, None, True, progress)

    for cluster in clusters:
        if isinstance(cluster, str):
            yield cluster, read_option("--cluster", measured, with_nodes(cluster))
        else:
            yield cluster.name, cluster
