"""Memory: an estimate of what one device holds, by kind, before anything is compiled.

The compiled registers are the truth; this is what the search goes by. Five kinds: parameters;
gradients added up over a step; optimizer state; activations (what the backward pass reads of the
forward pass, once per microbatch in flight); communication (buffers of boxing). Transients share
one area that the largest section of a microbatch fills.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from models.graph import GLOBAL_BLOCK, ITEMSIZE, Graph, Op, Phase, Rate, Tensor
from models.ops import state_of
from planner.boxing import Step, boxing_path
from planner.plan import OpSignature, Plan
from planner.sbp import NdSbp, local_size, parse_nd_sbp
from planner.schedules import schedule_order
from planner.signatures import variable_values

LOCAL = ("slice", "pad")
UPDATES = ("adamw", "sgd")
BACKWARD = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes that every device of one stage holds at its peak, by kind."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    communication_bytes: int
    transient_bytes: int

    @property
    def total_bytes(self) -> int:
        """All kinds together."""
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
            + self.communication_bytes
            + self.transient_bytes
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """SBPs of an op's operands."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]


def read_layout(signature: OpSignature) -> Layout:
    """Parse the signature that a Plan holds."""
    return Layout(
        tuple(map(parse_nd_sbp, signature.inputs)), tuple(map(parse_nd_sbp, signature.outputs))
    )


def boxing_places(
    path: Sequence[Step], *, keeps_source: bool, keeps_target: bool
) -> tuple[NdSbp, ...]:
    """Return the SBPs of the buffers that a boxing adds to what its ends have anyway.

    Parameters
    ----------
    path : sequence of Step
    keeps_source : bool
        The source is counted where it is made (what is made once a step).
    keeps_target : bool
        The target is counted where it is kept (for the backward pass).

    Notes
    -----
    Local steps within a microbatch reuse the memory of their section; collectives run beside it,
    so what they read and write has a place of its own while the step lasts.
    """
    moves = [step.kind not in LOCAL for step in path]
    found: list[NdSbp] = []
    for index, step in enumerate(path):
        last = index == len(path) - 1
        follows = not last and moves[index + 1]
        if (moves[index] or follows or keeps_source) and not (last and keeps_target):
            found.append(step.after)
    if path and moves[0] and not keeps_source:
        found.append(path[0].before)
    return tuple(found)


def transient_bytes(
    ops: Iterable[Op],
    layouts: Mapping[str, Layout],
    tensors: Mapping[str, Tensor],
    axis_sizes: tuple[int, ...],
) -> int:
    """Return the most bytes of a microbatch that live at once within one section.

    Forward is one section, backward another. A tensor counts from the op that makes it to its last
    reader in the section; what another section reads too is counted as an activation instead.
    """
    kept = list(ops)
    section = {op.name: op.phase in BACKWARD for op in kept}
    makers = {name: op for op in kept for name in op.outputs}
    last: dict[str, int] = {}
    crossing: set[str] = set()
    for position, op in enumerate(kept):
        for name in op.inputs:
            last[name] = position
            if name in makers and section[makers[name].name] != section[op.name]:
                crossing.add(name)
    live = most = 0
    leaves: dict[int, int] = {}
    for position, op in enumerate(kept):
        for name, sbp in zip(op.outputs, layouts[op.name].outputs, strict=True):
            tensor = tensors[name]
            if tensor.rate is Rate.STEP or name in crossing or op.kind == "repeat":
                continue
            size = local_size(tensor.shape, sbp, axis_sizes) * ITEMSIZE[tensor.dtype]
            live += size
            end = last.get(name, position)
            leaves[end] = leaves.get(end, 0) + size
        most = max(most, live)
        live -= leaves.pop(position, 0)
    return most


def plan_memory(plan: Plan, graph: Graph) -> tuple[StageMemory, ...]:
    """Estimate the memory of every stage of a plan.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        Its training graph, for microbatches of `plan.batch` samples.

    Returns
    -------
    tuple of StageMemory
        One per stage.
    """
    stage_of: dict[str, int] = {}
    inflight: dict[str, int] = {}
    layouts: dict[str, Layout] = {}
    variant_of: dict[str, int] = {}
    for chunk, count in zip(plan.chunks, _inflight(plan), strict=True):
        for choice in chunk.blocks:
            stage_of[choice.block] = chunk.stage
            inflight[choice.block] = count
            variant_of[choice.block] = choice.variant
    placed = [op for op in graph.ops if op.block != GLOBAL_BLOCK]
    for op in placed:
        signatures = plan.variants[variant_of[op.block]].signatures
        layouts[op.name] = read_layout(signatures[op.name.removeprefix(op.block + ".")])
    return tuple(
        _Stage(
            graph,
            [op for op in placed if stage_of[op.block] == stage],
            layouts,
            inflight,
            plan.mesh.sizes,
        ).memory()
        for stage in range(plan.stages)
    )


