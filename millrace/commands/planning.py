"""Planning: `millrace plan` finds a plan, `millrace show` draws one, or the difference of two."""

from math import gcd
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.commands.options import completion
from millrace.commands.options.option_words import ADAMW, COUNT_MAX, FLASH, MAX_GAP, SEED_MAX
from millrace.commands.options.pin_options import takes_pins
from millrace.commands.options.question_options import (
    Attention,
    Framework,
    LoraRank,
    MemoryLimit,
    Model,
    Optimizer,
    Precision,
    ReserveOption,
    SeqLen,
    Trust,
    checked_training,
)
from millrace.output import Json, answer, say, working
from millrace.pictures.picture_options import PictureFile, PictureOf, check_picture, draw_picture
from millrace.units import format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.api.plan_results import PlanResult
    from millrace.models.spec import ModelSpec
    from millrace.planner.cluster import Cluster
    from millrace.planner.plan import Plan
    from millrace.planner.search import Pins

TOP, TOP_MAX = 5, 100  # alternatives
OnCluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="DEVICE:GPUS_PER_NODExNODES (h100:8x16), local:N, local-gpu:N, or a TOML file.",
        autocompletion=completion.clusters,
    ),
]
GlobalBatch = Annotated[
    int,
    typer.Option(
        "--global-batch", min=1, max=COUNT_MAX, help="Samples of one step, over all devices."
    ),
]
Profile = Annotated[
    Path | None, typer.Option(help="Device profile (`millrace profile -o`) to read for local:N.")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan to this file.")]
Seed = Annotated[
    int, typer.Option(min=0, max=SEED_MAX, help="Written into the plan; a run has its own.")
]
MaxGap = Annotated[
    float,
    typer.Option(min=0.0, help="Stop when the best plan is proven to be within this of the bound."),
]
SimplerWithin = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="A simpler plan is preferred that is slower by at most this share of the step. Left "
        "out: by as much as predictions can tell apart, 0.016; none with --max-gap 0.",
    ),
]
OptimizeFor = Annotated[str, typer.Option(help="throughput, cost or energy (these two per token).")]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Say what decided each choice, and what its neighbours lose."),
]
Top = Annotated[
    int, typer.Option(min=0, max=TOP_MAX, help="Alternatives that are listed, at most.")
]
Commands = Annotated[
    int | None,
    typer.Option(
        metavar="RANK",
        help="List every call that this rank makes in a step on its GPU, in order: kernels with "
        "their grids and operands, matrix products, collectives. No GPU is needed.",
    ),
]
Ranks = Annotated[
    bool, typer.Option("--ranks", help="List all ranks too: node, stage, place in the mesh.")
]
RunBy = Annotated[
    str | None,
    typer.Option(
        "--framework",
        metavar="NAME",
        help="Say what of the plan this framework cannot run; by default the plan's own.",
        autocompletion=completion.frameworks,
    ),
]
# Batches so near, as a fraction, are tried for one that divides better; so many times as many
# replicas are worth a word.
NEARBY, FAR_MORE = 0.02, 4


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("plan")(plan)
    app.command("show")(show)


