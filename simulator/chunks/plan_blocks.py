"""Plan blocks: which are equal, where each lies, and which tensors cross between them.

Made once per plan, in one pass over the ops. Everything else about stage fidelity looks at
representative blocks only.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from millrace.models.graph import GLOBAL_BLOCK, Op
from millrace.planner.mesh import Mesh
from millrace.planner.plan import EqualBlocks, Plan, block_runs, signature_of
from millrace.planner.sbp import BROADCAST, NdSbp, parse_nd_sbp


class CrossReading(NamedTuple):
    """One reading of a tensor by an op of another block, as its operand of that number.

    `op_index` is the reader's place among the graph's ops.
    """

    op_index: int
    tensor: str
    maker: Op
    reader: Op
    operand: int


class PlanBlocks:
    """A plan's blocks and the tensors that cross between them.

    Parameters
    ----------
    plan
        The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.graph = graph = plan.graph
        self.ops: dict[str, list[tuple[int, Op]]] = {GLOBAL_BLOCK: []}
        self.chunk_of: dict[str, int] = {}
        self.variant_of: dict[str, int] = {}
        for number, chunk in enumerate(plan.chunks):
            for choice in chunk.blocks:
                self.chunk_of[choice.block] = number
                self.variant_of[choice.block] = choice.variant
        self.readings: dict[str, list[CrossReading]] = {}  # by the block that reads
        self._layouts: dict[tuple[str, str], tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]]] = {}
        for number, op in enumerate(graph.ops):
            self.ops.setdefault(op.block, []).append((number, op))
            if op.block == GLOBAL_BLOCK:
                continue
            for index, name in enumerate(op.inputs):
                maker = graph.makers[name]
                if maker.block not in (op.block, GLOBAL_BLOCK):
                    reading = CrossReading(number, name, maker, op, index)
                    self.readings.setdefault(op.block, []).append(reading)

    @cached_property
    def read_from(self) -> dict[str, list[CrossReading]]:
        """Readings by other blocks, by the block that made the tensor."""
        readings_by_maker: dict[str, list[CrossReading]] = {}
        for readings in self.readings.values():
            for reading in readings:
                readings_by_maker.setdefault(reading.maker.block, []).append(reading)
        return readings_by_maker

    def runs(self, number: int) -> tuple[EqualBlocks, ...]:
        """Runs of equal blocks that the chunk of a number consists of."""
        return block_runs(self.graph, self.plan.chunks[number])

    def read_as(self, reading: CrossReading) -> NdSbp:
        """SBP that the reader wants."""
        return self._layout(reading.reader)[0][reading.operand]

    def made_as(self, tensor: str) -> NdSbp:
        """SBP in which a tensor's op makes it."""
        op = self.graph.makers[tensor]
        return self._layout(op)[1][op.outputs.index(tensor)]

    def _layout(self, op: Op) -> tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]]:
        variant = self.variant_of[op.block]
        inner = op.name.removeprefix(op.block + ".")
        key = (str(variant), inner)
        if key not in self._layouts:
            signature = signature_of(self.plan, variant, op)
            self._layouts[key] = (
                _parsed(signature.inputs, self.plan.mesh),
                _parsed(signature.outputs, self.plan.mesh),
            )
        return self._layouts[key]


def _parsed(texts: Iterable[str], mesh: Mesh) -> tuple[NdSbp, ...]:
    """SBPs from a plan's text; axes of size one say B."""
    return tuple(
        tuple(
            axis_sbp if size > 1 else BROADCAST
            for axis_sbp, size in zip(parse_nd_sbp(text), mesh.sizes, strict=True)
        )
        for text in texts
    )
