"""Offload: optimizer state in the memory of the node, and the device's buffer it passes through.

State is the moments of a variable and, where a step reads it in 16 bits only, the variable itself
(`millrace.models.model_counts.master_weights`). Its registers are of the kind `host`: they lie in
an arena of their own beside the device's. All that passes to or from there on one stage shares one
buffer, for casts and updates follow one another on the compute queue.
"""

from math import prod

from msgspec.structs import replace

from millrace.models.graph import ITEMSIZE, Graph
from millrace.models.model_counts import master_weights
from millrace.planner.actors.graph import HOST
from millrace.planner.compile.stage_ir import ALIGNMENT, StageIR
from millrace.planner.costs.host_transfers import PIECE_BYTES
from millrace.planner.plan import OPTIMIZER

BUFFER = "optimizer state on its way"
DTYPE = "int32"  # bytes, four by four; what passes through has its own dtype


class HostState:
    """Registers of a plan that lie in host memory, and every stage's buffer.

    Parameters
    ----------
    graph
        The training graph.
    offload
        As in a Plan.
    """

    def __init__(self, graph: Graph, offload: str) -> None:
        self._used = offload == OPTIMIZER
        self._masters = master_weights(graph) if self._used else frozenset()
        self._buffers: dict[int, int] = {}

    @property
    def kind(self) -> str:
        """Kind of memory in which moments lie."""
        return HOST if self._used else "optimizer"

    def read(self, stage: int, draft: StageIR, tensor: str, register: int) -> int | None:
        """Put a variable into host memory that its one reader takes as it is stored.

        Returns the buffer by which it is read there; None where it stays on the device.
        """
        if tensor not in self._masters:
            return None
        draft.registers[register] = replace(draft.registers[register], memory_kind=HOST)
        return self._buffer(stage, draft, (register,))

    def updated(self, stage: int, draft: StageIR, registers: tuple[int, ...]) -> int | None:
        """Buffer of an update of these registers; None where none is in host memory."""
        there = tuple(
            register for register in registers if draft.registers[register].memory_kind == HOST
        )
        return self._buffer(stage, draft, there) if there else None

    def _buffer(self, stage: int, draft: StageIR, registers: tuple[int, ...]) -> int:
        """The stage's buffer, as large as the largest that passes through, or a piece of it."""
        needed = min(
            sum(draft.registers[register].slot_bytes for register in registers), PIECE_BYTES
        )
        if stage not in self._buffers:
            self._buffers[stage] = draft.add_register(
                name=BUFFER,
                tensor=BUFFER,
                shape=(0,),
                dtype=DTYPE,
                sbp=draft.replicated,
                memory_kind="optimizer",
            )
        index = self._buffers[stage]
        buffer = draft.registers[index]
        if buffer.slot_bytes < needed:
            shape = (-(-needed // ITEMSIZE[DTYPE]),)
            size = -(-prod(shape) * ITEMSIZE[DTYPE] // ALIGNMENT) * ALIGNMENT
            draft.registers[index] = replace(
                buffer, shape=shape, global_shape=shape, slot_bytes=size
            )
        return index
