"""`millrace scale`: one model on several clusters, sizes, networks and batches."""

from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.commands.options.question_options import (
    Framework,
    Model,
    Precision,
    ReserveOption,
    SeqLen,
)
from millrace.commands.options.sweep_options import (
    Batches,
    Clusters,
    numbers,
    opened,
    takes_sweep,
    warn_of_profiles,
)
from millrace.output import Json, answer, say, working

Nodes = Annotated[str, typer.Option(metavar="N,…", help="Sizes to plan for, in nodes: 1,2,4.")]
Tokens = Annotated[
    float | None,
    typer.Option(help="Tokens to train on (1e12), for time, energy and cost; else a million."),
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
    pins: dict[str, Any],
    asked: dict[str, Any],
) -> None:
    """Plan a model for clusters of many sizes, before buying one."""
    from millrace import api
    from millrace.models.documents import write_bytes
    from millrace.pictures.scaling_picture import draw_scaling as draw_picture
    from millrace.scaling import WORTH
    from millrace.scaling.scaling_tables import csv_text, draw_scaling

    files = {"csv": csv, "plot": plot}
    spec, named = opened(model, cluster, seq_len, precision, pins, files)
    share = WORTH if worth is None else worth
    with working() as told:
        rows = api.scale(
            spec,
            named,
            numbers("--nodes", nodes),
            global_batch.split(","),
            framework=framework,
            reserve=reserve,
            tokens=tokens,
            pins=pins,
            worth=share,
            progress=told,
            **asked,
        )
    if csv is not None:
        write_bytes(csv, csv_text(rows).encode())
    if plot is not None:
        draw_picture(rows, plot)
    warn_of_profiles(rows)
    answer({"rows": rows}, as_json, lambda console: draw_scaling(rows, share, console))
    if all(row["reason"] is not None for row in rows):
        say("millrace: no point has a plan")
        raise typer.Exit(1)
