"""`millrace simulate` and `run`: a plan on simulated time, and on devices."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.commands.options import completion
from millrace.commands.options.option_words import SEED_MAX
from millrace.commands.options.question_options import Framework, PlanFile, Trust
from millrace.output import Json, answer, say, training, working
from millrace.planner.errors import PlanError
from millrace.units import format_bytes, format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.executor.drift.drift_watch import Drift
    from millrace.executor.launch import Measured
    from millrace.planner.plan import Plan
    from millrace.simulator.simulate import Simulated

TraceOutput = Annotated[
    Path | None,
    typer.Option("--trace", help="Write the Trace to this file; *.chrome.json is for Perfetto."),
]
Stragglers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RANK:FACTOR", help="A slow rank: 3:2.0 takes twice as long. May be repeated."
    ),
]
OtherCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="Try the plan on this cluster of as many devices, named as for plan.",
        autocompletion=completion.clusters,
    ),
]
OtherPrecision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="Try the plan's model in this precision.",
        autocompletion=completion.precisions,
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="On GPUs: equal bits every time, nothing chosen by timing."
    ),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Save every N steps too, not only the last."),
]
NO_MFU = "unknown: no peak for this precision, or masked attention, counted in full, exceeds it"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("simulate")(simulate)
    app.command("run")(run)


def warn_of(plan: "Plan") -> None:
    """Say on stderr what a plan does that is seldom meant."""
    from millrace.figures import idle_devices
    from millrace.models.zoo.catalogue import beyond_positions
    from millrace.planner.clusters.doubts import profile_warning

    warning = profile_warning(plan.cluster)
    for text in (idle_devices(plan), beyond_positions(plan.model), warning):
        if text:
            say(text)


def simulate(
    plan: PlanFile,
    cluster: OtherCluster = None,
    precision: OtherPrecision = None,
    framework: Framework = None,
    jitter: Annotated[
        float, typer.Option(help="Standard deviation of durations, as a share: 0.1.")
    ] = 0.0,
    straggler: Stragglers = None,
    seed: Annotated[int, typer.Option(min=0, max=SEED_MAX, help="Of the jitter.")] = 0,
    fidelity: Annotated[
        str | None,
        typer.Option(
            help="op: every op; block: blocks of layers; stage: whole stages. Default: by size."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page about the step: where its time goes.")
    ] = None,
    trace: TraceOutput = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Predict how fast a plan runs on the cluster it was made for, or on another."""
    from millrace import api
    from millrace.figures import shortage
    from millrace.files import check_writable, is_chrome, load_plan, write_trace
    from millrace.models.documents import write_bytes
    from millrace.profiling.profile_coverage import coverage_warning, extrapolations_of
    from millrace.reporting import memory_counters, report_page, report_rows
    from millrace.simulator.account import account_of

    check_writable(trace, html)
    detailed = as_json or html is not None or (trace is not None and is_chrome(trace))
    loaded = load_plan(plan, trust=trust)
    planned = _tried(loaded, cluster, precision, framework)
    warn_of(planned)
    began = perf_counter()
    with working(f"simulating {planned.model.name} on {planned.ranks} ranks"):
        simulated = api.simulate(
            planned,
            jitter=jitter,
            stragglers=_stragglers(straggler or ()),
            seed=seed,
            fidelity=fidelity,
            detailed=detailed,
        )
        account = account_of(planned, simulated) if detailed else None
        covered = extrapolations_of(planned) if simulated.fidelity == "op" else ()
    document = {
        **_simulated_figures(planned, simulated),
        "wall_time_s": perf_counter() - began,
        **_question(loaded, planned, simulated),
        "extrapolated": msgspec.to_builtins(covered),
        **({} if account is None else report_rows(account)),
    }
    if trace is not None:
        write_trace(trace, simulated.trace, memory_counters(account.memory if account else ()))
    if html is not None and account is not None:
        figures = _figures(document)
        del figures["simulated"]  # how long that took differs: the page is equal every time
        write_bytes(html, report_page(planned, simulated, account, figures.items()).encode())
    beyond = coverage_warning(covered)
    answer(document, as_json, lambda console: _draw_figures(document, console))
    if beyond is not None:
        say(beyond)
    if short := shortage(planned, simulated.memory_by_kind):
        say(f"millrace: {short}")
        raise typer.Exit(1)


