"""`millrace scale`: one model on several clusters, sizes, networks and batches."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from re import fullmatch
from typing import Annotated, Any

import typer

from millrace.commands.planning import Framework, Model, Precision, ReserveOption, SeqLen
from millrace.models.zoo.catalogue import beyond_positions
from millrace.output import Json, answer, say
from millrace.planner.errors import ClusterError, PlanError
from millrace.units import parse_bytes

Clusters = Annotated[
    list[str],
    typer.Option(
        "--cluster",
        metavar="C,…",
        help="As for plan, xNODES may be left out. May be repeated.",
    ),
]
Nodes = Annotated[str, typer.Option(metavar="N,…", help="Sizes to plan for, in nodes: 1,2,4.")]
Batches = Annotated[str, typer.Option("--global-batch", metavar="N,…", help="Samples of one step.")]
Networks = Annotated[
    list[str] | None,
    typer.Option(
        "--network", metavar="NET,…", help="Networks between nodes to try: ndr, 8xhdr, 8x400Gb/s."
    ),
]
Tokens = Annotated[
    float | None,
    typer.Option(help="Tokens to train on (1e12), for time, energy and cost; else a million."),
]
Mtbf = Annotated[float | None, typer.Option(help="Mean hours between failures of one device.")]
Rate = Annotated[
    str | None,
    typer.Option(
        help="Bytes a second that all devices write to checkpoints (2TB); by default 122 MB each."
    ),
]
Restart = Annotated[
    float | None, typer.Option(help="Minutes from a failure to the next step; by default 10.")
]
Worth = Annotated[
    float | None,
    typer.Option(
        help="Least share of their worth that added devices must bring to pay; by default 0.5."
    ),
]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write all columns here.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw here: .png, .svg or .pdf.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scale")(scale)


def scale(
    model: Model,
    cluster: Clusters,
    nodes: Nodes,
    global_batch: Batches,
    network: Networks = None,
    seq_len: SeqLen = None,
    precision: Precision = None,
    framework: Framework = None,
    reserve: ReserveOption = None,
    tokens: Tokens = None,
    mtbf_hours: Mtbf = None,
    checkpoint_rate: Rate = None,
    restart_minutes: Restart = None,
    worth: Worth = None,
    csv: Csv = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Plan a model for clusters of many sizes, before buying one."""
    from millrace import api
    from millrace.files import check_writable
    from millrace.models.documents import write_bytes
    from millrace.plot import check_drawable, plot_scaling, save
    from millrace.scaling import WORTH
    from millrace.scaling.scaling_tables import csv_text, draw_scaling

    check_writable(csv, plot)
    if plot is not None:
        check_drawable(plot)
    share = WORTH if worth is None else worth
    opened = api.check_question(model, seq_len=seq_len, precision=precision or "fp32", told=say)
    if stretched := beyond_positions(opened):
        say(stretched)
    rows = api.scale(
        opened,
        _texts("--cluster", cluster),
        _numbers("--nodes", nodes),
        _numbers("--global-batch", global_batch),
        networks=_texts("--network", network or ()),
        framework=framework,
        reserve=reserve,
        tokens=tokens,
        failures=_failures(mtbf_hours, checkpoint_rate, restart_minutes),
        worth=share,
        progress=say,
    )
    if csv is not None:
        write_bytes(csv, csv_text(rows).encode())
    if plot is not None:
        save(plot_scaling(rows), plot)
    answer({"rows": rows}, as_json, lambda console: draw_scaling(rows, share, console))
    if all(row["reason"] is not None for row in rows):
        say("millrace: no point has a plan")
        raise typer.Exit(1)


def _texts(option: str, given: Sequence[str]) -> list[str]:
    """Values of an option that may be repeated, or hold several between commas."""
    texts = [text.strip() for list_text in given for text in list_text.split(",")]
    if not all(texts):
        raise ClusterError(
            f"{option} {','.join(given) or '(nothing)'}: expected a name, found none"
        )
    return texts


def _numbers(option: str, text: str) -> list[int]:
    """Numbers between commas; their range is checked where they are used."""
    numbers = []
    for number in text.split(","):
        if not fullmatch(r"\s*[+-]?[0-9]{1,12}\s*", number):
            raise PlanError(f"{option} {text}: `{number}` is not a whole number; write 1,2,4")
        numbers.append(int(number))
    return numbers


def _failures(mtbf_hours: float | None, rate: str | None, minutes: float | None) -> Any:
    from millrace.scaling import Failures

    if mtbf_hours is None:
        for option, given in (("--checkpoint-rate", rate), ("--restart-minutes", minutes)):
            if given is not None:
                raise PlanError(
                    f"{option} {given}: it needs --mtbf-hours, without which none fails"
                )
        return None
    failures = Failures(
        mtbf_hours=mtbf_hours,
        checkpoint_bytes_per_s=None if rate is None else _bytes_per_s(rate),
    )
    return failures if minutes is None else replace(failures, restart_s=60 * minutes)


def _bytes_per_s(text: str) -> int:
    try:
        return parse_bytes(text)
    except PlanError as error:
        raise PlanError(f"--checkpoint-rate: {error}") from None
