"""Times of our own training steps on one GPU, and what of them is whose.

A model is planned for the GPU at hand, from its profile where there is one, and what the plan
predicts is noted before anything runs. Then it is trained from the same values several times:
captured, a step being one launch; eagerly, actor by actor; and both ways in deterministic mode, in
which nothing is chosen by timing and libraries add up in one order. `bit_equal` says whether these
two agree in every bit; `deterministic_price` how much longer a captured step of that mode is.
"""

import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.spans import spans_by_kind
from benchmarks.gpu.starting_point import SEED, RandomSamples, sources_of, starting_values
from benchmarks.gpu.trained_models import catalogue_name, launches_of, planned
from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.kernels import RunState
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec
from millrace.planner.cluster import Cluster
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan

Figures = dict[str, Any]
Result = tuple[list[float], int]  # losses, and a checksum of the variables
TIMED_S = 4.0
TWICE_MAX = 500_000_000  # parameters of a model that is trained twice in deterministic mode
DIGESTED_BYTES = 3 * 2**30  # variables of which no more are read back


def opened(deterministic: bool = False) -> tuple[Any, Any]:
    """First GPU, and the tuner that chooses its products by timing: None if deterministic."""
    from millrace.executor.gpu.cudnn.cudnn_loading import cudnn_library
    from millrace.executor.gpu.cupy_device import CupyDevice
    from millrace.executor.gpu.gemm.cublaslt import ProductLibrary
    from millrace.executor.gpu.gemm.tuning import Tuner
    from millrace.executor.measure import cache_folder

    networks = partial(cudnn_library, deterministic=deterministic)
    tuner = None if deterministic else Tuner(cache_folder())
    return CupyDevice(0, ProductLibrary, networks, tuner=tuner), tuner


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Amount of training, and its device.

    Parameters
    ----------
    losses
        Steps whose losses are compared, each on samples of its own.
    warm_up, eager_steps
        Steps before any is timed, and those that are fired actor by actor.
    steps, steps_min
        Captured steps that are timed at most, where they fit in `TIMED_S`, and at least.
    opened
        `opened(deterministic)`: a device, and its tuner or None.
    """

    losses: int = 20
    warm_up: int = 3
    eager_steps: int = 10
    steps: int = 40
    steps_min: int = 10
    opened: Callable[[bool], tuple[Any, Any]] = opened


FULL = Effort()


def trained(
    spec: ModelSpec,
    batches: Sequence[int],
    profile: Path | None = None,
    hand_over: Callable[[Figures], None] = lambda figures: None,
    effort: Effort = FULL,
) -> Figures:
    """Train with the first batch that fits, captured and eagerly; return all figures.

    Times are medians. `measured_s` is that from the end of a captured step to the end of the next,
    the samples lying on the device, as PyTorch's do; `fed_s` the same with the host reading samples
    and copying them beside the steps. `host_share` is what the host takes to issue a captured step
    over the step; `idle_share` what the device does nothing of an eager step, between the first
    actor's begin and the last one's end, by events around every actor.

    Raises
    ------
    InfeasibleError
        Not even the last batch fits.
    """
    began = time.perf_counter()
    for batch in batches:
        try:
            figures = _trained(spec, batch, profile, hand_over, effort)
            return figures | {"all_s": round(time.perf_counter() - began, 1)}
        except InfeasibleError as no:
            refused = no
    raise refused


def predicted(plan: Plan) -> Figures:
    """Figures that a plan predicts before it is run."""
    import millrace

    simulated = millrace.simulate(plan)
    return {
        "model": plan.model.name,
        "precision": plan.model.precision,
        "batch": plan.global_batch,
        "seq_len": plan.model.seq_len,
        "fusion": plan.fusion,
        "predicted_for": plan.cluster.device.name,
        "predicted_s": simulated.step_time_s,
        "predicted_memory_bytes": simulated.memory_bytes_max,
    }


def _trained(
    spec: ModelSpec,
    batch: int,
    profile: Path | None,
    hand_over: Callable[[Figures], None],
    effort: Effort,
) -> Figures:
    device, tuner = effort.opened(False)
    try:
        plan = planned(spec, batch, _cluster(device, profile))
        figures = predicted(plan)
        run, state = ready(device, plan, effort.losses, tuner)
        started = time.perf_counter()
        ends = run.train(effort.losses, time.perf_counter_ns())[0].step_end_ns
        figures["first_steps_s"] = round(time.perf_counter() - started, 2)
        figures["fed_s"] = float(np.median(np.diff(ends)[2:])) / 1e9
        captured = _result(run, state, plan)
        figures |= _replayed(device, run, effort) | _memory(run) | {"picked": device.picked()}
        hand_over(figures | {"losses": captured[0]})
    finally:
        device.close()
    assert np.isfinite(captured[0]).all(), f"losses are {captured[0]}"
    figures |= _eager(plan, effort)
    figures |= {
        "losses": [round(loss, 5) for loss in captured[0]],
        "prediction_error": figures["predicted_s"] / figures["measured_s"] - 1,
        "host_share": figures["host_s"] / figures["measured_s"],
        "mfu": _mfu(plan, figures["measured_s"]),
    }
    hand_over(figures)
    if plan.graph.parameter_count <= TWICE_MAX:
        figures |= _deterministic(plan, figures["measured_s"], effort)
    return figures


def _eager(plan: Plan, effort: Effort) -> Figures:
    """Train anew from the start, actor by actor, and return times."""
    device, tuner = effort.opened(False)
    try:
        run, _ = ready(device, plan, effort.losses, tuner)
        run.train(effort.losses, time.perf_counter_ns(), eager=True)
        times = _timed(device, run, run.driver.fire, effort.eager_steps)
        figures = spans_by_kind(device, run, plan)
        host_s = _host_s(device, run, run.driver.fire, effort.steps_min)
    finally:
        device.close()
    return figures | {"eager_s": statistics.median(times), "eager_host_s": host_s}


def _deterministic(plan: Plan, measured_s: float, effort: Effort) -> Figures:
    """Figures of deterministic mode: whether captured and eager bits agree, and its price."""
    results, figures = [], {}
    for eager in (False, True):
        device, tuner = effort.opened(True)
        try:
            run, state = ready(device, plan, effort.losses, tuner)
            run.train(effort.losses, time.perf_counter_ns(), eager=eager)
            results.append(_result(run, state, plan))
            if not eager:
                figures = _replayed(device, run, effort)
        finally:
            device.close()
    return {
        "bit_equal": results[0] == results[1],
        "deterministic_s": figures["measured_s"],
        "deterministic_price": figures["measured_s"] / measured_s - 1,
    }


def _replayed(device: Any, run: DeviceRun, effort: Effort) -> Figures:
    """Times of captured steps, on the samples that were staged last."""
    one_s = max(statistics.median(_timed(device, run, run.driver.replay, effort.warm_up)), 1e-9)
    steps = max(effort.steps_min, min(effort.steps, int(TIMED_S / one_s)))
    return {
        "measured_s": statistics.median(_timed(device, run, run.driver.replay, steps)),
        "measured_steps": steps,
        "host_s": _host_s(device, run, run.driver.replay, effort.steps_min),
    }


def _timed(device: Any, run: DeviceRun, issue: Any, steps: int) -> list[float]:
    """Seconds of every step on the device; nothing is waited for between steps."""
    events = [device.event(timed=True) for _ in range(steps + 1)]
    device.record(events[0], run.driver.origin)
    for step in range(steps):
        issue(step)
        device.record(events[step + 1], run.driver.origin)
    device.synchronize(events[-1])
    device.check()
    return [device.elapsed_ns(start, end) / 1e9 for start, end in pairwise(events)]


def _host_s(device: Any, run: DeviceRun, issue: Any, steps: int) -> float:
    """Seconds in which the host issues a step to a device that has nothing to do.

    To one that is at work a host soon waits: what may be issued ahead of it is limited.
    """
    done, times_s = device.event(), []
    for step in range(steps):
        began = time.perf_counter()
        issue(step)
        times_s.append(time.perf_counter() - began)
        device.record(done, run.driver.origin)
        device.synchronize(done)
    return statistics.median(times_s)


def _result(run: DeviceRun, state: RunState, plan: Plan) -> Result:
    losses = [float(loss / count) for loss, count, _ in state.totals]
    return losses, _digest(run, plan)


def _digest(run: DeviceRun, plan: Plan) -> int:
    """Checksum of the variables (of very many the first), as they lie on the device."""
    values, left, checksum = run.values[0], DIGESTED_BYTES, 0
    names = {op.outputs[0] for op in plan.graph.ops if op.kind == "variable"}
    for index, register in enumerate(values.program.registers):
        if register.initial and register.tensor in names and left > 0:
            variable = values.value(index, 0)
            checksum, left = zlib.crc32(variable.tobytes(), checksum), left - variable.nbytes
    return checksum


def _cluster(device: Any, profile: Path | None) -> str | Cluster:
    """GPU at hand by its profile, else the catalogue's name of its kind."""
    if profile is None:
        return catalogue_name(device.name)
    import millrace

    return millrace.cluster("local-gpu:1", profile=profile)


