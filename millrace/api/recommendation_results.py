"""Recommendation results: the cluster that a run of tokens needs (`millrace.recommend`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from millrace.api.sweep_results import (
    SweepOptions,
    named_clusters,
    opened_model,
    reason_texts,
    rows_frame,
    scale,
)
from millrace.api.sweep_rows import SweepRow
from millrace.api.views import ResultView, ShownResult, check_matplotlib, table_view
from millrace.models.documents import write_bytes
from millrace.models.spec import ModelSpec
from millrace.planner.cluster import Cluster
from millrace.scaling.recommendation import recommendation, usual_batch, usual_nodes

if TYPE_CHECKING:
    from pandas import DataFrame

    from millrace.pictures.picture_file import Picture


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecommendationResult(ShownResult):
    """Clusters and sizes with what a run takes on each, and the choice among them.

    Attributes
    ----------
    rows : tuple of SweepRow
        A row for every point, with `time_s` and `cost_usd` of the run.
    makes_it : tuple of bool
        For every row, whether its run ends within the deadline and the budget.
    on_frontier : tuple of bool
        For every row, whether no other is as fast and as cheap.
    cheapest, fastest : SweepRow, optional
        The cheapest and the fastest row that makes it; None where none does, or none has a price.
    cheapest_measured, fastest_measured : SweepRow, optional
        Those of devices that runs are known on, where the cheapest or the fastest is of none.
    nearest : SweepRow, optional
        Where none makes it, the row that exceeds deadline and budget least.
    over : float, optional
        The factor by which the nearest row exceeds them.
    within_s, budget_usd : float, optional
        The deadline and the budget.
    """

    rows: tuple[SweepRow, ...]
    makes_it: tuple[bool, ...]
    on_frontier: tuple[bool, ...]
    cheapest: SweepRow | None
    cheapest_measured: SweepRow | None
    fastest: SweepRow | None
    fastest_measured: SweepRow | None
    nearest: SweepRow | None
    over: float | None
    within_s: float | None
    budget_usd: float | None

    @property
    def document(self) -> dict[str, Any]:
        """Rows and choice as `millrace recommend --json` has them."""
        return recommendation([row.document for row in self.rows], self.within_s, self.budget_usd)

    def save_csv(self, path: str | Path) -> None:
        """Write all rows to a CSV file.

        Parameters
        ----------
        path : str or Path
            The file.

        Raises
        ------
        FileError
            It cannot be written.
        """
        from millrace.scaling.recommendation_tables import recommendation_csv

        write_bytes(Path(path), recommendation_csv(self.document["rows"]).encode())

    def to_pandas(self) -> "DataFrame":
        """DataFrame of the rows, with `makes_it` and `on_frontier`.

        Raises
        ------
        MissingPandasError
            pandas is not installed.
        """
        return rows_frame(self.rows, makes_it=self.makes_it, on_frontier=self.on_frontier)

    def picture(self) -> "Picture":
        """Picture of time against cost, a line a cluster, with the frontier.

        Raises
        ------
        MissingMatplotlibError
            matplotlib is not installed.
        """
        check_matplotlib()
        from millrace.pictures.frontier_picture import frontier_picture

        return frontier_picture(self.document)

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        from millrace.scaling.recommendation_tables import (
            CHOICES,
            chosen_text,
            legend,
            recommendation_table,
        )
        from millrace.scaling.scaling_tables import range_texts

        document = self.document
        table = recommendation_table(document["rows"])
        choice = tuple(
            (CHOICES.get(name, name), chosen_text(row))
            for name, row in document["choice"].items()
            if row is not None
        )
        notes = (
            legend(document["rows"]),
            *range_texts(document["rows"]),
            *reason_texts(self.rows),
        )
        title = str(table.title)
        table.title = None
        return ResultView(title=title, figures=choice, tables=(table_view(table),), notes=notes)


def recommend(
    model: str | ModelSpec,
    clusters: Sequence[str | Cluster],
    *,
    tokens: float,
    within_s: float | None = None,
    budget_usd: float | None = None,
    nodes: Sequence[int] = (),
    global_batches: Sequence[int | str] = (),
    **options: Unpack[SweepOptions],
) -> RecommendationResult:
    """Cheapest cluster that makes a deadline, and the fastest for the money.

    Parameters
    ----------
    model : str or ModelSpec
        As for `millrace.plan`.
    clusters : sequence of str or Cluster
        As for `millrace.scale`.
    tokens : float
        Tokens (images, samples) of the run.
    within_s : float, optional
        Seconds within which the run has to end; by default it may take any time.
    budget_usd : float, optional
        Dollars that the run may cost; by default any.
    nodes, global_batches : sequence, optional
        As for `millrace.scale`; by default powers of two around what the deadline asks of the
        devices, and batches of four million tokens, or just below.
    **options
        As for `millrace.scale`: `networks`, `seq_len`, `precision`, `framework`, `pins`,
        `training`, `memory_limit_bytes`, `reserve`, `prices_usd_per_hour`, `failures`, `jitter`,
        `seed`, `progress`.

    Returns
    -------
    RecommendationResult
        The rows, and the choice among them.

    Raises
    ------
    PlanError, ModelError, ClusterError
        A value cannot be understood; names the option and the value.
    """
    seq_len, precision = options.pop("seq_len", None), options.pop("precision", None)
    progress = options.get("progress")
    spec = opened_model(model, clusters, seq_len, precision, options.get("pins"), progress)
    if not nodes:
        named = [cluster for _, cluster in named_clusters(clusters, progress)]
        nodes = usual_nodes(spec, named, tokens, within_s)
    batches = global_batches or (usual_batch(spec),)
    swept = scale(spec, clusters, nodes=nodes, global_batches=batches, tokens=tokens, **options)
    judged = recommendation([row.document for row in swept.rows], within_s, budget_usd)
    chosen = {
        name: None if row is None else SweepRow.of(row) for name, row in judged["choice"].items()
    }
    nearest = judged["choice"]["nearest"]
    return RecommendationResult(
        rows=swept.rows,
        makes_it=tuple(row["makes_it"] for row in judged["rows"]),
        on_frontier=tuple(row["on_frontier"] for row in judged["rows"]),
        **chosen,
        over=None if nearest is None else nearest["over"],
        within_s=within_s,
        budget_usd=budget_usd,
    )