def _inflight(plan: Plan) -> list[int]:
    """Most microbatches whose activations each chunk keeps, in the order of the chunks."""
    counts: list[int] = []
    chunks = [sum(c.stage == s for c in plan.chunks) for s in range(plan.stages)]
    for number, chunk in enumerate(plan.chunks):
        order = schedule_order(
            plan.schedule,
            stage=chunk.stage,
            stages=plan.stages,
            chunks=chunks[chunk.stage],
            microbatches=plan.microbatches,
        )
        mine = sum(c.stage == chunk.stage for c in plan.chunks[:number])
        live = most = 0
        for slot in order:
            if slot.chunk == mine:
                live += {"F": 1, "W": -1, "BW": -1}.get(slot.part, 0)
                most = max(most, live)
        counts.append(most)
    return counts


class _Stage:
    """One stage while its bytes are added up."""

    def __init__(
        self,
        graph: Graph,
        ops: list[Op],
        layouts: Mapping[str, Layout],
        inflight: Mapping[str, int],
        axis_sizes: tuple[int, ...],
    ) -> None:
        self.ops = ops
        self.layouts = layouts
        self.inflight = inflight
        self.sizes = axis_sizes
        self.tensors = graph.tensors_by_name
        self.values = variable_values(graph)
        self.makers = {
            name: op for op in graph.ops if op.block != GLOBAL_BLOCK for name in op.outputs
        }

    def memory(self) -> StageMemory:
        parameter = gradient = optimizer = 0
        for op in self.ops:
            out = self._bytes(op.outputs[0], self.layouts[op.name].outputs[0])
            if op.kind == "variable":
                parameter += out
            elif op.kind in UPDATES:
                optimizer += out * len(state_of(op.kind, op.attributes))
            elif self.tensors[op.outputs[0]].rate is Rate.STEP and op.kind != "squared_sum":
                gradient += out
        kept, activation = self._kept()
        return StageMemory(
            parameter_bytes=parameter,
            gradient_bytes=gradient,
            optimizer_bytes=optimizer,
            activation_bytes=activation,
            communication_bytes=self._boxing(kept),
            transient_bytes=transient_bytes(self.ops, self.layouts, self.tensors, self.sizes),
        )

    def _bytes(self, name: str, sbp: NdSbp) -> int:
        tensor = self.tensors[name]
        return local_size(tensor.shape, sbp, self.sizes) * ITEMSIZE[tensor.dtype]

    def _readings(self) -> Iterable[tuple[Op, str, NdSbp]]:
        for op in self.ops:
            tied = op.kind in UPDATES
            for index, (name, sbp) in enumerate(
                zip(op.inputs, self.layouts[op.name].inputs, strict=True)
            ):
                if name in self.makers and not (tied and index == 0):
                    yield op, name, sbp

    def _kept(self) -> tuple[set[tuple[str, NdSbp]], int]:
        """What backward ops read of the forward pass, and its bytes for all in flight."""
        found: dict[tuple[str, NdSbp], int] = {}
        for op, name, sbp in self._readings():
            made = self.makers[name].phase
            if made is Phase.FORWARD and op.phase in BACKWARD and name not in self.values:
                found[name, sbp] = self._bytes(name, sbp) * self.inflight[op.block]
        return set(found), sum(found.values())

    def _boxing(self, kept: set[tuple[str, NdSbp]]) -> int:
        total = 0
        seen: set[tuple[str, NdSbp, bool]] = set()
        for op, name, sbp in self._readings():
            maker = self.makers[name]
            again = maker.kind == "repeat" and op.phase in BACKWARD
            if (name, sbp, again) in seen:
                continue
            seen.add((name, sbp, again))
            index = maker.outputs.index(name)
            source = self.layouts[maker.name].outputs[index]
            path = boxing_path(source, sbp, self.sizes, self.tensors[name].shape)
            places = boxing_places(
                path,
                keeps_source=self.tensors[name].rate is Rate.STEP,
                keeps_target=(name, sbp) in kept,
            )
            total += sum(self._bytes(name, place) for place in places)
        return total
