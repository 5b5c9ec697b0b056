"""Kinds of memory, and what the search estimates of single blocks.

What a block keeps, boxes and passes on within a section is known before its neighbours are; the
whole of a plan is `formula`'s.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from models.graph import ITEMSIZE, Op, Phase, Rate, Tensor
from planner.boxing import Step
from planner.plan import OpSignature
from planner.sbp import NdSbp, local_size, parse_nd_sbp

LOCAL = ("slice", "pad")
UPDATES = ("adamw", "sgd")
BACKWARD = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes that every device of one stage holds at its peak, by kind.

    The first six are the arena's. Activations are what another section of the schedule reads,
    once per microbatch in flight, and what is sent; communication is what boxing brings; transient
    bytes are those of the area that the sections share.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    communication_bytes: int
    transient_bytes: int
    workspace_bytes: int = 0  # of kernel libraries, and buffers of communicators
    context_bytes: int = 0
    slack_bytes: int = 0  # what an allocator reserves beyond the arena

    @property
    def arena_bytes(self) -> int:
        """What the compiled registers take."""
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
            + self.communication_bytes
            + self.transient_bytes
        )

    @property
    def total_bytes(self) -> int:
        """All kinds together."""
        return self.arena_bytes + self.workspace_bytes + self.context_bytes + self.slack_bytes

    @property
    def by_kind(self) -> dict[str, int]:
        """Every kind's bytes by name, in the order above."""
        names = (name for name in self.__slots__ if name.endswith("_bytes"))
        return {name.removesuffix("_bytes"): getattr(self, name) for name in names}


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
