"""How long the planner takes, on how much memory, and how sure it is.

Every question is a command of its own, `millrace plan … --json`, timed from typing to printing; two
more are asked in this process: how depth enters (96 layers against 12), and the block program of
Llama-3 8B on a mesh of 8 × 8, beside the integer program that HiGHS is given whole.

Run `python -m benchmarks.planner [NAME…]` from the root of the repository; names are those of the
rows, `depth` and `mesh`. Ratios are within one run.
"""

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from time import perf_counter

from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.clusters import parse_cluster
from millrace.planner.search import Pins, SearchRequest, search


@dataclass(frozen=True, slots=True)
class Question:
    """A command, the seconds it should take at most, and what a peer takes."""

    name: str
    arguments: str
    bar_s: float
    peer: str = ""


QUESTIONS = (
    Question(
        "gpt3-175b",
        "gpt3-175b --cluster a100-sxm-80gb:8x128 --global-batch 1536 --seq-len 2048",
        10.0,
    ),
    Question(
        "llama3-405b",
        "llama3-405b --cluster h100-sxm-80gb:8x2048 --global-batch 2048 --seq-len 8192",
        30.0,
    ),
    Question(
        "mixtral-8x7b",
        "mixtral-8x7b --cluster h100-sxm-80gb:8x32 --global-batch 1024 --seq-len 4096",
        15.0,
    ),
    Question(
        "llama2-7b",
        "llama2-7b --cluster a100-sxm-40gb:8x1 --memory-limit 38GiB --global-batch 64 "
        "--seq-len 2048",
        3.0,
        "Galvatron-2: 247 CPU-s",
    ),
    Question(
        "gpt3-13b",
        "gpt3-13b --cluster v100-sxm-32gb:8x4 --precision fp16 --global-batch 1024 --seq-len 2048",
        5.0,
        "Aceso: a budget of 200 s; Alpa: 4,179-12,821 s",
    ),
)

DEPTHS = (12, 96)


def main(names: list[str]) -> None:
    """Print every row that is asked for."""
    print(f"{'question':14} {'wall s':>7} {'CPU s':>6} {'bar s':>6} {'GiB':>5} {'gap':>7}  plan")
    for question in QUESTIONS:
        if not names or question.name in names:
            _row(question)
    if not names or "mesh" in names:
        _mesh()
    if not names or "depth" in names:
        _depth()


def _row(question: Question) -> None:
    arguments = question.arguments.split()
    if "--precision" not in arguments:
        arguments += ["--precision", "bf16"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "millrace", "plan", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    wall = perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    gib = after.ru_maxrss / 2**20  # the largest of all commands so far
    if done.returncode:
        print(f"{question.name:14} {wall:7.1f} {cpu:6.1f} {question.bar_s:6.1f} {gib:5.2f}  ",
              done.stderr.strip().splitlines()[-1][:200])  # fmt: skip
        return
    plan = json.loads(done.stdout)
    axes = " × ".join(f"{axis['name']} {axis['size']}" for axis in plan["axes"])
    shape = f"pp {plan['pp']} of {axes or 'one device'}, {plan['microbatches']} microbatches"
    print(
        f"{question.name:14} {wall:7.1f} {cpu:6.1f} {question.bar_s:6.1f} {gib:5.2f} "
        f"{plan['gap']:7.2%}  {shape}, {plan['schedule']}, recompute {plan['recompute']}, "
        f"mfu {plan['mfu']:.1%}" + (f"  ({question.peer})" if question.peer else "")
    )
    for layer in plan.get("layers", []):
        seconds = layer.get("seconds")
        if seconds is not None:
            print(f"{'':14} {seconds:7.1f}   in {layer['name']}")


def _mesh() -> None:
    """Operator-level sharding on one mesh, whole proof, from graph to plan."""
    spec = model_spec("llama3-8b", seq_len=8192, precision="bf16")
    cluster = parse_cluster("h100-sxm-80gb:8x8")
    began = perf_counter()
    plan = search(
        SearchRequest(
            model=spec,
            training=TrainingSpec(),
            cluster=cluster,
            global_batch=64,
            pins=Pins(pp=1, schedule="1f1b"),
            max_gap=1e-4,
        )
    )
    seconds = perf_counter() - began
    assert plan.evidence is not None
    sizes = " × ".join(str(axis.size) for axis in plan.mesh.axes)
    print(
        f"llama3-8b, one stage of 64: best mesh {sizes}, {plan.microbatches} microbatches, "
        f"gap {plan.evidence.gap:.2%} over {plan.evidence.candidates} meshes and microbatches, "
        f"{seconds:.1f} s (AutoParallel, mesh 8 × 8 alone: 262 s build + 174 s solve)"
    )


def _depth() -> None:
    """What layers cost: the same search for few layers and for many."""
    seconds: list[float] = []
    for layers in DEPTHS:
        spec = model_spec("gpt3-175b", seq_len=2048, precision="bf16")
        config = {**spec.config, "layers": layers}
        request = SearchRequest(
            model=type(spec)(
                name=f"gpt3 of {layers}",
                family=spec.family,
                config=config,
                seq_len=spec.seq_len,
                precision=spec.precision,
            ),
            training=TrainingSpec(),
            cluster=parse_cluster("a100-sxm-80gb:8x8"),
            global_batch=64,
            pins=Pins(pp=4, tp=8, micro_batch=1),
            memory_limit_bytes=2**40,
        )
        began = perf_counter()
        build_training(request.model, request.training, request.global_batch)
        built = perf_counter()
        search(request)
        seconds.append(perf_counter() - built)
        print(f"{layers:3} layers: graph {built - began:5.2f} s, search {seconds[-1]:5.2f} s")
    print(f"ratio {seconds[-1] / seconds[0]:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
