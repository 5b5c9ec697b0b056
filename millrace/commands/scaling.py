"""Scaling of one model over clusters, sizes, networks and batches: `millrace scale`."""

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
    Batches,
    Clusters,
    numbers,
    opened,
    takes_sweep,
    warn_of_profiles,
)
from millrace.output import Json, answer, say, working
from millrace.units import parse_count

if TYPE_CHECKING:
    from millrace.planner.search import Pins

Nodes = Annotated[str, typer.Option(metavar="N,…", help="Sizes to plan for, in nodes: 1,2,4.")]
Tokens = Annotated[
    str | None,
    typer.Option(help="Tokens to train on (1e12, 15T), for time, energy and cost; else a million."),
]
Worth = Annotated[
    float | None,
    typer.Option(
        help="Least share of their worth that added devices must bring to pay; by default 0.5."
    ),
]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write all columns here.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw here: .png, .svg, .pdf or .html.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scale")(scale)


@takes_sweep
def scale(
    model: Model,
    cluster: Clusters,
    nodes: Nodes,
    global_batch: Batches,
    seq_len: SeqLen = None,
    precision: Precision = None,
    framework: Framework = None,
    reserve: ReserveOption = None,
    tokens: Tokens = None,
    worth: Worth = None,
    csv: Csv = None,
    plot: Plot = None,
    as_json: Json = False,
    *,
    pins: "Pins",
    asked: dict[str, Any],
) -> None:
    """Plan a model for clusters of many sizes, before buying one."""
    import millrace
    from millrace.pictures.scaling_picture import draw_scaling as draw_picture
    from millrace.requested_cluster import read_option
    from millrace.scaling import WORTH
    from millrace.scaling.scaling_tables import draw_scaling

    files = {"csv": csv, "plot": plot}
    spec, named = opened(model, cluster, seq_len, precision, pins, files)
    total = None if tokens is None else read_option("--tokens", parse_count, tokens, TOKENS)
    share = WORTH if worth is None else worth
    with working() as told:
        swept = millrace.scale(
            spec,
            named,
            nodes=numbers("--nodes", nodes),
            global_batches=global_batch.split(","),
            framework=framework,
            reserve=reserve,
            tokens=total,
            pins=pins,
            worth=share,
            progress=told,
            **asked,
        )
    rows = swept.document["rows"]
    if csv is not None:
        swept.save_csv(csv)
    if plot is not None:
        draw_picture(rows, plot)
    warn_of_profiles(rows)
    answer({"rows": rows}, as_json, lambda console: draw_scaling(rows, share, console))
    if all(row["reason"] is not None for row in rows):
        say("millrace: no point has a plan")
        raise typer.Exit(1)
