"""`millrace demo`: the whole road on this machine, in under two minutes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.commands.comparing import rows_table
from millrace.commands.options.option_words import SEED_MAX
from millrace.commands.running import say_drift
from millrace.commands.updating import update_profile, updated_figures, updated_lines
from millrace.output import Json, answer, say, training, working
from millrace.units import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.comparison import Comparison
    from millrace.planner.actors.trace import Trace
    from millrace.planner.cluster import Cluster
    from millrace.planner.plan import Plan

MODEL = "gpt-demo"
LEARNING_RATE, WARMUP_STEPS = 5e-3, 10
SAMPLES_PER_RANK = 4
SHOWN_CAUSES = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    ranks: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 4,
    steps: Annotated[int, typer.Option(min=6, help="Training steps.")] = 60,
    data: Annotated[
        Path | None, typer.Option(help="File or folder; the standard library's sources by default.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=SEED_MAX, help="Of initial values and the order of samples.")
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for plan, traces and page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan, simulate and train a small GPT here, and compare."""
    import millrace
    from millrace.comparison import join
    from millrace.figures import kinds_of_parallelism
    from millrace.files import make_folder
    from millrace.planner.clusters.doubts import profile_warning
    from millrace.tables.console import stdout

    if output is not None:
        make_folder(output)  # before the long work, so that a bad path is told at once
    on = millrace.cluster(f"local:{ranks}", progress=say)
    if (warning := profile_warning(on)) is not None:
        say(warning)
    question = _DemoQuestion(on=on, global_batch=SAMPLES_PER_RANK * ranks, seed=seed)
    free = question.search({})
    pins = pins_for(kinds_of_parallelism(free), ranks)
    plan = question.search(pins) if pins else free
    if not as_json:
        _draw_choice(free, plan, pins, stdout())
    with working(f"simulating {ranks} ranks on {on.cores_per_node} cores"):
        predicted = millrace.simulate(plan)
    with training(steps) as told:
        measured = millrace.run(
            plan, steps=steps, data=data, seed=seed, progress=told, drifted=say_drift
        )
    comparison = join(predicted.trace, measured.trace)
    if output is not None:
        _write_all(output, plan, predicted.trace, measured.trace)
    update = update_profile(plan, measured.trace, keep=True)
    document = {
        "plan": msgspec.to_builtins(plan),
        "free_plan": msgspec.to_builtins(free),
        "pins": pins,
        "predicted": {"step_time_s": comparison.predicted_step_time_s},
        "measured": {"step_time_s": comparison.measured_step_time_s},
        "error": comparison.step_time_error,
        "updated": updated_figures(update),
        "profile_warning": warning,
        "drift": msgspec.to_builtins(measured.drift),
        "loss": measured.loss,
        "data": measured.data,
    }
    answer(document, as_json, lambda console: _draw_end(comparison, document, output, console))


@dataclass(frozen=True, slots=True, kw_only=True)
class _DemoQuestion:
    """Question of both searches of the demo, but for the pins."""

    on: "Cluster"
    global_batch: int
    seed: int

    def search(self, pins: dict[str, int]) -> "Plan":
        """Search under pins (none: every choice is free), showing how far it is."""
        import millrace

        text = " ".join(f"{name} {size}" for name, size in pins.items())
        what = f"with {text} pinned" if pins else "with every choice free"
        with working(f"planning {MODEL} for {self.on.name} {what}") as told:
            planned = millrace.plan(
                MODEL,
                self.on,
                global_batch=self.global_batch,
                training=millrace.TrainingSpec(
                    learning_rate=LEARNING_RATE, warmup_steps=WARMUP_STEPS
                ),
                pins=millrace.Pins.of(pins),
                seed=self.seed,
                progress=told,
            )
        return planned.plan


def pins_for(kinds: list[str], ranks: int) -> dict[str, int]:
    """Pins that make a plan of two kinds of parallelism, none where it has them already.

    Examples
    --------
    >>> pins_for(["dp 4"], 4)
    {'dp': 2, 'pp': 2}
    >>> pins_for(["dp 2", "tp 2"], 4)
    {}
    """
    if len(kinds) >= 2 or ranks < 4 or ranks % 2:
        return {}
    return {"dp": ranks // 2, "pp": 2}


def _draw_choice(free: "Plan", plan: "Plan", pins: dict[str, int], console: "Console") -> None:
    from millrace.drawing import headline
    from millrace.figures import kinds_of_parallelism
    from millrace.tables.stages import stage_table

    assert free.prediction is not None
    assert plan.prediction is not None
    kinds = " × ".join(kinds_of_parallelism(free)) or "one device"
    console.print(
        f"the search's own choice: {kinds}; "
        f"predicted step time {format_seconds(free.prediction.step_time_s)}",
        markup=False,
    )
    if pins:
        text = " × ".join(kinds_of_parallelism(plan))
        console.print(
            f"that is one kind of parallelism; to show two at work the demo pins {text}",
            markup=False,
        )
    console.print(headline(plan), markup=False, soft_wrap=True)
    console.print(stage_table(plan))
    console.print(f"predicted step time {format_seconds(plan.prediction.step_time_s)}; training …")


def _draw_end(
    comparison: "Comparison", document: Mapping[str, Any], output: Path | None, console: "Console"
) -> None:
    losses = document["loss"]
    console.print(f"trained on {document['data']}", markup=False)
    console.print(
        f"loss {losses[0]:.3f} after step 1, {losses[-1]:.3f} after step {len(losses)} "
        f"(a uniform guess over 256 bytes: {log(256):.3f})",
        markup=False,
    )
    console.print(rows_table("cause (per step, average rank)", comparison.causes[:SHOWN_CAUSES]))
    if output is not None:
        console.print(f"plan, traces and page: {output}", markup=False)
    console.print(f"predicted step time {format_seconds(comparison.predicted_step_time_s)}")
    console.print(f"measured  step time {format_seconds(comparison.measured_step_time_s)}")
    console.print(f"error {format_percent(comparison.step_time_error, signed=True)}")
    for line in updated_lines(document["updated"]):
        console.print(line, markup=False, soft_wrap=True)


def _write_all(folder: Path, plan: "Plan", predicted: "Trace", measured: "Trace") -> None:
    """Write the plan, both traces in both forms, and the page."""
    from millrace.comparison_page import write_page
    from millrace.files import write_document, write_trace

    write_document(folder / "plan.json", plan)
    for trace in (predicted, measured):
        write_trace(folder / f"{trace.source}.json", trace)
        write_trace(folder / f"{trace.source}.chrome.json", trace)
    write_page(folder / "comparison.html", plan, predicted, measured)
