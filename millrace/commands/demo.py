"""`millrace demo`: the whole road on this machine, in under two minutes."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from millrace.compare import Comparison
from millrace.output import Json, answer, say, stdout, training, working
from millrace.units import format_percent, format_seconds
from planner.plan import Plan

MODEL = "gpt-demo"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    ranks: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 4,
    steps: Annotated[int, typer.Option(min=6, help="Training steps.")] = 60,
    data: Annotated[
        Path | None, typer.Option(help="File or folder; the standard library's sources by default.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of initial values and samples.")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for plan, traces and page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan a small GPT for this machine, simulate it, train it on real text, and compare."""
    from millrace import api
    from millrace.compare import join
    from millrace.files import make_folder

    if output is not None:
        make_folder(output)
    on = api.cluster(f"local:{ranks}", progress=say)
    batch = 4 * ranks
    with working(f"planning {MODEL} for {on.name}, every choice free"):
        free = api.search(MODEL, on, batch, seed=seed).plan
    plan, why = _shown_plan(free, on, batch, seed)
    if not as_json:
        _draw_choice(free, plan, why, stdout())
    with working(f"simulating {ranks} ranks on {on.cores_per_node} cores"):
        predicted = api.simulate(plan)
    with training(steps) as told:
        measured = api.execute(plan, steps=steps, data=data, seed=seed, progress=told)
    found = join(predicted.trace, measured.trace)
    if output is not None:
        _write_all(output, plan, predicted.trace, measured.trace, found)
    document = {
        "plan": msgspec.to_builtins(plan),
        "free_plan": msgspec.to_builtins(free),
        "predicted": {"step_time_s": found.predicted_step_time_s},
        "measured": {"step_time_s": found.measured_step_time_s},
        "error": found.step_time_error,
        "loss": measured.losses,
    }
    answer(document, as_json, lambda console: _draw_end(found, measured.losses, console))
