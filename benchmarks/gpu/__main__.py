"""Speed of whole training steps on one GPU, beside what their plans say and PyTorch does.

Run `python -m benchmarks.gpu [--models NAME...] [--budget SECONDS] [--profile FILE] [--ours]
[--emulated]` from the root of the repository. Every model of `trained_models.TRAINED` is
trained by us and by PyTorch from the same weights on the same samples, each in a process of its
own, one after the other; PyTorch under every setting of `torch_models/settings.py` for which there
is time, of which the best counts. What they find they write down as lines while they find it, and
`rows.py` makes a row of those of one model. The exit code is 1 where an item of ours failed or
was late, or losses or bits differ. `--profile` names a profile of this GPU (`millrace profile
--device gpu`), by which steps are predicted; where there is no such file the catalogue's figures
are. `--ours` leaves PyTorch out. `--emulated` trains a small model of each family, ours on the
emulated device and PyTorch's on the CPU, to try this command without a GPU.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.processes import (
    ended,
    hand_over,
    run_apart,
    run_here,
    started,
    unwind_when_asked_to_end,
)
from benchmarks.gpu.rows import Figures, lines, lines_without_times, row
from benchmarks.gpu.trained_models import TRAINED, TrainedModel, benchmark_model
from millrace.executor.gpu.availability import require_compiler, require_gpu
from millrace.models.spec import ModelSpec

if TYPE_CHECKING:
    from benchmarks.gpu.step_times import Effort

OURS_S_MAX = 150
OURS_SHARE = 0.5  # of a model's time, at most
AHEAD_S_MAX = 60
IMAGE_LOSSES = 6
ENDING_S = 3  # of a process, after its last figures
# cuBLAS's workspace as large as PyTorch has it, and deterministic (cuBLAS guide, reproducibility).
TORCH_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def main() -> int:
    """Run one item in this process, or all of them, each in its own."""
    asked = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    asked.add_argument("--item", help="ours.MODEL, torch.MODEL or ahead.MODEL, in this process")
    asked.add_argument("--batch", type=int, help="of an item")
    asked.add_argument("--budget", type=float, default=300.0, help="seconds for all items")
    asked.add_argument("--profile", type=Path)
    names = [entry.model for entry in TRAINED]
    asked.add_argument("--models", nargs="+", choices=names, default=names)
    asked.add_argument("--ours", action="store_true", help="without PyTorch")
    asked.add_argument("--emulated", action="store_true", help="small models, without a GPU")
    options = asked.parse_args()
    if options.profile is not None and not options.profile.exists():
        options.profile = None
    if options.item is not None:
        return item(options)
    wanted = [entry for entry in TRAINED if entry.model in options.models]
    if not options.emulated and (missing := missing_gpu()) is not None:
        print(f"benchmarks.gpu: {missing}", file=sys.stderr)
        return 3
    unwind_when_asked_to_end()
    rows = run_all(wanted, options)
    print("\n".join((lines_without_times if options.emulated else lines)(rows)))
    return int(any(model_row["ok"] is not True for model_row in rows))


def missing_gpu() -> str | None:
    """Say what a run on a GPU lacks on this machine; None where it lacks nothing."""
    try:
        require_gpu(1)
        require_compiler()
    except (RuntimeError, ValueError) as missing:
        return str(missing)
    return None


def item(options: argparse.Namespace) -> int:
    """Run one item and write down what it finds."""
    name: str = options.item
    who, _, model = name.partition(".")
    entry = next(candidate for candidate in TRAINED if candidate.model == model)
    batches = entry.batches if options.batch is None else (options.batch,)
    spec = benchmark_model(model)
    from benchmarks.gpu.step_times import FULL, compiled_ahead, trained

    effort, device = FULL, "cuda"
    if entry.unit == "images":  # images of a step take as long to draw as ten steps to train
        effort = replace(FULL, losses=IMAGE_LOSSES)
    if options.emulated:
        from benchmarks.gpu.emulated import BATCH, BRIEF, emulated

        spec, batches, effort, device = emulated(spec), (BATCH,), BRIEF, "cpu"
    if who == "torch":
        run_item = partial(torch_item, entry, spec, batches[0], options.budget, effort, device)
    elif who == "ahead":
        run_item = partial(compiled_ahead, spec, batches[0], options.profile)
    else:
        told = partial(hand_over, name)
        run_item = partial(trained, spec, batches, options.profile, told, effort)
    return run_here(name, run_item)


def torch_item(
    entry: TrainedModel, spec: ModelSpec, batch: int, budget_s: float, effort: "Effort", device: str
) -> Figures:
    """Try PyTorch's settings; hand over what is known after each."""
    began = time.monotonic()
    import torch

    from benchmarks.gpu.starting_point import starting_values
    from benchmarks.gpu.torch_models.training import tries
    from millrace.models.zoo.catalogue import build

    figures: Figures = {
        "torch": torch.__version__,
        "items": batch * spec.seq_len,
        "tried": (tried := []),
    }
    values = dict(starting_values(build(spec, 1)))
    left_s = budget_s - (time.monotonic() - began)
    for figures_of_setting in tries(
        spec,
        batch,
        values,
        budget_s=left_s,
        steps=effort.steps,
        losses=effort.losses,
        device=device,
        deterministic=entry is TRAINED[0],
    ):
        tried.append(figures_of_setting)
        hand_over(f"torch.{entry.model}", figures)
    return figures


def run_all(wanted: Sequence[TrainedModel], options: argparse.Namespace) -> list[Figures]:
    """Run every model within the time; return their rows."""
    begun = time.monotonic()
    given = ("--emulated",) if options.emulated else ()
    if options.profile is not None:
        given += ("--profile", str(options.profile))
    if not options.emulated:
        ahead(wanted, min(AHEAD_S_MAX, options.budget), given)
    rows: list[Figures] = []
    for position, entry in enumerate(wanted):
        left_s = options.budget - (time.monotonic() - begun)
        share_s = left_s * entry.weight / sum(trained.weight for trained in wanted[position:])
        ours_s = share_s if options.ours else min(OURS_S_MAX, OURS_SHARE * share_s)
        started = time.monotonic()
        ours = run_apart(f"ours.{entry.model}", ours_s, "benchmarks.gpu", given)
        theirs: Figures = {}
        if not options.ours:
            torch_s = share_s - (time.monotonic() - started) - ENDING_S
            batch = (ours.get("figures") or {}).get("batch") or entry.batches[0]
            arguments = ("--batch", str(batch), "--budget", str(max(torch_s - ENDING_S, 1)), *given)
            name = f"torch.{entry.model}"
            theirs = run_apart(name, torch_s, "benchmarks.gpu", arguments, TORCH_ENVIRONMENT)
        rows.append(row(entry, ours, theirs))
    return rows


def ahead(wanted: Iterable[TrainedModel], limit_s: float, arguments: Sequence[str]) -> None:
    """Compile the kernels of all models at once, a process for each, before anything is timed."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments, "--item"]
    running = [started([*command, f"ahead.{trained.model}"], {}) for trained in wanted]
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(limit_s - (time.monotonic() - begun), 0.1))
        ended(process)


if __name__ == "__main__":
    sys.exit(main())
