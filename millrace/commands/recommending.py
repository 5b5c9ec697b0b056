"""Recommending the cluster that a run of tokens needs: `millrace recommend`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.commands.options.question_options import (
    Framework,
    Model,
    Precision,
    ReserveOption,
    SeqLen,
)
from millrace.commands.options.sweep_options import (
    TOKENS,
    Clusters,
    numbers,
    opened,
    takes_sweep,
    warn_of_profiles,
)
from millrace.output import Json, answer, say, working
from millrace.units import parse_count, parse_duration_s

if TYPE_CHECKING:
    from millrace.planner.search import Pins

Tokens = Annotated[str, typer.Option(help="Tokens (images, samples) to train on: 1e12, 15T.")]
Within = Annotated[str | None, typer.Option(help="The run has to end within this: 30d, 12h.")]
Budget = Annotated[str | None, typer.Option(help="The run may cost so many dollars: 2M, 500k.")]
Sizes = Annotated[
    str | None,
    typer.Option("--nodes", metavar="N,…", help="Sizes to try; powers of two by default."),
]
RunBatches = Annotated[
    str | None,
    typer.Option(
        "--global-batch",
        metavar="N,…",
        help="Samples of one step; 8/device grows with the devices. By default four million "
        "tokens, or just below.",
    ),
]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write all rows here.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw time against cost here: .png, .svg, .pdf or .html."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("recommend")(recommend)


@takes_sweep
def recommend(
    model: Model,
    cluster: Clusters,
    tokens: Tokens,
    within: Within = None,
    budget: Budget = None,
    nodes: Sizes = None,
    global_batch: RunBatches = None,
    seq_len: SeqLen = None,
    precision: Precision = None,
    framework: Framework = None,
    reserve: ReserveOption = None,
    csv: Csv = None,
    plot: Plot = None,
    as_json: Json = False,
    *,
    pins: "Pins",
    asked: dict[str, Any],
) -> None:
    """Find the cheapest cluster that makes a deadline, and the fastest for the money."""
    import millrace
    from millrace.pictures.frontier_picture import draw_frontier
    from millrace.requested_cluster import read_option
    from millrace.scaling.recommendation_tables import draw_recommendation

    files = {"csv": csv, "plot": plot}
    spec, named = opened(model, cluster, seq_len, precision, pins, files)
    total = read_option("--tokens", parse_count, tokens, TOKENS)
    within_s = None if within is None else read_option("--within", parse_duration_s, within)
    budget_usd = None if budget is None else read_option("--budget", parse_count, budget)
    with working() as told:
        recommended = millrace.recommend(
            spec,
            named,
            tokens=total,
            within_s=within_s,
            budget_usd=budget_usd,
            nodes=() if nodes is None else numbers("--nodes", nodes),
            global_batches=() if global_batch is None else global_batch.split(","),
            framework=framework,
            reserve=reserve,
            pins=pins,
            progress=told,
            **asked,
        )
    document = recommended.document
    if csv is not None:
        recommended.save_csv(csv)
    if plot is not None:
        draw_frontier(document, plot)
    warn_of_profiles(document["rows"])
    answer(document, as_json, lambda console: draw_recommendation(document, console))
    if document["choice"]["fastest"] is None:
        say("millrace: nothing that was tried makes it")
        raise typer.Exit(1)
