"""Offload: optimizer state in the memory of the node, and the device's buffer it passes through.

State registers are of the kind `host`: they lie in an arena of their own beside the device's. Every
update of a stage shares one buffer, for updates follow one another on the compute queue.
"""

from math import prod

from msgspec.structs import replace

from models.graph import ITEMSIZE
from planner.compile.draft import ALIGNMENT, DraftStage
from planner.costs.host import PIECE_BYTES

BUFFER = "optimizer state on its way"
DTYPE = "int32"  # bytes, four by four; what passes through has its own dtype


class Buffers:
    """The buffers of all stages, as large as the largest state that passes through, or a piece."""

    def __init__(self) -> None:
        self._registers: dict[int, int] = {}

    def of(self, stage: int, draft: DraftStage, state: tuple[int, ...]) -> int | None:
        """Return the stage's buffer, made or enlarged for these registers; None without any."""
        if not state:
            return None
        needed = min(sum(draft.registers[one].slot_bytes for one in state), PIECE_BYTES)
        if stage not in self._registers:
            self._registers[stage] = draft.add_register(
                name=BUFFER,
                tensor=BUFFER,
                shape=(0,),
                dtype=DTYPE,
                sbp=draft.whole,
                memory_kind="optimizer",
            )
        index = self._registers[stage]
        buffer = draft.registers[index]
        if buffer.slot_bytes < needed:
            shape = (-(-needed // ITEMSIZE[DTYPE]),)
            size = -(-prod(shape) * ITEMSIZE[DTYPE] // ALIGNMENT) * ALIGNMENT
            draft.registers[index] = replace(
                buffer, shape=shape, global_shape=shape, slot_bytes=size
            )
        return index
