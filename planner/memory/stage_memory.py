"""Stage memory by kind, and the parts of it that the search estimates of single blocks.

What a block keeps, boxes and passes on within a section is known before its neighbours are; the
whole of a plan is `formula`'s.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from millrace.models.graph import ITEMSIZE, Op, Rate, Tensor
from millrace.planner.boxing import boxing_path
from millrace.planner.sbp import NdSbp, local_size


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes that every device of one stage holds at its peak, by kind.

    The first seven are the arena's. Resident is what a framework keeps besides from step to step
    (workspaces of kernel libraries, buffers). Activations are what another section of the schedule
    reads, once per microbatch in flight, and what is sent; communication is what boxing brings;
    temporary is the area that the sections share.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    communication_bytes: int
    temporary_bytes: int
    resident_bytes: int = 0
    workspace_bytes: int = 0  # of kernel libraries, and buffers of communicators
    context_bytes: int = 0
    slack_bytes: int = 0  # what an allocator reserves beyond the arena
    host_bytes: int = 0  # in the memory of the node, in no sum of the device's

    @property
    def arena_bytes(self) -> int:
        """Bytes of the compiled registers."""
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
            + self.communication_bytes
            + self.temporary_bytes
            + self.resident_bytes
        )

    @property
    def state_bytes(self) -> int:
        """Bytes that stay between steps."""
        return (
            self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.resident_bytes
        )

    @property
    def total_bytes(self) -> int:
        """Bytes of all kinds together."""
        return self.arena_bytes + self.workspace_bytes + self.context_bytes + self.slack_bytes

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes of the kinds there are, by their names in compiled programs."""
        return {kind: size for kind in KINDS if (size := getattr(self, f"{kind}_bytes"))}


KINDS = tuple(
    field.name.removesuffix("_bytes") for field in fields(StageMemory) if field.name != "host_bytes"
)


@dataclass(frozen=True, slots=True)
class OperandSbps:
    """SBPs of an op's operands."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]


class LiveBytes(NamedTuple):
    """Bytes that live from one op to another; `ahead`: of a block and section they may precede."""

    first: int
    last: int
    size: int
    ahead: tuple[str, bool] | None


class SectionPeaks:
    """Ops of one microbatch, and the most bytes that live at once within one section.

    Forward is one section, backward another. A tensor counts from the op that makes it to its last
    reader in the section, what boxing makes of it likewise; what another section reads too is
    counted as an activation instead. Boxing of what is there before the section (weights,
    activations) may begin a block early, so a block holds its own results and the next one's.

    Parameters
    ----------
    ops : iterable of Op
        In their order.
    tensors : mapping
        By name, of one microbatch.
    axis_sizes : tuple of int
        Of the mesh.
    """

    def __init__(
        self, ops: Iterable[Op], tensors: Mapping[str, Tensor], axis_sizes: tuple[int, ...]
    ) -> None:
        self.ops = list(ops)
        self.tensors = tensors
        self.sizes = axis_sizes
        self.later = [op.phase.is_backward for op in self.ops]
        self.first: dict[tuple[str, bool], int] = {}  # of a block in a section
        for index, op in enumerate(self.ops):
            self.first.setdefault((op.block, self.later[index]), index)
        makers = {
            name: (index, number)
            for index, op in enumerate(self.ops)
            for number, name in enumerate(op.outputs)
            if tensors[name].rate is Rate.MICROBATCH
        }
        readers: dict[str, list[tuple[int, int]]] = {name: [] for name in makers}
        for index, op in enumerate(self.ops):
            for number, name in enumerate(op.inputs):
                if name in makers:
                    readers[name].append((index, number))
        self._ends = [(name, *makers[name], readers[name]) for name in makers]
        self._intervals_by_reading: dict[
            tuple[str, NdSbp, tuple[NdSbp, ...]], tuple[LiveBytes, ...]
        ] = {}

    def most(self, layouts: Mapping[str, OperandSbps]) -> int:
        """Bytes of the largest section, where every op's operands lie as `layouts` says."""
        laid = [layouts[op.name] for op in self.ops]
        live = [0] * (len(self.ops) + 1)  # changes from op to op
        ahead: dict[tuple[str, bool], int] = {}  # bytes boxed a block early
        for name, maker, number, readers in self._ends:
            source = laid[maker].outputs[number]
            read = tuple(laid[index].inputs[place] for index, place in readers)
            key = name, source, read
            if key not in self._intervals_by_reading:
                ends = [(index, sbp) for (index, _), sbp in zip(readers, read, strict=True)]
                self._intervals_by_reading[key] = tuple(self._intervals(name, source, maker, ends))
            for first, last, size, block in self._intervals_by_reading[key]:
                live[first] += size
                live[last + 1] -= size
                if block is not None:
                    ahead[block] = ahead.get(block, 0) + size
        most = total = 0
        for index, op in enumerate(self.ops):
            total += live[index]
            most = max(most, total + ahead.get((op.block, self.later[index]), 0))
        return most

    def _intervals(
        self, name: str, source: NdSbp, maker: int, readings: list[tuple[int, NdSbp]]
    ) -> Iterator[LiveBytes]:
        """Intervals in which one tensor lives, and what boxing makes of it."""
        home, repeats = self.later[maker], self.ops[maker].kind == "repeat"
        if not repeats and all(self.later[index] == home for index, _ in readings):
            last = max((index for index, _ in readings), default=maker)
            yield LiveBytes(maker, last, self._bytes(name, source), None)
        for later in (False, True):
            here = [(index, sbp) for index, sbp in readings if self.later[index] == later]
            elsewhere = {sbp for index, sbp in readings if self.later[index] != later}
            ends: dict[NdSbp, int] = {}
            for index, sbp in here:
                if repeats or sbp not in elsewhere:
                    for step in boxing_path(source, sbp, self.sizes, self.tensors[name].shape):
                        ends[step.after] = max(index, ends.get(step.after, 0))
            for place, end in ends.items():
                block = self.ops[end].block, later
                early = repeats or later != home
                first = self.first[block] if early else maker
                yield LiveBytes(first, end, self._bytes(name, place), block if early else None)

    def _bytes(self, name: str, sbp: NdSbp) -> int:
        tensor = self.tensors[name]
        return local_size(tensor.shape, sbp, self.sizes) * ITEMSIZE[tensor.dtype]
