"""Training steps of Millrace's executor on CPUs beside PyTorch's, in one run and by turns.

Run `python -m benchmarks.executor.training [--models NAME,…] [--quick] [--oversubscribed]` from the
root of the repository, while nothing else runs.

The same models, samples, initial values and AdamW, in fp32: one rank with all cores (two of them)
beside PyTorch eager and compiled with as many threads, and two ranks with half of the cores each
beside DistributedDataParallel on gloo with two processes. PyTorch's AdamW is the fused one. All
take turns, a few steps each, several rounds; a figure is the median of its rounds, whose figures
are the median of their steps. A ratio is PyTorch's time over Millrace's: above 1, Millrace is
faster. The last two columns show whether both train alike: losses after equal numbers of steps.

With `--oversubscribed` twice as many ranks as cores share them; the ideal is the time in which the
cores do what all ranks compute, and nothing else.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import msgspec
import typer

import millrace
from benchmarks.executor.torch_worker import TorchJob
from millrace.executor.processes import usable_cores
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.plan import Plan

TRAINING = TrainingSpec(learning_rate=1e-4)
WARM_UP = 2


class CpuModel(NamedTuple):
    """A model, samples of a step, tokens of a sample, and layers with `--quick`."""

    name: str
    batch: int
    seq_len: int | None
    quick: dict[str, object]


MODELS = {
    "gpt2-small": CpuModel("gpt2-small", 4, 128, {"layers": 3, "vocab": 8192}),
    # GPT-2 small's depth and widths with Llama's parts and vocabulary (arXiv 2302.13971, 2023);
    # the feed-forward part is two thirds of four times as wide, as there.
    "llama-small": CpuModel("llama-small", 4, 128, {"layers": 3, "vocab": 8192}),
    "bert-base": CpuModel("bert-base-mlm", 4, 128, {"layers": 3, "vocab": 8192}),
    "resnet-18": CpuModel("resnet-18", 16, None, {"image_size": 96}),
}
LLAMA_SMALL = ModelSpec(
    name="llama-small",
    family="decoder",
    config={
        "layers": 12,
        "hidden": 768,
        "vocab": 32000,
        "positions": 1024,
        "heads": 12,
        "kv_heads": 12,
        "head_dim": 64,
        "ffn_hidden": 2048,
        "rotary_dims": 64,
    },
    seq_len=1024,
    precision="fp32",
)


@dataclass(slots=True, kw_only=True)
class TurnTimes:
    """Seconds of a step, the median of every round's steps, and the loss of the first round."""

    rounds_s: list[float]
    loss: float | None = None

    @property
    def step_s(self) -> float:
        """Median of the rounds."""
        return median(self.rounds_s)


