"""The single-device reference: a training graph run op by op on whole tensors.

It uses the same kernels as a distributed run, at offset 0, and none of the planner: no sbp, no
registers, no protocol. What a plan computes must agree with it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from millrace.executor.kernels import Kernel, KernelContext, RunState, make_kernel
from millrace.executor.kernels.context import Array, Dataset, whole_shard
from millrace.executor.values.initial import initial_value
from millrace.models.graph import Graph, Op, Phase, Rate, Tensor
from millrace.models.ops import op_kind, state_of
from millrace.models.training.optimizer_updates import DIRECTIONS, gradient_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """Results that a reference run leaves behind.

    Parameters
    ----------
    losses
        Per step, the mean loss over the step's valid tokens.
    totals
        Per step, (loss sum, token count, sum of squared gradients).
    gradients
        Per variable, the gradient accumulated over the first step: an unscaled sum over tokens.
    parameters
        Per kept step (1: after the first update; 0: as initialised), every variable's value.
    smallest_margin
        By how much, at the least, a chosen expert beat one that was not; infinite without experts.
    """

    losses: tuple[float, ...]
    totals: tuple[tuple[float, float, float], ...]
    gradients: dict[str, Array]
    parameters: dict[int, dict[str, Array]]
    smallest_margin: float


@dataclass(slots=True)
class Reference:
    """A training graph with its tensors and kernels, advanced one step at a time.

    Parameters
    ----------
    graph
        A training graph; its `batch` is the number of samples of one microbatch.
    microbatches
        Microbatches of a step.
    dataset, seed
        Where samples come from, and the seed of the initial values.
    """

    graph: Graph
    microbatches: int
    dataset: Dataset | None
    seed: int
    values: dict[str, Array] = field(init=False, default_factory=dict)
    run: RunState = field(init=False)
    steps_done: int = field(init=False, default=0)
    _begin: list[tuple[Op, Kernel]] = field(init=False, default_factory=list)
    _microbatch: list[tuple[Op, Kernel]] = field(init=False, default_factory=list)
    _end: list[tuple[Op, Kernel]] = field(init=False, default_factory=list)
    _update: list[tuple[Op, Kernel]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.run = RunState(
            seed=self.seed,
            dataset=self.dataset,
            global_batch=self.graph.batch * self.microbatches,
            microbatches=self.microbatches,
            batch=self.graph.batch,
        )
        tensors = self.graph.tensors_by_name
        for op in self.graph.ops:
            if op.kind == "repeat":
                # one value serves every microbatch: the repeated tensor is the same array
                self.values[op.outputs[0]] = self.values[op.inputs[0]]
                continue
            if op.kind == "variable":
                (name,) = op.outputs
                tensor = tensors[name]
                self.values[name] = initial_value(
                    name, tensor.shape, tensor.dtype, op.attributes, self.seed
                )
                continue
            self._group_of(op, tensors).append((op, make_kernel(self._context(op, tensors))))
            for name in op.outputs:
                self.values[name] = np.zeros(tensors[name].shape, tensors[name].dtype)

    @property
    def optimizer_ops(self) -> list[Op]:
        """Ops that make the next value of a variable."""
        return [op for op in self.graph.ops if op_kind(op.kind).updates]

    @property
    def variables(self) -> list[str]:
        """Names of all variables."""
        return [op.outputs[0] for op in self.graph.ops if op.kind == "variable"]

    def step(self) -> None:
        """Run one training step: begin, every microbatch, update."""
        self.accumulate_gradients()
        self._fire(self._update, self.steps_done)
        for op in self.optimizer_ops:
            np.copyto(self.values[op.inputs[0]], self.values[op.outputs[0]])
        self.steps_done += 1

    def accumulate_gradients(self) -> None:
        """Run a step but for its optimizers, leaving the variables as they are."""
        self._fire(self._begin, self.steps_done)
        for microbatch in range(self.microbatches):
            self._fire(self._microbatch, self.steps_done * self.microbatches + microbatch)
        self._fire(self._end, self.steps_done)

    def parameters(self) -> dict[str, Array]:
        """Copies of all variables, by name."""
        return {name: self.values[name].copy() for name in self.variables}

    def gradients(self) -> dict[str, Array]:
        """Copies of the gradients of a step, by variable."""
        names = gradient_names(self.graph)
        return {variable: self.values[name].copy() for variable, name in names.items()}

    def _group_of(self, op: Op, tensors: dict[str, Tensor]) -> list[tuple[Op, Kernel]]:
        """Ops that fire together with an op; its kind, rate and phase decide."""
        if op_kind(op.kind).updates or op.kind in DIRECTIONS:
            return self._update
        per_microbatch = op.kind == "accumulate" or any(
            tensors[name].rate is Rate.MICROBATCH for name in op.outputs
        )
        if per_microbatch:
            return self._microbatch
        return self._begin if op.phase is Phase.BEGIN else self._end

    def _context(self, op: Op, tensors: dict[str, Tensor]) -> KernelContext:
        shards = {
            name: whole_shard(tensors[name].shape, tensors[name].dtype)
            for name in (*op.inputs, *op.outputs)
        }
        first = tensors[op.inputs[0]] if op.inputs else tensors[op.outputs[0]]
        return KernelContext(
            kind=op.kind,
            name=op.name,
            labels=op.labels,
            attributes=op.attributes,
            inputs=tuple(shards[name] for name in op.inputs),
            outputs=tuple(shards[name] for name in op.outputs),
            run=self.run,
            output_hold=self.microbatches if op.kind == "accumulate" else 1,
            state=[np.zeros(first.shape, first.dtype) for _ in state_of(op.kind, op.attributes)],
        )

    def _fire(self, group: Sequence[tuple[Op, Kernel]], firing: int) -> None:
        for op, kernel in group:
            kernel(
                firing,
                [self.values[name] for name in op.inputs],
                [self.values[name] for name in op.outputs],
            )


def run_reference(
    graph: Graph,
    *,
    microbatches: int,
    steps: int,
    dataset: Dataset | None,
    seed: int = 0,
    keep_parameters: Collection[int] = (),
) -> ReferenceResult:
    """Train on one device and return losses, first gradients and parameters.

    Parameters
    ----------
    graph
        A training graph whose `batch` is that of one microbatch.
    microbatches, steps
        Microbatches of a step; steps to run, at least one.
    dataset, seed
        As in a distributed run: the same two give the same samples and initial values.
    keep_parameters
        Steps after which every variable's value is kept (0: as initialised).
    """
    reference = Reference(graph, microbatches, dataset, seed)
    parameters_by_step = {0: reference.parameters()} if 0 in keep_parameters else {}
    gradients: dict[str, Array] = {}
    for step_count in range(1, steps + 1):
        reference.step()
        if step_count == 1:
            gradients = reference.gradients()
        if step_count in keep_parameters:
            parameters_by_step[step_count] = reference.parameters()
    totals = tuple(reference.run.totals)
    return ReferenceResult(
        losses=tuple(loss / max(count, 1.0) for loss, count, _ in totals),
        totals=totals,
        gradients=gradients,
        parameters=parameters_by_step,
        smallest_margin=reference.run.smallest_margin,
    )
