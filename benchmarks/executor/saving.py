"""Step times with checkpoints beside those without, written while steps wait or while they go on.

Run `python -m benchmarks.executor.saving [--folder FOLDER] [--model NAME] [--rounds N]` from the
root of the repository. Checkpoints go into a folder in FOLDER (by default the system's temporary
one), which is removed again.

Every model is run on two processes with a checkpoint every few steps, written while the step waits
and then in the background; a round is both, one after another. Prints medians over all rounds: of a
step without a checkpoint (where none is written beside it), of a step after which the state is
saved, and of what a checkpoint adds to all steps from one to the next, which in the background slow
down while it is written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer

import millrace
from millrace.executor.launch import execute
from millrace.executor.training.orders import Saving
from millrace.executor.values.checkpoint import find_checkpoint
from millrace.executor.values.manifest import read_manifest
from millrace.planner.plan import Plan

WARM_UP = 1


class SavedModel(NamedTuple):
    """A model to save: its name, sequence length, steps, and steps between checkpoints."""

    name: str
    seq_len: int
    steps: int
    every: int


MODELS = (
    SavedModel("gpt-demo", 64, 60, 10),
    SavedModel("gpt2-small", 32, 10, 5),
)


class SavedSteps(NamedTuple):
    """Seconds of steps that are saved, of those that are not, and of whole periods."""

    saved: list[float]
    plain: list[float]
    periods: list[float]


def main(
    folder: Annotated[Path | None, typer.Option()] = None,
    model: Annotated[str | None, typer.Option()] = None,
    rounds: Annotated[int, typer.Option()] = 1,
) -> None:
    """Measure every model, or the one that is named."""
    cluster = millrace.cluster("local:2")
    for case in MODELS:
        if model not in (None, case.name):
            continue
        plan = millrace.plan(
            case.name,
            cluster,
            global_batch=2,
            seq_len=case.seq_len,
            pins=millrace.Pins.of({"dp": 2, "tp": 1, "pp": 1, "micro_batch": 1}),
        ).plan
        waiting, behind = SavedSteps([], [], []), SavedSteps([], [], [])
        size_bytes = 0
        for _ in range(rounds):
            for times, in_background in ((waiting, False), (behind, True)):
                with checkpoints_in(folder) as place:
                    add_steps(times, plan, case, place, in_background)
                    size_bytes = read_manifest(find_checkpoint(place)).size_bytes
        step_s = median(waiting.plain)
        words = [f"a step without takes {step_s * 1e3:.0f} ms"]
        for name, times in (("while it waits", waiting), ("in the background", behind)):
            added_s = median(times.periods) - case.every * step_s
            words.append(
                f"written {name}: a saved step {median(times.saved) * 1e3:.0f} ms, a checkpoint "
                f"adds {added_s * 1e3:.0f} ms"
            )
        print(f"{case.name}, {size_bytes / 2**20:.0f} MiB: {'; '.join(words)}", flush=True)


@contextmanager
def checkpoints_in(folder: Path | None) -> Iterator[Path]:
    """Folder for the checkpoints of one run, removed behind it."""
    with TemporaryDirectory(prefix="saving-", dir=folder) as place:
        yield Path(place) / "checkpoints"


def add_steps(
    times: SavedSteps, plan: Plan, model: SavedModel, folder: Path, in_background: bool
) -> None:
    """Run a plan with checkpoints, and add what its steps took."""
    measured = execute(
        plan,
        steps=model.steps,
        saving=Saving(folder=folder, every=model.every, keep=1, in_background=in_background),
    )
    seconds = [step_ns / 1e9 for step_ns in measured.trace.step_times_ns()]
    for step, step_s in enumerate(seconds[WARM_UP:], start=WARM_UP):
        (times.plain if (step + 1) % model.every else times.saved).append(step_s)
    for begin in range(model.every - 1, model.steps - model.every + 1, model.every):
        times.periods.append(sum(seconds[begin : begin + model.every]))


if __name__ == "__main__":
    typer.run(main)
