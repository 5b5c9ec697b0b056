"""Training steps of PyTorch: weights, optimizer and clipping as ours, settings as they are told.

Weights, moments and updates are float32 and the data lies on the device. Nothing is waited for
between steps; a step's time is that between two events of the device.
"""

import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu.starting_point import RandomSamples, sources_of
from benchmarks.gpu.torch_models.loading import Array, load, module_of, parts
from benchmarks.gpu.torch_models.settings import (
    DETERMINISTIC,
    Setting,
    changed,
    changes_of,
    first_setting,
    setting_fields,
)
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build

Figures = dict[str, object]
Batch = tuple[Tensor, Tensor]
STEPS_MIN = 10
TIMED_S = 3.0  # of one setting, if its steps are not too long
ATTENTION = ("flash", "mem_efficient", "cudnn", "math")  # backends, as torch.backends.cuda has them


class TorchTraining:
    """Model on a device, and its step under a setting."""

    def __init__(
        self,
        spec: ModelSpec,
        training: TrainingSpec,
        setting: Setting,
        values: Mapping[str, Array],
        decayed: Mapping[str, bool],
        device: str,
    ) -> None:
        self.setting, self.device, self.clip_norm = setting, device, training.clip_norm
        with torch.device(device):
            self.module = module_of(spec, setting.vocab_multiple, setting.grouped_experts)
        load(self.module, values)
        if setting.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        decay = {parameter: decayed[ours[0]] for _, _, parameter, ours in parts(self.module)}
        parameters = list(self.module.parameters())
        self.masters = parameters
        if setting.numerics == "masters":
            self.masters = [parameter.detach().float().clone() for parameter in parameters]
            flags = [decay[parameter] for parameter in parameters]
            self.module = self.module.bfloat16()
            parameters = list(self.module.parameters())
            for master in self.masters:
                master.grad = torch.zeros_like(master)
            decay = dict(zip(self.masters, flags, strict=True))
        self.parameters = parameters
        self.optimizer = self._optimizer(training, decay)
        self.forward: Any = self.module
        self.update: Any = self._update
        self._compile()

    def _optimizer(self, training: TrainingSpec, decay: Mapping[Tensor, bool]) -> Any:
        setting = self.setting
        groups = [
            {
                "params": [master for master in self.masters if decay[master] is flag],
                "weight_decay": amount,
            }
            for flag, amount in ((True, training.weight_decay), (False, 0.0))
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=training.learning_rate,
            betas=(training.beta1, training.beta2),
            eps=training.epsilon,
            fused=setting.optimizer == "fused",
            foreach=setting.optimizer != "fused",
            capturable=self.device == "cuda" and (setting.graph or setting.optimizer == "compiled"),
        )

    def _compile(self) -> None:
        setting = self.setting
        if setting.compiled:
            mode = setting.compiled
            if setting.scope == "blocks":
                for block in self.module.blocks:
                    block.compile(mode=mode)
            else:
                self.forward = torch.compile(self.module, mode=mode)
        if setting.optimizer == "compiled":
            self.update = torch.compile(self._update)

    def step(self, first: Tensor, second: Tensor) -> Tensor:
        """Run one whole step, and return its loss, not waited for."""
        if self.setting.compiled == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with self._autocast():
            loss: Tensor = self.forward(first, second)
        loss.backward()
        self.update()
        for parameter in self.parameters:
            parameter.grad = None
        return loss.detach().clone()  # a compiled graph of its own writes the next one there

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.setting.numerics != "autocast":
            return nullcontext()
        # A captured cast would be read from its cache when the graph is replayed.
        caches = not self.setting.graph
        return torch.autocast(self.device, dtype=torch.bfloat16, cache_enabled=caches)

    def _update(self) -> None:
        if self.setting.numerics == "masters":
            gradients = [master.grad for master in self.masters]
            torch._foreach_copy_(gradients, [parameter.grad for parameter in self.parameters])
        if self.clip_norm:
            nn.utils.clip_grad_norm_(self.masters, self.clip_norm, foreach=True)
        self.optimizer.step()
        if self.setting.numerics == "masters":
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)


class Captured:
    """A trainer's step as a CUDA graph."""

    def __init__(self, trainer: TorchTraining, batch: Batch) -> None:
        self._static_batch = tuple(tensor.clone() for tensor in batch)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = trainer.step(*self._static_batch)

    def step(self, first: Tensor, second: Tensor) -> Tensor:
        """Replay the graph on a batch; the loss is the next step's place too."""
        for place, given in zip(self._static_batch, (first, second), strict=True):
            place.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._loss


def trained(
    trainer: TorchTraining, batches: Sequence[Batch], *, steps: int, budget_s: float
) -> tuple[list[float], list[float], float]:
    """Train; return the losses of a step per batch, times of later steps, and what came before.

    The first steps, one per batch, compile what is compiled; then come as many as the budget
    allows, at most `steps`, all of them issued without waiting.
    """
    began = time.perf_counter()
    stream = torch.cuda.Stream() if trainer.setting.graph else None
    with torch.cuda.stream(stream) if stream is not None else nullcontext():
        losses = [trainer.step(*batch) for batch in batches]
    if stream is not None:
        stream.synchronize()  # `item` waits for the current stream alone
    loss_values = [loss.item() for loss in losses]
    stepper: TorchTraining | Captured = trainer
    if trainer.setting.graph:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # a graph has a pool of its own
        stepper = Captured(trainer, batches[0])
    made_ready_s = time.perf_counter() - began
    one_s = _timed(stepper, batches, 2, trainer.device)[-1]
    count = max(STEPS_MIN, min(steps, int(budget_s / max(one_s, 1e-6))))
    return loss_values, _timed(stepper, batches, count, trainer.device), made_ready_s