@takes_pins
def plan(
    model: Model,
    cluster: OnCluster,
    global_batch: GlobalBatch,
    seq_len: SeqLen = None,
    precision: Precision = None,
    attention: Attention = FLASH,
    optimizer: Optimizer = ADAMW,
    lora_rank: LoraRank = 0,
    profile: Profile = None,
    memory_limit: MemoryLimit = None,
    reserve: ReserveOption = None,
    max_gap: MaxGap = MAX_GAP,
    simpler_within: SimplerWithin = None,
    seed: Seed = 0,
    optimize_for: OptimizeFor = "throughput",
    framework: Framework = None,
    explain: Explain = False,
    top: Top = TOP,
    output: Output = None,
    as_json: Json = False,
    *,
    pins: dict[str, Any],
) -> None:
    """Search for the fastest plan that fits."""
    import millrace
    from millrace.api.plan_results import PlanInterrupted
    from millrace.api.plan_search import opened_question
    from millrace.files import check_writable
    from millrace.memory_reserve import asked_limit_bytes

    check_writable(output)
    limit_bytes = asked_limit_bytes(memory_limit, reserve)
    training = checked_training(attention, optimizer, lora_rank)
    pinned = millrace.Pins.of(pins)
    opened, on = opened_question(
        model,
        cluster,
        seq_len=seq_len,
        precision=precision,
        framework=framework,
        pins=pinned,
        optimize_for=optimize_for,
        profile=profile,
        progress=say,
    )
    _warn(opened, global_batch, on, pinned)
    try:
        with working(f"planning {opened.name} for {on.name}") as told:
            planned = millrace.plan(
                opened,
                on,
                global_batch=global_batch,
                pins=pinned,
                training=training,
                memory_limit_bytes=limit_bytes,
                reserve=reserve,
                max_gap=max_gap,
                simpler_within=simpler_within,
                seed=seed,
                optimize_for=optimize_for,
                top=top,
                progress=told,
            )
    except PlanInterrupted as stopped:
        result = stopped.result
        _give(result.plan, result.document, output, explain=False, as_json=as_json)
        say("interrupted: this is the best plan so far, with the gap that was left")
        raise SystemExit(128 + SIGINT) from None
    document = _explained(planned, on.name) if explain else planned.document
    _give(planned.plan, document, output, explain=explain, as_json=as_json)


def _explained(planned: "PlanResult", where: str) -> dict[str, Any]:
    """Document of a plan with the reasons for it."""
    with working(f"explaining {planned.plan.model.name} for {where}"):
        return {**planned.document, "explain": planned.explain().document}


def _give(
    plan: "Plan", document: dict[str, Any], output: Path | None, *, explain: bool, as_json: bool
) -> None:
    """Write a plan where that is wanted, and print it."""
    _write(output, plan)
    answer(document, as_json, lambda console: _draw_found(plan, document, explain, console))


def _write(output: Path | None, plan: "Plan") -> None:
    from millrace.files import write_document

    if output is not None:
        write_document(output, plan)
        say(f"plan written to {output}")


def _warn(model: "ModelSpec", batch: int, on: "Cluster", pins: "Pins") -> None:
    """Say on stderr what of a question is seldom meant, and what its answer is in doubt of."""
    from millrace.models.zoo.catalogue import beyond_positions
    from millrace.planner.clusters.doubts import profile_warning

    uneven = "" if pins.dp is not None else uneven_batch(batch, on.devices)
    for text in filter(None, (beyond_positions(model), uneven, profile_warning(on))):
        say(text)