def _simulated_figures(plan: "Plan", simulated: "Simulated") -> dict[str, Any]:
    """Figures of a simulated step, as `--json` has them."""
    from millrace.figures import speed
    from millrace.models.zoo.catalogue import unit_of
    from millrace.planner.clusters.doubts import profile_warning
    from millrace.published.step_time_range import range_document

    step_time_s = simulated.step_time_ns / 1e9
    return {
        "step_time_s": step_time_s,
        **range_document(plan, step_time_s),
        "profile_warning": profile_warning(plan.cluster),
        "unit": unit_of(plan.model),
        **speed(plan, step_time_s)._asdict(),
        "bubble_fraction": simulated.bubble_fraction,
        "exposed_communication_s": simulated.exposed_communication_ns / 1e9,
        "memory_bytes_max": simulated.memory_bytes_max,
        "firings": simulated.firings,
        "fidelity": simulated.fidelity,
    }


def _tried(plan: "Plan", text: str | None, precision: str | None, framework: str | None) -> "Plan":
    """The plan on the cluster, in the precision and by the framework that are asked about."""
    from millrace import api
    from millrace.transfer import software_kept

    on = plan.cluster
    if text is not None:
        on = api.cluster(text, progress=say)
        on = api.with_framework(software_kept(plan, on), framework)
    elif framework is not None:
        on = api.with_framework(on, framework)
    return api.transfer(plan, on=None if on is plan.cluster else on, precision=precision)


def _question(loaded: "Plan", tried: "Plan", simulated: "Simulated") -> dict[str, Any]:
    """Keys that say what was simulated, what it costs, and the step time that its file has."""
    from millrace.figures import simulated_spending

    return {
        "cluster": tried.cluster.name,
        "precision": tried.model.precision,
        "framework": tried.cluster.software.name,
        **simulated_spending(tried, simulated),
        "planned_step_time_s": loaded.figures.get("step_time_s") if tried is not loaded else None,
    }


def run(
    plan: PlanFile,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 50,
    data: Annotated[
        Path | None,
        typer.Option(help="Text: a file or folder; the standard library's sources by default."),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="numpy: this machine's CPUs; cupy: its GPUs, one per rank.")
    ] = "numpy",
    eager: Annotated[
        bool, typer.Option("--eager", help="On GPUs: actor by actor, not a captured step.")
    ] = False,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="All ranks on one GPU: to check a plan.")
    ] = False,
    deterministic: Deterministic = False,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=SEED_MAX, help="Of initial values and the order of samples.")
    ] = 0,
    weights: Annotated[
        Path | None, typer.Option(help="Initial values: a .npz of arrays by variable.")
    ] = None,
    trace: TraceOutput = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder to save the state in.")] = None,
    checkpoint_every: CheckpointEvery = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last state in --checkpoint.")
    ] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Train a plan for real, one process per rank."""
    from millrace import api
    from millrace.executor.backend import Backend
    from millrace.files import check_writable, load_plan, write_trace

    where = Backend(name=backend, eager=eager, loopback=loopback, deterministic=deterministic)
    if lr is not None and not 0 < lr < inf:
        raise PlanError(f"--lr {lr}: expected a learning rate above 0")
    _check_saving(checkpoint, checkpoint_every, resume, weights)
    if checkpoint is not None and not resume:
        warn_of_later(checkpoint, steps)
    check_writable(trace)
    planned = load_plan(plan, trust=trust)
    warn_of(planned)
    with training(steps) as told:
        measured = api.execute(
            planned,
            steps=steps,
            data=data,
            seed=seed,
            learning_rate=lr,
            weights=weights,
            trace=trace is not None,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every or 0,
            resume=resume,
            backend=where,
            progress=told,
            drifted=say_drift,
        )
    if trace is not None:
        write_trace(trace, measured.trace)
    document = _run_document(planned, measured)
    answer(document, as_json, lambda console: _draw_run(document, console))


def say_drift(drift: "Drift") -> None:
    """Say on stderr that steps of a run take another time than before, or the same again."""
    from millrace.tables.drifts import drift_text

    say(f"millrace: {drift_text(drift)}")


def _check_saving(
    checkpoint: Path | None, every: int | None, resume: bool, weights: Path | None
) -> None:
    """Refuse options of saving that do not go together."""
    if resume and checkpoint is None:
        raise PlanError("--resume goes on from a saved state: give its folder with --checkpoint")
    if every is not None and checkpoint is None:
        raise PlanError("--checkpoint-every saves the state: give its folder with --checkpoint")
    if resume and weights is not None:
        raise PlanError("--resume goes on with the values it saved: leave --weights out")


def warn_of_later(folder: Path, steps: int) -> None:
    """Say that a folder holds an earlier run's state, which `--resume` would take for ours."""
    from millrace.executor.errors import CheckpointError
    from millrace.executor.values.checkpoint import find_checkpoint
    from millrace.executor.values.manifest import step_folder

    with suppress(CheckpointError):
        last = find_checkpoint(folder)
        if last.name > step_folder(steps):
            say(
                f"millrace: `{last}` is an earlier run's, and later than step {steps}: --resume "
                f"would go on from it; give another folder to keep them apart"
            )


