"""How fast whole training steps are on one GPU, beside what their plans say and PyTorch does.

Run `python -m benchmarks.gpu [--out FILE] [--budget SECONDS] [--profile FILE] [--models NAME...]
[--dry-run]` from the root of the repository. Every model of `gpu_models.TRAINED` is trained by us
and by PyTorch from the same weights on the same samples, each in a process of its own, one after
the other; PyTorch under every setting of `torch_models/settings.py` for which there is time, of
which the best counts. The file holds a row for each, as `gpu_rows.py` says, and is written after
every process. The exit code is 1 where there is no GPU, an item of ours failed, or losses or
bits differ; a row for which there was no time says so and decides nothing.
`--profile` names a profile of this GPU (`millrace profile --device gpu`), by which steps are
predicted; else the catalogue's figures are. `--dry-run` needs no GPU: it prints what would run and
what is predicted.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.first_gpu import Figures, hand_over, run_apart, run_here
from benchmarks.gpu_models import TRAINED, Trained, benchmark_model
from benchmarks.gpu_rows import lines, row
from executor.gpu.availability import require_compiler, require_gpu

OURS_S_MAX = 75
OURS_SHARE = 0.45  # of a model's time, at most
AHEAD_S_MAX = 60
ENDING_S = 3  # of a process, after its last figures
# cuBLAS's workspace as large as PyTorch has it, and deterministic (cuBLAS guide, reproducibility).
TORCH_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def main() -> None:
    """Run one item in this process, or all of them, each in its own."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--item", help="ours.MODEL, torch.MODEL or ahead.MODEL, in this process")
    asked.add_argument("--batch", type=int, help="of an item")
    asked.add_argument("--budget", type=float, default=300.0, help="seconds for all items")
    asked.add_argument("--profile", type=Path)
    names = [entry.model for entry in TRAINED]
    asked.add_argument("--models", nargs="+", choices=names, default=names)
    asked.add_argument("--dry-run", action="store_true", help="plan and predict, run nothing")
    options = asked.parse_args()
    wanted = [entry for entry in TRAINED if entry.model in options.models]
    if options.dry_run:
        dry_run(wanted)
        return
    if (missing := missing_gpu()) is not None:
        sys.exit(f"benchmarks.gpu: {missing}")
    if options.item is not None:
        sys.exit(item(options.item, options.batch, options.budget, options.profile))
    rows = run_all(wanted, options.budget, options.out, options.profile)
    print("\n".join(lines(rows)))
    sys.exit(any(one["ok"] is False for one in rows))


def missing_gpu() -> str | None:
    """Say what a run on a GPU lacks on this machine; None where it lacks nothing."""
    try:
        require_gpu(1)
        require_compiler()
    except (RuntimeError, ValueError) as missing:
        return str(missing)
    return None


def item(name: str, batch: int | None, budget_s: float, profile: Path | None) -> int:
    """Run one item and hand over what it found."""
    who, _, model = name.partition(".")
    entry = next(one for one in TRAINED if one.model == model)
    batches = entry.batches if batch is None else (batch,)
    if who == "torch":
        return run_here(name, {name: lambda: torch_item(entry, batches[0], budget_s)})
    from benchmarks.gpu_training import compiled_ahead, trained

    spec = benchmark_model(model)
    if who == "ahead":
        return run_here(name, {name: lambda: compiled_ahead(spec, batches[0], profile)})
    return run_here(name, {name: lambda: trained(spec, batches, profile, hand_over)})


def torch_item(entry: Trained, batch: int, budget_s: float) -> Figures:
    """Try PyTorch's settings; hand over what is known after each."""
    began = time.monotonic()
    import torch

    from benchmarks.gpu_training import LOSSES, STEPS
    from benchmarks.starting_point import starting_values
    from benchmarks.torch_models.training import tries
    from models.zoo.catalogue import build

    spec = benchmark_model(entry.model)
    figures: Figures = {
        "torch": torch.__version__,
        "items": batch * spec.seq_len,
        "tried": (tried := []),
    }
    values = dict(starting_values(build(spec, 1)))
    left_s = budget_s - (time.monotonic() - began)
    for one in tries(
        spec,
        batch,
        values,
        budget_s=left_s,
        steps=STEPS,
        losses=LOSSES,
        deterministic=entry is TRAINED[0],
    ):
        tried.append(one)
        hand_over(figures)
    return figures


def run_all(
    wanted: Sequence[Trained], budget_s: float, out: Path | None, profile: Path | None
) -> list[Figures]:
    """Run every model within the time, and write the file after each process."""
    begun = time.monotonic()
    given = () if profile is None else ("--profile", str(profile))
    ahead(wanted, min(AHEAD_S_MAX, budget_s), given)
    rows: list[Figures] = []
    for at, entry in enumerate(wanted):
        left_s = budget_s - (time.monotonic() - begun)
        share_s = left_s * entry.weight / sum(one.weight for one in wanted[at:])
        ours_s = min(OURS_S_MAX, max(OURS_SHARE * share_s, min(share_s, 30)))
        started = time.monotonic()
        ours = run_apart(f"ours.{entry.model}", ours_s, "benchmarks.gpu", given)
        rows.append(row(entry, ours, {}))
        written(rows, out)
        torch_s = share_s - (time.monotonic() - started) - ENDING_S
        batch = rows[-1]["batch"] or entry.batches[0]
        arguments = ("--batch", str(batch), "--budget", str(max(torch_s - ENDING_S, 1)))
        theirs = run_apart(
            f"torch.{entry.model}", torch_s, "benchmarks.gpu", arguments, **TORCH_ENVIRONMENT
        )
        rows[-1] = row(entry, ours, theirs)
        written(rows, out)
        print(json.dumps(rows[-1]), flush=True)
    return rows


def ahead(wanted: Iterable[Trained], limit_s: float, arguments: Sequence[str]) -> None:
    """Compile the kernels of all models at once, a process for each, before anything is timed."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments, "--item"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = [subprocess.Popen([*command, f"ahead.{one.model}"], **quiet) for one in wanted]
    for process in running:
        try:
            process.wait(max(limit_s - (time.monotonic() - begun), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()


def written(rows: list[Figures], out: Path | None) -> None:
    """Write the file, if there is to be one."""
    if out is not None:
        out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def dry_run(wanted: Sequence[Trained], device: str = "h200-sxm") -> None:
    """Print what would run, and what plans for a device that need not be here say."""
    from benchmarks.gpu_models import planned
    from benchmarks.gpu_training import predicted
    from benchmarks.torch_models.settings import DETERMINISTIC, changes_of

    for entry in wanted:
        spec = benchmark_model(entry.model)
        print(f"{entry.model}: {entry.batches[0]} samples a step (then {entry.batches[1:]})")
        print(f"  predicted: {json.dumps(predicted(planned(spec, entry.batches[0], device)))}")
        changes = [*changes_of(spec), *([DETERMINISTIC] if entry is TRAINED[0] else [])]
        print(f"  PyTorch: {'; '.join(name for name, _ in changes)}")
    print(f"nothing was run; this machine: {missing_gpu() or 'has a GPU'}")


if __name__ == "__main__":
    main()
