"""Running a plan, on simulated time and on devices: `millrace simulate` and `run`."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.commands.options import completion, run_options
from millrace.commands.options.option_words import SEED_MAX
from millrace.commands.options.question_options import Framework, PlanFile, Trust
from millrace.output import Json, answer, say, training, working
from millrace.planner.errors import PlanError
from millrace.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.executor.drift.drift_watch import Drift
    from millrace.planner.plan import Plan

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


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("simulate")(simulate)
    app.command("run")(run)


def warn_of(plan: "Plan") -> None:
    """Say on stderr what a plan does that is seldom meant, and what its figures are in doubt of."""
    from millrace.api.plan_results import plan_notes

    for note in plan_notes(plan):
        say(note)


def simulate(
    plan: PlanFile,
    cluster: OtherCluster = None,
    precision: OtherPrecision = None,
    framework: Framework = None,
    jitter: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Standard deviation of durations, as a share: 0.1."),
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
    import millrace
    from millrace.api.simulation_results import figure_texts
    from millrace.files import check_writable, is_chrome, load_plan
    from millrace.models.documents import write_bytes
    from millrace.profiling.profile_coverage import coverage_warning, extrapolations_of
    from millrace.reporting import report_page, report_rows

    check_writable(trace, html, read=(plan,))
    _check_fidelity(fidelity)
    detailed = as_json or html is not None or (trace is not None and is_chrome(trace))
    loaded = load_plan(plan, trust=trust)
    factors = _stragglers(straggler or (), loaded.ranks)
    with working(f"simulating {loaded.model.name} on {loaded.ranks} ranks"):
        result = millrace.simulate(
            loaded,
            cluster=cluster,
            precision=precision,
            framework=framework,
            jitter=jitter,
            stragglers=factors,
            seed=seed,
            fidelity=fidelity,
            detailed=detailed,
            progress=say,
        )
        covered = extrapolations_of(result.plan) if result.fidelity == "op" else ()
    warn_of(result.plan)
    account = result.account
    document = {
        **result.document,
        "extrapolated": msgspec.to_builtins(covered),
        **({} if account is None else report_rows(account)),
    }
    if trace is not None:
        result.save_trace(trace)
    if html is not None and account is not None:
        figures = figure_texts(result, timed=False)  # the page is equal every time
        page = report_page(result.plan, result.simulated, account, figures.items())
        write_bytes(html, page.encode())
    answer(document, as_json, lambda console: _draw_figures(figure_texts(result), console))
    if (beyond := coverage_warning(covered)) is not None:
        say(beyond)
    if result.shortage:
        say(f"millrace: {result.shortage}")
        raise typer.Exit(1)


def run(
    plan: PlanFile,
    steps: run_options.Steps = 50,
    data: run_options.Data = None,
    backend: run_options.BackendName = "numpy",
    eager: run_options.Eager = False,
    loopback: run_options.Loopback = False,
    deterministic: run_options.Deterministic = False,
    lr: run_options.LearningRate = None,
    seed: run_options.Seed = 0,
    weights: run_options.Weights = None,
    trace: TraceOutput = None,
    checkpoint: run_options.Checkpoint = None,
    checkpoint_every: run_options.CheckpointEvery = None,
    checkpoint_minutes: run_options.CheckpointMinutes = None,
    checkpoint_keep: run_options.CheckpointKeep = None,
    resume: run_options.Resume = False,
    restarts: run_options.Restarts = 0,
    stall: run_options.Stall = None,
    hosts: run_options.HostNames = None,
    launcher: run_options.Launcher = None,
    address: run_options.Address = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Train a plan for real, one process per rank."""
    import millrace
    from millrace.files import check_writable, load_plan

    if checkpoint is not None and not resume:
        warn_of_later(checkpoint, steps)
    check_writable(trace, read=(plan,))
    planned = load_plan(plan, trust=trust)
    warn_of(planned)
    with training(steps) as told:
        measured = millrace.run(
            planned,
            steps=steps,
            data=data,
            backend=backend,
            eager=eager,
            loopback=loopback,
            deterministic=deterministic,
            learning_rate=lr,
            seed=seed,
            weights=weights,
            trace=trace is not None,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            checkpoint_minutes=checkpoint_minutes,
            checkpoint_keep=checkpoint_keep,
            resume=resume,
            progress=told,
            drifted=say_drift,
            stall_s=stall,
            noted=say_note,
            restarts=restarts,
            hosts=hosts,
            launcher=launcher,
            address=address,
        )
    if trace is not None:
        measured.save_trace(trace)
    document = measured.document
    answer(document, as_json, lambda console: _draw_run(document, console))


def say_drift(drift: "Drift") -> None:
    """Say on stderr that steps of a run take another time than before, or the same again."""
    from millrace.tables.drifts import drift_text

    say(f"millrace: {drift_text(drift)}")


def say_note(sentence: str) -> None:
    """Say on stderr that a checkpoint is not written, or that a run resumes with something else."""
    say(f"millrace: {sentence}")


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


def _draw_figures(figures: Mapping[str, str], console: "Console") -> None:
    for name, value in figures.items():
        console.print(f"{name:<30}{value}", markup=False, soft_wrap=True)


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


def _check_fidelity(fidelity: str | None) -> None:
    """Refuse a fidelity that there is not."""
    from millrace.simulator.prediction import FIDELITIES

    if fidelity not in (None, *FIDELITIES):
        raise PlanError(f"--fidelity {fidelity}: choose {', '.join(FIDELITIES)}")


def _stragglers(texts: Iterable[str], ranks: int) -> dict[int, float]:
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
        if not 0 <= int(rank) < ranks:
            raise PlanError(f"--straggler {text}: the ranks are 0 to {ranks - 1}")
        if not 0 < factors[int(rank)] < inf:
            raise PlanError(f"--straggler {text}: expected a factor above 0 (2.0: it takes twice)")
    return factors