class TorchProcesses:
    """The processes of one way of training with PyTorch; they sleep while others are timed."""

    def __init__(self, folder: Path, name: str, jobs: list[TorchJob]) -> None:
        self._processes = []
        for job in jobs:
            path = folder / f"{name}.{job.rank}.json"
            path.write_bytes(msgspec.json.encode(job))
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.executor.torch_worker", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": str(job.threads)},
            )
            self._processes.append(process)

    def steps(self, count: int) -> tuple[list[float], float]:
        """Seconds of so many steps, the slowest process's each, and the mean of the last losses."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(msgspec.json.decode(process.stdout.readline()))
        times = [max(step) for step in zip(*(times for times, _ in answers), strict=True)]
        return times, sum(loss for _, loss in answers) / len(answers)

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()


def specification(model: CpuModel, quick: bool) -> ModelSpec:
    """The model in fp32, smaller where it is to be quick."""
    if model.name == LLAMA_SMALL.name:
        spec = msgspec.structs.replace(LLAMA_SMALL, seq_len=model.seq_len or 0)
    else:
        spec = model_spec(model.name, model.seq_len, "fp32")
    if quick:
        spec = msgspec.structs.replace(spec, config={**spec.config, **model.quick})
    return spec


def planned(spec: ModelSpec, batch: int, ranks: int, **degrees: int) -> Plan:
    """Plan of one microbatch a step on ranks of this machine."""
    pins = {"dp": 1, "tp": 1, "pp": 1} | degrees
    pins["micro_batch"] = batch // pins["dp"]
    cluster = millrace.cluster(f"local:{ranks}", measured=False)
    return millrace.plan(
        spec, cluster, global_batch=batch, training=TRAINING, pins=millrace.Pins.of(pins)
    ).plan


def our_steps(plan: Plan, count: int) -> tuple[list[float], float]:
    """Seconds of so many steps of a fresh run, after its warm-up, and the last loss."""
    measured = millrace.run(plan, steps=WARM_UP + count, trace=False)
    times = measured.trace.step_times_ns()[WARM_UP:]
    return [duration / 1e9 for duration in times], measured.loss[-1]


def torch_jobs(spec: ModelSpec, batch: int, folder: Path) -> dict[str, list[TorchJob]]:
    """Ways of training with PyTorch by name."""
    cores = usable_cores()
    common = {"model": spec, "training": TRAINING, "channels_last": spec.family == "resnet"}
    return {
        "eager": [TorchJob(batch=batch, threads=cores, **common)],
        "compiled": [TorchJob(batch=batch, threads=cores, compiled="default", **common)],
        "ddp": [
            TorchJob(
                batch=batch // 2,
                threads=max(1, cores // 2),
                rank=rank,
                ranks=2,
                meeting=str(folder / "meeting"),
                **common,
            )
            for rank in range(2)
        ],
    }


def compare(model: CpuModel, *, quick: bool, rounds: int, steps: int) -> str:
    """Train a model in all ways by turns; a row of the table."""
    spec = specification(model, quick)
    plans = {
        "one rank": planned(spec, model.batch, 1),
        "two ranks": planned(spec, model.batch, 2, dp=2),
    }
    figures: dict[str, TurnTimes] = {}

    def keep(name: str, times: list[float], loss: float) -> None:
        figures.setdefault(name, TurnTimes(rounds_s=[], loss=loss)).rounds_s.append(median(times))

    with TemporaryDirectory(prefix="millrace-benchmark-") as name:
        rivals = {
            way: TorchProcesses(Path(name), way, jobs)
            for way, jobs in torch_jobs(spec, model.batch, Path(name)).items()
        }
        for rival in rivals.values():
            rival.steps(WARM_UP)
        for _ in range(rounds):
            for way, plan in plans.items():
                keep(way, *our_steps(plan, steps))
            for way, rival in rivals.items():
                keep(way, *rival.steps(steps))
        for rival in rivals.values():
            rival.end()
    return row(spec, figures)


def row(spec: ModelSpec, figures: dict[str, TurnTimes]) -> str:
    """A model's row of the table."""
    ours, both_ours = figures["one rank"].step_s, figures["two ranks"].step_s
    eager, compiled, ddp = (figures[way].step_s for way in ("eager", "compiled", "ddp"))
    losses = f"{figures['one rank'].loss:8.4f} {figures['eager'].loss:8.4f}"
    times = " ".join(f"{seconds * 1e3:9.0f}" for seconds in (ours, eager, compiled, both_ours, ddp))
    ratios = " ".join(f"{ratio:7.2f}" for ratio in (eager / ours, compiled / ours, ddp / both_ours))
    return f"{spec.name:14s} {times} {ratios}  {losses}"


HEADER = (
    f"{'ms a step':14s} {'one rank':>9s} {'eager':>9s} {'compiled':>9s} {'two ranks':>9s} "
    f"{'ddp':>9s} {'eager':>7s} {'compil.':>7s} {'ddp':>7s}  {'loss':>8s} {'eager':>8s}"
)


def oversubscribed(model: CpuModel, *, quick: bool, rounds: int, steps: int) -> str:
    """Time four ranks of two cores beside their ideal; a row of its own table."""
    spec, cores = specification(model, quick), usable_cores()
    plan = planned(spec, model.batch, 2 * cores, tp=2 * cores)
    times, ideals = [], []
    for _ in range(rounds):
        trace = millrace.run(plan, steps=WARM_UP + steps, trace=True).trace
        times.append(median(trace.step_times_ns()[WARM_UP:]) / 1e9)
        computed_ns = 0
        for span in trace.spans:
            lane = trace.lanes[span.rank]
            is_warm = span.firing >= WARM_UP * lane.firings[span.actor]
            if is_warm and lane.queues[span.actor] == "compute":
                computed_ns += span.cpu_ns
        ideals.append(computed_ns / steps / cores / 1e9)
    step_s, ideal_s = median(times), median(ideals)
    return (
        f"{spec.name}: {2 * cores} ranks (tensor-parallel) on {cores} cores: "
        f"{step_s * 1e3:.0f} ms, ideal {ideal_s * 1e3:.0f} ms, {step_s / ideal_s:.2f} times that"
    )


def main(
    models: Annotated[str, typer.Option(help="Names, with commas between.")] = ",".join(MODELS),
    quick: Annotated[bool, typer.Option(help="Fewer layers, smaller images.")] = False,
    rounds: int = 3,
    steps: int = 3,
    oversubscribe: Annotated[bool, typer.Option("--oversubscribed")] = False,
) -> None:
    """Print a row for every model."""
    if not oversubscribe:
        print(HEADER, flush=True)
    for name in models.split(","):
        if name not in MODELS:
            raise typer.BadParameter(f"no model `{name}`: choose among {', '.join(MODELS)}")
        measure = oversubscribed if oversubscribe else compare
        print(measure(MODELS[name], quick=quick, rounds=rounds, steps=steps), flush=True)


if __name__ == "__main__":
    typer.run(main)
