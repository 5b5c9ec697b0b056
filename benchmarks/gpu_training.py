"""The items of `benchmarks/gpu.py`: whole training steps on one GPU, captured and eager.

Every item plans a model for the GPU that it finds, trains it, and sets what was measured beside
what the plan said.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from executor.data import open_dataset
from executor.gpu.running import DeviceRun
from executor.kernels import RunState
from executor.values.initial import initial_value
from models.graph import Graph
from models.spec import ModelSpec, TrainingSpec
from models.zoo.catalogue import model_spec
from planner.clusters import parse_cluster
from planner.compile import compile_plan
from planner.errors import InfeasibleError
from planner.plan import Plan, plan_graph
from planner.search import Pins, SearchRequest, search

Figures = dict[str, object]
STEPS = 14
WARM_UP_STEPS = 4
BACK_TO_BACK = 10  # replays between two events
# What the catalogue has, by what CUDA calls the device; the first that fits is taken.
CATALOGUE = (("H200", "h200-sxm"), ("H100", "h100-sxm-80gb"), ("A100", "a100-sxm-80gb"))
SMALL_LLAMA = ModelSpec(
    name="llama-160m",
    family="decoder",
    config={
        "layers": 12,
        "hidden": 768,
        "vocab": 32000,
        "positions": 1024,
        "heads": 12,
        "kv_heads": 4,
        "head_dim": 64,
        "ffn_hidden": 2048,
        "rotary_dims": 64,
    },
    seq_len=1024,
    precision="bf16",
)


def gpt2_small() -> Figures:
    """GPT-2 small at 1,024 tokens in bf16, one microbatch as large as fits."""
    return trained(_in_bf16("gpt2-small"), (32, 16, 8, 4))


def small_llama() -> Figures:
    """A Llama of 160 million parameters at 1,024 tokens in bf16."""
    return trained(SMALL_LLAMA, (16, 8, 4))


def resnet_50() -> Figures:
    """ResNet-50 on 64 images in bf16."""
    return trained(_in_bf16("resnet-50"), (64,))


def torch_gpt2_small() -> Figures:
    """PyTorch on GPT-2 small, as large a batch: torch.compile, bf16, fused AdamW."""
    from benchmarks.torch_gpt2 import tokens_per_s

    return tokens_per_s(batches=(32, 16, 8, 4), steps=STEPS, warm_up=WARM_UP_STEPS)


ITEMS: dict[str, Callable[[], Figures]] = {
    "train_gpt2_small": gpt2_small,
    "torch_gpt2_small": torch_gpt2_small,
    "train_llama_160m": small_llama,
    "train_resnet_50": resnet_50,
}
PLANNED: dict[str, tuple[Callable[[], ModelSpec], int]] = {
    "train_gpt2_small": (lambda: _in_bf16("gpt2-small"), 16),
    "train_llama_160m": (lambda: SMALL_LLAMA, 16),
    "train_resnet_50": (lambda: _in_bf16("resnet-50"), 64),
}


def predicted(name: str, device: str = "h100-sxm-80gb") -> Figures:
    """What a plan of an item says, for a device that need not be here."""
    make, batch = PLANNED[name]
    return _predicted(planned(make(), batch, device))


def trained(model: ModelSpec, batches: Sequence[int]) -> Figures:
    """Train with the largest batch that fits, captured, then eagerly; return all figures."""
    began = time.perf_counter()
    for batch in batches:
        try:
            plan, captured = _captured(model, batch)
            break
        except InfeasibleError as no:
            refused = no
    else:
        raise refused
    eager = _eager(plan)
    tokens = plan.global_batch * plan.model.seq_len
    found = _predicted(plan) | captured | eager
    for how in ("captured", "eager"):
        found[f"{how}_tokens_per_s"] = round(tokens / (float(str(found[f"{how}_step_ms"])) / 1e3))
    measured_ms = float(str(found["captured_step_ms"]))
    found["step_time_error"] = round(float(str(found["predicted_step_ms"])) / measured_ms - 1, 4)
    found["mfu"] = _mfu(plan, measured_ms / 1e3)
    found["all_s"] = round(time.perf_counter() - began, 1)
    return found


def planned(model: ModelSpec, batch: int, device: str) -> Plan:
    """A plan of one microbatch a step on one device."""
    return search(
        SearchRequest(
            model=model,
            training=TrainingSpec(),
            cluster=parse_cluster(f"{device}:1x1"),
            global_batch=batch,
            pins=Pins(dp=1, tp=1, pp=1, micro_batch=batch),
        )
    )


def _captured(model: ModelSpec, batch: int) -> tuple[Plan, Figures]:
    device = _device()
    try:
        plan = planned(model, batch, catalogue_name(device.name))
        run, state, graph = _ready(device, plan)
        recordings = run.train(STEPS, time.perf_counter_ns())
        figures: Figures = {
            "captured_step_ms": _step_ms(recordings[0].step_end_ns),
            **_replayed(device, run),
            **_memory(run, plan),
            "losses": [round(loss / count, 4) for loss, count, _ in state.totals],
            "parameters": sum(
                int(np.prod(graph.tensors_by_name[op.outputs[0]].shape))
                for op in graph.ops
                if op.kind == "variable"
            ),
        }
    finally:
        device.close()
    losses = [loss / count for loss, count, _ in state.totals]
    assert np.isfinite(losses).all(), f"losses are {losses}"
    return plan, figures


def _eager(plan: Plan) -> Figures:
    device = _device()
    try:
        run, _, _ = _ready(device, plan)
        recordings = run.train(STEPS, time.perf_counter_ns(), eager=True)
        host = []
        for step in range(STEPS, STEPS + 3):
            began = time.perf_counter_ns()
            run.driver.fire(step)
            host.append((time.perf_counter_ns() - began) / 1e6)
    finally:
        device.close()
    return {
        "eager_step_ms": _step_ms(recordings[0].step_end_ns),
        "eager_host_ms": round(statistics.median(host), 4),
    }


def _device() -> Any:
    from executor.gpu.cupy_device import CupyDevice
    from executor.gpu.products.cublaslt import ProductLibrary

    return CupyDevice(0, ProductLibrary)


def _ready(device: Any, plan: Plan) -> tuple[DeviceRun, RunState, Graph]:
    """A run with its variables as they begin."""
    graph = plan_graph(plan)
    state = RunState(
        seed=0,
        dataset=open_dataset(None, plan.model, 0),
        global_batch=plan.global_batch,
        microbatches=plan.microbatches,
        batch=plan.batch,
    )
    run = DeviceRun(device, compile_plan(plan, graph), {0: state})
    attributes = {op.outputs[0]: op.attributes for op in graph.ops if op.kind == "variable"}
    values = run.values[0]
    for index, register in enumerate(values.program.registers):
        if register.initial and register.tensor in attributes:
            shape, dtype = register.global_shape, register.dtype
            kind = attributes[register.tensor]
            values.load(index, initial_value(register.tensor, shape, dtype, kind, 0))
    return run, state, graph


def _replayed(device: Any, run: DeviceRun) -> Figures:
    """Device time of a step alone, and what the host takes to launch it."""
    start, end = device.event(timed=True), device.event(timed=True)
    host = []
    device.record(start, run.driver.origin)
    for step in range(STEPS, STEPS + BACK_TO_BACK):
        began = time.perf_counter_ns()
        run.driver.replay(step)
        host.append((time.perf_counter_ns() - began) / 1e6)
    device.record(end, run.driver.origin)
    device.synchronize(end)
    return {
        "device_step_ms": round(device.elapsed_ns(start, end) / 1e6 / BACK_TO_BACK, 4),
        "captured_host_ms": round(statistics.median(host), 4),
    }


def _memory(run: DeviceRun, plan: Plan) -> Figures:
    use = run.memory()[0]
    return {
        "memory_bytes": use.regions,
        "context_bytes": use.context_bytes,
        "device_used_bytes": use.device_used_bytes,
        "grown_bytes": use.grown_bytes,
        "planned_arena_bytes": run.ranks[0].program.memory_bytes,
    }


def _predicted(plan: Plan) -> Figures:
    from millrace import api

    found = api.simulate(plan)
    return {
        "model": plan.model.name,
        "precision": plan.model.precision,
        "micro_batch": plan.batch,
        "seq_len": plan.model.seq_len,
        "catalogue": plan.cluster.device.name,
        "predicted_step_ms": round(found.step_time_ns / 1e6, 4),
        "predicted_memory_bytes": found.memory_bytes_max,
    }


def _mfu(plan: Plan, step_time_s: float) -> float | None:
    from millrace.figures import speed

    mfu = speed(plan, step_time_s).mfu
    return None if mfu is None else round(mfu, 4)


def _step_ms(ends_ns: Any) -> float:
    """Median time from the end of a step to that of the next, after the first few."""
    times = np.diff(ends_ns)[WARM_UP_STEPS - 1 :]
    return round(float(np.median(times)) / 1e6, 4)


def catalogue_name(device: str) -> str:
    """The catalogue's name of a device; an H100's where it has none.

    Examples
    --------
    >>> catalogue_name("NVIDIA H200")
    'h200-sxm'
    """
    return next((name for part, name in CATALOGUE if part in device), "h100-sxm-80gb")


def _in_bf16(name: str) -> ModelSpec:
    return msgspec.structs.replace(model_spec(name), precision="bf16")