def ready(device: Any, plan: Plan, losses: int, tuner: Any = None) -> tuple[DeviceRun, RunState]:
    """Run whose variables are as they begin, and whose products are chosen for good; its state."""
    graph = plan.graph
    state = RunState(
        seed=SEED,
        dataset=RandomSamples(plan.global_batch * losses, sources_of(graph).values()),
        global_batch=plan.global_batch,
        microbatches=plan.microbatches,
        batch=plan.batch,
    )
    run = DeviceRun(device, compile_plan(plan), {0: state})
    if tuner is not None:
        from millrace.executor.gpu.gemm.tuning_cache import agreed

        tuner.settle(agreed([tuner.used], 0))
        device.plan_again()
        tuner.save()
    _fill(run, graph)
    return run, state


def _fill(run: DeviceRun, graph: Graph) -> None:
    values = run.values[0]
    places = {
        register.tensor: index
        for index, register in enumerate(values.program.registers)
        if register.initial
    }
    for name, value in starting_values(graph):
        values.load(places[name], value)


def _memory(run: DeviceRun) -> Figures:
    use = run.memory()[0]
    return {
        "memory_bytes": use.regions,
        "planned_arena_bytes": run.ranks[0].program.memory_bytes,
        "context_bytes": use.context_bytes,
        "device_used_bytes": use.device_used_bytes,
        "grown_bytes": use.grown_bytes,
    }


def _mfu(plan: Plan, step_time_s: float) -> float | None:
    from millrace.figures import speed

    return speed(plan, step_time_s).mfu


def compiled_ahead(spec: ModelSpec, batch: int, profile: Path | None = None) -> Figures:
    """Compile what a model launches, so that its run finds it in the compiler's cache."""
    began = time.perf_counter()
    device, _ = opened()
    try:
        plan = planned(spec, batch, _cluster(device, profile))
        functions: dict[str, set[str]] = {}
        for launch in launches_of(plan):
            functions.setdefault(launch.source, set()).add(launch.function)
        device.load(functions)
    finally:
        device.close()
    return {
        "functions": sum(map(len, functions.values())),
        "compiled_s": round(time.perf_counter() - began, 1),
    }
