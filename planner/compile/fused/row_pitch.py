"""Row pitch: rows of large tensors begin where a device's widest loads can begin.

A product of 16-bit matrices is several times slower where rows do not begin on 16 bytes, and a
vocabulary of 50,257 makes such rows of logits. A register whose makers and readers all know of it
(`OpKind.pitched`) has a *pitch*: its rows lie further apart than they are long. Backends that gain
nothing by it lay the rows out one behind the other in the same place.
"""

from math import prod

from msgspec.structs import replace

from millrace.models.graph import ITEMSIZE
from millrace.models.ops import OPS
from millrace.planner.actors.graph import Register
from millrace.planner.compile.stage_ir import ALIGNMENT, StageIR

LOAD_BYTES = 16  # the widest load of a thread (CUDA programming guide, vector types)
ROW_BYTES = 128  # a cache line of a GPU, and what a tensor core's copies are cut to (the same)
LEAST_BYTES = 2**12  # smaller tensors are no matter


def padded(draft: StageIR) -> StageIR:
    """The stage with a pitch for every register that gains by it."""
    pitched = _pitchable_registers(draft)
    registers = [
        _with_pitch(register) if index in pitched and _gains(register) else register
        for index, register in enumerate(draft.registers)
    ]
    draft.registers[:] = registers
    return draft


def _gains(register: Register) -> bool:
    """True if rows begin where no wide load can begin."""
    size = prod(register.shape) * ITEMSIZE[register.dtype]
    return (
        len(register.shape) > 1
        and ITEMSIZE[register.dtype] == 2
        and size >= LEAST_BYTES
        and register.shape[-1] * ITEMSIZE[register.dtype] % LOAD_BYTES > 0
        and not register.initial
    )


def _with_pitch(register: Register) -> Register:
    itemsize = ITEMSIZE[register.dtype]
    unit = ROW_BYTES // itemsize
    pitch = -(-register.shape[-1] // unit) * unit
    size = prod(register.shape[:-1]) * pitch * itemsize
    return replace(register, pitch=pitch, slot_bytes=-(-size // ALIGNMENT) * ALIGNMENT)


def _pitchable_registers(draft: StageIR) -> set[int]:
    """Registers that are touched by nothing but ops which know of a pitch."""
    touched = {port.register for actor in draft.actors for port in actor.outputs}
    for actor in draft.actors:
        ports = (*actor.inputs, *actor.outputs)
        strange = {
            number
            for part in actor.parts
            for number in (*part.inputs, *part.outputs)
            if not OPS[part.kind].pitched
        }
        alone = not actor.parts and (actor.kind not in OPS or not OPS[actor.kind].pitched)
        if actor.meeting is not None or alone:
            strange = set(range(len(ports)))
        touched -= {port.register for number, port in enumerate(ports) if number in strange}
    for actor in draft.actors:  # one pass over two tensors: both lie alike
        pair = {port.register for port in (*actor.inputs[:1], *actor.outputs[:1])}
        if actor.kind == "cross_entropy_grad" and not pair <= touched:
            touched -= pair
    return touched