def _timed(
    stepper: TorchTraining | Captured, batches: Sequence[Batch], steps: int, device: str
) -> list[float]:
    """Seconds of every step."""
    if device != "cuda":
        times = []
        for step in range(steps):
            began = time.perf_counter()
            stepper.step(*batches[step % len(batches)])
            times.append(time.perf_counter() - began)
        return times
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for step in range(steps):
        stepper.step(*batches[step % len(batches)])
        events[step + 1].record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairwise(events)]


def batches_of(
    graph: Graph, batch: int, count: int, device: str, channels_last: bool
) -> list[Batch]:
    """First batches of the samples that ours are trained on, on the device."""
    sources = sources_of(graph)
    data = RandomSamples(batch * count, sources.values())
    names = ("tokens", "targets") if "tokens" in sources else ("images", "classes")
    batches = []
    for number in range(count):
        numbers = np.arange(number * batch, (number + 1) * batch)
        first, second = (torch.from_numpy(data.read(sources[name], numbers)) for name in names)
        first = first.to(device)
        if first.dim() == 4:
            if first.shape[-1] < first.shape[1]:  # ours have their channels last
                first = first.permute(0, 3, 1, 2)
            order = torch.channels_last if channels_last else torch.contiguous_format
            first = first.contiguous(memory_format=order)
        batches.append((first.long() if first.dim() == 2 else first, second.to(device).long()))
    return batches


def tries(
    spec: ModelSpec,
    batch: int,
    values: Mapping[str, Array],
    *,
    budget_s: float,
    steps: int,
    losses: int,
    device: str = "cuda",
    deterministic: bool = False,
) -> Iterator[Figures]:
    """Try every change on the best setting so far while there is time; yield what each showed.

    Parameters
    ----------
    spec : ModelSpec
        The model.
    batch : int
        Samples of a step.
    values : mapping
        Of our variables, before the first step.
    budget_s : float
        For all; none is begun that would take longer than what is left, by the longest so far.
    steps : int
        At most so many are timed of each.
    losses : int
        Steps whose losses are given.
    device : str
        `cuda` or `cpu`.
    deterministic : bool
        Try at last what deterministic algorithms cost the best setting.
    """
    began, longest_s, best_s = time.perf_counter(), 0.0, float("inf")
    best, changes = first_setting(spec), list(changes_of(spec))
    graph = build(spec, batch)
    if deterministic:
        changes.append(DETERMINISTIC)
    for change in changes:
        setting = changed(best, change)
        if setting is None or (device != "cuda" and not setting.eager):
            continue
        figures: Figures = {"name": change[0], "setting": setting_fields(setting)}
        if time.perf_counter() - began + longest_s > budget_s:
            yield figures | {"error": "no time was left"}
            continue
        tried_at = time.perf_counter()
        try:
            figures |= tried(spec, graph, setting, values, batch, steps, losses, device)
        except Exception as error:  # what a setting cannot do says nothing of the others
            figures["error"] = f"{type(error).__name__}: {error}"[:500]
        _forget(device)
        figures["seconds"] = round(time.perf_counter() - tried_at, 2)
        longest_s = max(longest_s, time.perf_counter() - tried_at)
        step_s = float(str(figures.get("step_s", "inf")))
        if step_s < best_s and not setting.deterministic:
            best, best_s = setting, step_s
        yield figures


def tried(
    spec: ModelSpec,
    graph: Graph,
    setting: Setting,
    values: Mapping[str, Array],
    batch: int,
    steps: int,
    losses: int,
    device: str,
    training: TrainingSpec | None = None,
) -> Figures:
    """Train under one setting; return its figures."""
    _set_globally(setting)
    kinds = [op for op in graph.ops if op.kind == "variable"]
    decayed = {op.outputs[0]: bool(op.attributes["decay"]) for op in kinds}
    trainer = TorchTraining(spec, training or TrainingSpec(), setting, values, decayed, device)
    batches = batches_of(graph, batch, losses, device, setting.channels_last)
    if setting.numerics == "masters":
        batches = [
            (images.bfloat16() if images.is_floating_point() else images, classes)
            for images, classes in batches
        ]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    loss_values, times, made_ready_s = trained(trainer, batches, steps=steps, budget_s=TIMED_S)
    figures: Figures = {
        "step_s": statistics.median(times),
        "steps": len(times),
        "made_ready_s": round(made_ready_s, 2),
        "losses": [round(loss, 5) for loss in loss_values],
    }
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        figures |= {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_used_bytes": total - free,
        }
    return figures


def _set_globally(setting: Setting) -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = not setting.deterministic
    torch.use_deterministic_algorithms(setting.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # which costs time for nothing
    wanted = {"efficient": "mem_efficient"}.get(setting.attention, setting.attention)
    for name in ATTENTION:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(wanted in ("", name))


def _forget(device: str) -> None:
    """Give back what a setting took."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
