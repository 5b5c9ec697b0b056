"""Plans of the small models for GPUs, and what a single device makes of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter_ns

from millrace.executor.data import open_dataset
from millrace.executor.gpu.device import DeviceDriver
from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.kernels import RunState
from millrace.executor.recording import Recording
from millrace.executor.reference import ReferenceResult, run_reference
from millrace.executor.shards import RankValues
from millrace.executor.values.initial import initial_value
from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.compile import compile_plan
from millrace.planner.plan import FUSED, Plan, read_plan
from tests.plan_requests import plan_of
from tests.small_models import small

Pinned = tuple[tuple[str, object], ...]
CARRIED = "MILLRACE_PLANS"  # names the folder of plans that were brought along
GLOBAL_BATCH, MICROBATCHES = 8, 2
TRAINING = TrainingSpec(learning_rate=2e-3, warmup_steps=3, decay_steps=30, clip_norm=0.5)


def batch_of(model: str, precision: str) -> int:
    """Samples of a step: more where rounding alone moves the losses by more than a test allows.

    Of eight images, batch norm over four, a ResNet's losses of 20 steps in NumPy move by 0.05 when
    every activation and gradient is rounded to bfloat16; in tf32 on an H100 they moved by 0.018
    (2026-11).
    """
    wide = precision in ("fp32", "fp64")
    return GLOBAL_BATCH if wide or model != "resnet" else 64


@cache
def planned(model: str, precision: str, pins: Pinned = ()) -> tuple[Plan, Graph, ActorGraph]:
    """A plan of a small model on as many GPUs as its pins say, and its actors.

    It is fused unless a pin says otherwise: as our own executor is planned for.
    """
    chosen = {"dp": 1, "tp": 1, "pp": 1, "fusion": FUSED, **dict(pins)}
    devices = int(chosen["dp"]) * int(chosen["tp"]) * int(chosen["pp"]) * int(chosen.get("cp", 1))  # type: ignore[call-overload]
    global_batch = batch_of(model, precision)
    plan = carried(model, precision, pins) or plan_of(
        small(model, precision),
        f"h100-sxm-80gb:{devices}x1",
        global_batch,
        training=TRAINING,
        **{"micro_batch": global_batch // MICROBATCHES // chosen["dp"], **chosen},
    )
    graph = build_training(plan.model, plan.training, plan.batch)
    return plan, graph, compile_plan(plan)


def carried(model: str, precision: str, pins: Pinned) -> Plan | None:
    """The plan that was brought along: a node with GPUs runs plans and makes none."""
    if CARRIED not in os.environ:
        return None
    path = Path(os.environ[CARRIED]) / file_of(model, precision, pins)
    return read_plan(path.read_bytes()) if path.exists() else None


def file_of(model: str, precision: str, pins: Pinned) -> str:
    """File name of a plan that is brought along."""
    return "-".join((model, precision, *(f"{name}_{value}" for name, value in pins))) + ".json"


def runs_of(plan: Plan, actors: ActorGraph, **changes: float) -> dict[int, RunState]:
    """State that the kernels of every rank share."""
    dataset = open_dataset(None, plan.model, 0)
    return {
        rank: RunState(
            seed=0,
            dataset=dataset,
            global_batch=plan.global_batch,
            microbatches=plan.microbatches,
            batch=plan.batch,
            **changes,  # type: ignore[arg-type]
        )
        for rank in range(actors.ranks)
    }


def loading(graph: Graph) -> Callable[[Sequence[RankValues]], None]:
    """Function that fills the variables of all ranks."""
    attributes = {op.outputs[0]: op.attributes for op in graph.ops if op.kind == "variable"}

    def load(ranks: Sequence[RankValues]) -> None:
        for values in ranks:
            for index, register in enumerate(values.program.registers):
                if register.initial and register.tensor in attributes:
                    shape, dtype = register.global_shape, register.dtype
                    kind = attributes[register.tensor]
                    values.load(index, initial_value(register.tensor, shape, dtype, kind, 0))

    return load


@cache
def reference(
    model: str, steps: int, batch: int = GLOBAL_BATCH, precision: str = "fp32"
) -> ReferenceResult:
    """The model trained on a single device with NumPy, `batch` samples a step."""
    spec = small(model, precision)
    return run_reference(
        build_training(spec, TRAINING, batch // MICROBATCHES),
        microbatches=MICROBATCHES,
        steps=steps,
        dataset=open_dataset(None, spec, 0),
        keep_parameters=(steps,),
    )


def execute_on_device(
    device: DeviceDriver,
    graph: ActorGraph,
    runs: Mapping[int, RunState],
    load: Callable[[Sequence[RankValues]], None],
    steps: int,
    *,
    eager: bool = False,
    spans: bool = False,
) -> tuple[DeviceRun, list[Recording]]:
    """Run all ranks of a graph on one device; `load` fills the variables before the first step."""
    run = DeviceRun(device, graph, runs)
    load(tuple(run.values.values()))
    recordings = run.train(steps, perf_counter_ns(), eager=eager, spans=spans)
    run.finish()
    return run, recordings