def uneven_batch(batch: int, devices: int) -> str:
    """Say where a batch nearby would let many more devices be replicas; empty where none would.

    Replicas take equal shares, so their number divides the batch, and the devices too.

    Examples
    --------
    >>> uneven_batch(512, 64)
    ''
    >>> uneven_batch(510, 64)
    '--global-batch 510: at most 2 of 64 devices can be replicas; with 512, 64 can'
    """
    shares = (share for share in range(devices, 0, -1) if devices % share == 0)
    near = (-((share - 2 * batch) // (2 * share)) * share for share in shares)
    best = next(other for other in near if abs(other - batch) <= batch * NEARBY)
    now, then = gcd(batch, devices), gcd(best, devices)
    if then < FAR_MORE * now:
        return ""
    return (
        f"--global-batch {batch}: at most {now} of {devices} devices can be replicas; with {best}, "
        f"{then} can"
    )


def show(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file of `millrace plan -o`.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[PLAN]", help="A second plan: what differs.")
    ] = None,
    commands: Commands = None,
    ranks: Ranks = False,
    framework: RunBy = None,
    picture: PictureFile = None,
    of: PictureOf = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Draw a plan, the difference of two, or a rank's GPU commands.

    It ends with what of the plan its framework cannot run, where there is such a thing.
    """
    from millrace import drawing
    from millrace.figures import idle_devices, plan_summary
    from millrace.files import load_plan
    from millrace.planner.compile.listing import fused_ops
    from millrace.planner.plan import UNFUSED
    from millrace.tables.unrunnable import draw_faults, faults_by

    if commands is not None and other is not None:
        raise typer.BadParameter("--commands lists a rank of one plan: give one PLAN")
    if framework is not None and (commands is not None or other is not None):
        raise typer.BadParameter("--framework asks who can run one plan: give PLAN alone")
    check_picture(picture, of, alone=other is None and commands is None)
    before = load_plan(plan, trust=trust)
    if picture is not None:
        draw_picture(before, picture, of)
    if commands is not None:
        _list_commands(before, commands, as_json)
        return
    if idle := idle_devices(before):
        say(idle)
    if other is None:
        document = plan_summary(before) | {"plan": msgspec.to_builtins(before)}
        document |= {"fused": {} if before.fusion == UNFUSED else fused_ops(before)}
        faults = document["unrunnable"] = faults_by(before, framework)

        def draw(console: "Console") -> None:
            drawing.draw_plan(before, console, ranks=ranks, fused=document["fused"])
            draw_faults(before, framework, faults, console)

        answer(document, as_json, draw)
        return
    _compare(before, load_plan(other, trust=trust), as_json)


# Figures that are shown beside settings in which two plans differ.
SHOWN_FIGURES = ("figures.memory_bytes_max", "figures.step_time_s", "figures.tokens_per_s")


def _compare(before: "Plan", after: "Plan", as_json: bool) -> None:
    """Answer with the settings in which two plans differ, else with values of the documents."""
    from millrace import drawing
    from millrace.improvement.setting_changes import plan_changes

    differences = drawing.changes(before, after)
    changes = plan_changes(before, after) or ()
    settings = [change.document for change in changes]
    rows = [{"path": row.name, "before": row.before, "after": row.after} for row in changes]
    rows += [row for row in differences if changes and row["path"] in SHOWN_FIGURES]
    answer(
        {"changes": differences, "settings": settings},
        as_json,
        lambda console: drawing.draw_changes(rows or differences, console),
    )


def _list_commands(plan: "Plan", rank: int, as_json: bool) -> None:
    from millrace.executor.cuda.call_listing import rank_listing

    text = rank_listing(plan, rank)
    document = {"rank": rank, "commands": text.splitlines()}
    # The text is printed as it is: lines are long, and none may be wrapped.
    answer(document, as_json, lambda console: console.out(text, highlight=False, end=""))


def _draw_found(plan: Any, document: dict[str, Any], explain: bool, console: "Console") -> None:
    from millrace import drawing
    from millrace.tables.search_layers import layers_table

    drawing.draw_plan(plan, console, detailed=False)
    console.print(
        f"{format_rate(document['tokens_per_s'], document['unit'])}, "
        f"{format_rate(document['tflops_per_gpu'] * 1e12, 'FLOP')} per device, "
        f"mfu {'unknown' if document['mfu'] is None else format_percent(document['mfu'])}, "
        f"{drawing.filled(plan, document['memory_bytes_max'])}, "
        f"searched for {format_seconds(document['search_time_s'])}",
        markup=False,
    )
    formats = {
        "cost_usd_per_mtoken": "${:.3g} per million {}s",
        "energy_j_per_token": "{:.3g} J per {}",
    }
    unit = document["unit"]
    spent = [text.format(document[name], unit) for name, text in formats.items() if document[name]]
    if spent:
        console.print(", ".join(spent), markup=False)
    if explain:
        console.print(layers_table(document["layers"]))
        console.print("what decided each choice")
        for reason in document["explain"]:
            console.print(f"  {reason['line']}", markup=False, soft_wrap=True)
