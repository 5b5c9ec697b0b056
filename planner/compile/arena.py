"""Arena: a fixed place for every slot of a rank's registers.

Registers that live within one section of the compute queue (the forward of a chunk, its backward)
share one area: sections follow one another on that queue, and inside a section a place is taken
again once its last reader has run. All other registers have their own places.
"""

from msgspec.structs import replace

from planner.actors.graph import TEMPORARY, Program, Register
from planner.compile.draft import DraftStage

Section = tuple[str, int]


def lay_out(program: Program, draft: DraftStage, joint_backward: bool) -> Program:
    """Return the program with `offset_bytes` of every register set.

    Parameters
    ----------
    program
        Registers with their slots.
    draft
        The same stage's draft, which knows the section of every actor.
    joint_backward
        True where the schedule runs B and W as one slot.
    """
    local = _section_local(program, draft, joint_backward)
    area = 0
    offsets: dict[int, int] = {}
    for lifetimes in local.values():
        places = _pack(lifetimes, program.registers)
        offsets |= places
        area = max([area, *(at + program.registers[r].slot_bytes for r, at in places.items())])
    end = area
    registers: list[Register] = []
    for index, register in enumerate(program.registers):
        if index in offsets:
            at = offsets[index]
            registers.append(replace(register, offset_bytes=at, memory_kind=TEMPORARY))
            continue
        registers.append(replace(register, offset_bytes=end))
        end += register.slots * register.slot_bytes
    return replace(program, registers=tuple(registers))


def _section_local(
    program: Program, draft: DraftStage, joint_backward: bool
) -> dict[Section, list[tuple[int, int, int]]]:
    """Per section, registers (index, first, last position) that never outlive it."""
    users: dict[int, list[int]] = {}
    for index, actor in enumerate(draft.actors):
        for port in (*actor.inputs, *actor.outputs):
            users.setdefault(port.register, []).append(index)
    found: dict[Section, list[tuple[int, int, int]]] = {}
    for register, actors in users.items():
        sections = set()
        for index in actors:
            part, chunk = draft.actors[index].section
            if draft.actors[index].lane != "compute":
                part = "elsewhere"
            elif part == "R" or (joint_backward and part in ("B", "W")):
                part = "BW" if joint_backward else "B"
            sections.add((part, chunk))
        at = program.registers[register]
        holds = any(
            port.hold > 1
            for index in actors
            for port in (*draft.actors[index].inputs, *draft.actors[index].outputs)
            if port.register == register
        )
        if len(sections) == 1 and at.slots == 1 and not at.initial and not holds:
            section = sections.pop()
            if section[0] != "elsewhere":
                found.setdefault(section, []).append((register, min(actors), max(actors)))
    return found


def _pack(lifetimes: list[tuple[int, int, int]], registers: tuple[Register, ...]) -> dict[int, int]:
    """First fit, largest first; lifetimes are closed intervals of positions."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: dict[int, int] = {}
    for register, first, last in sorted(
        lifetimes, key=lambda item: (-registers[item[0]].slot_bytes, item)
    ):
        size = registers[register].slot_bytes
        offset = 0
        for start, end, begin, stop in sorted(placed):
            if begin <= last and first <= stop and start < offset + size and offset < end:
                offset = end
        placed.append((offset, offset + size, first, last))
        offsets[register] = offset
    return offsets