def _run_document(planned: "Plan", measured: "Measured") -> dict[str, Any]:
    """Document of a run: its speed, losses and memory."""
    from millrace.figures import speed
    from millrace.models.zoo.catalogue import unit_of
    from millrace.planner.clusters.doubts import profile_warning

    step_time_s = measured.step_time_ns / 1e9
    document = {
        "step_time_s": step_time_s,
        "profile_warning": profile_warning(planned.cluster),
        "unit": unit_of(planned.model),
        **speed(planned, step_time_s)._asdict(),
        "loss": measured.losses,
        "first_step": measured.first_step,
        "data": measured.data,
        "ranks": measured.ranks,
        "backend": measured.backend,
        "drift": msgspec.to_builtins(measured.drift),
    }
    if measured.memory is not None:
        document["memory_bytes"] = measured.memory
    if measured.smallest_top_k_margin is not None:
        document["smallest_top_k_margin"] = measured.smallest_top_k_margin
    return document


def _draw_figures(document: Mapping[str, Any], console: "Console") -> None:
    for name, value in _figures(document).items():
        console.print(f"{name:<30}{value}", markup=False, soft_wrap=True)


def _figures(document: Mapping[str, Any]) -> dict[str, str]:
    """Figures of a simulation as text, by name."""
    mfu, before_s = document["mfu"], document["planned_step_time_s"]
    change = {}
    if before_s:
        more = format_percent(document["step_time_s"] / before_s - 1, signed=True)
        named = (document[name] for name in ("cluster", "precision", "framework"))
        price, unit = document["cost_usd_per_mtoken"], document["unit"]
        change = {
            "tried": ", ".join(named),
            "step time as planned": f"{format_seconds(before_s)}, now {more}",
            "cost": "no price is known" if price is None else f"${price:.3g} per million {unit}s",
        }
    return change | {
        "step time": format_seconds(document["step_time_s"]),
        "range of step time": document["step_time_compared_with"],
        "speed": format_rate(document["tokens_per_s"], document["unit"]),
        "mfu": NO_MFU if mfu is None else format_percent(mfu),
        "bubble": format_percent(document["bubble_fraction"]),
        "exposed communication": format_seconds(document["exposed_communication_s"]),
        "memory of the fullest device": format_bytes(document["memory_bytes_max"]),
        "simulated": f"{document['firings']:,} firings in "
        f"{format_seconds(document['wall_time_s'])}"
        + ("" if document["fidelity"] == "op" else f" at {document['fidelity']} fidelity"),
    }


def _draw_run(document: Mapping[str, Any], console: "Console") -> None:
    losses, first = document["loss"], document["first_step"]
    console.print(f"trained on {document['data']}", markup=False)
    console.print(
        f"step time {format_seconds(document['step_time_s'])}, "
        f"{format_rate(document['tokens_per_s'], document['unit'])} on {document['ranks']} ranks "
        f"({document['backend']})",
        markup=False,
    )
    console.print(
        f"loss {losses[0]:.4f} after step {first + 1}, "
        f"{losses[-1]:.4f} after step {first + len(losses)}",
        markup=False,
    )
    if "memory_bytes" in document:
        parts = (f"{name} {format_bytes(size)}" for name, size in document["memory_bytes"].items())
        console.print(f"memory of the fullest rank: {', '.join(parts)}", markup=False)
    if "smallest_top_k_margin" in document:
        console.print(
            f"smallest margin of a choice of experts "
            f"{document['smallest_top_k_margin']:.2g}: in one near rounding, choices may flip",
            markup=False,
        )


def _stragglers(texts: Iterable[str]) -> dict[int, float]:
    """Factors by rank, from texts `RANK:FACTOR`."""
    factors = {}
    for text in texts:
        rank, _, factor = text.partition(":")
        try:
            factors[int(rank)] = float(factor)
        except ValueError:
            raise PlanError(
                f"--straggler {text}: expected RANK:FACTOR, such as 3:2.0 (rank 3 takes twice)"
            ) from None
    return factors
