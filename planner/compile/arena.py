"""Arena: a fixed place for every slot of a rank's registers.

Registers that live within one section of the compute queue (the forward of a chunk, its backward)
share one area: sections follow one another on that queue, and inside a section a place is taken
again once its last reader has run. A collective within a section shares it too: it cannot begin
before the op that makes its input, and is over when the first op that reads its result begins. All
other registers have their own places: what lives from one section to another, and what is sent or
received, for no order on this rank says when that happens. What lies in host memory is laid out
there, one after the other.

What the chunks of a stage keep from one section to another (`taking_turns`) is packed by lifetimes:
a stage runs one section at once, so that its order says what is alive together
(`millrace.planner.compile.bundles`).

Of what comes once a step, three things of a weight are there when others are not: what gathers it
before the first microbatch lies where its gradient will be summed, and what the sum is reduced to
after the last one where the gathered weight was, or the sum itself (`aliased_registers`).

Within a section the ops of one block form a *stretch*. What lives from one stretch to the next is
placed first, in turns in two parts of the area; what lives within one fits around it. So equal
stretches between equal neighbours look alike, are packed once, and take the same room however many
there are.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from millrace.planner.actors.graph import COMMUNICATION, HOST, LENT, TEMPORARY, Program
from millrace.planner.collectives import COLLECTIVES, IN_PLACE_BYTES_MIN
from millrace.planner.compile.bundles import kept_places, taking_turns
from millrace.planner.compile.live_ranges import LiveRange, LiveRanges, stretches
from millrace.planner.compile.slots import Timetable
from millrace.planner.compile.stage_ir import (
    BEGIN,
    BOXING,
    PART_ORDER,
    UPDATE,
    ActorIR,
    StageIR,
)


class PlacedRange(NamedTuple):
    """A live range at its offset."""

    offset: int
    size: int
    first: int
    last: int


def lay_out(program: Program, draft: StageIR, table: Timetable) -> Program:
    """The program with `offset_bytes` and `memory_kind` of every register set.

    Parameters
    ----------
    program
        Registers with their slots.
    draft
        The same stage's draft, which knows the section of every actor.
    table
        The orders of all stages.
    """
    live_ranges = LiveRanges(draft, table.joint)
    offsets, end = shared_places(live_ranges, table.pairs)
    lent = aliased_registers(live_ranges, offsets.keys())
    buffers = communication_buffers(draft)
    registers = list(program.registers)
    for index, offset in offsets.items():
        registers[index] = replace(registers[index], offset_bytes=offset, memory_kind=TEMPORARY)
    bundle_registers = taking_turns(live_ranges, offsets.keys() | lent.keys())
    places, end = kept_places(draft, bundle_registers, table.turns[program.stage], end)
    for index, place in places.items():
        registers[index] = replace(registers[index], **place)
    done = {*offsets, *lent, *places}
    host_end = 0
    for index, register in enumerate(program.registers):
        if register.memory_kind == HOST:
            registers[index] = replace(register, offset_bytes=host_end)
            host_end += register.slots * register.slot_bytes
        elif index not in done:
            kind = COMMUNICATION if index in buffers else register.memory_kind
            registers[index] = replace(register, offset_bytes=end, memory_kind=kind)
            end += register.slots * register.slot_bytes
    for index, (owner, behind) in lent.items():
        offset = registers[owner].offset_bytes + behind
        registers[index] = replace(registers[index], offset_bytes=offset, memory_kind=LENT)
    return replace(program, registers=tuple(registers))


def communication_buffers(draft: StageIR) -> frozenset[int]:
    """Registers that boxing fills every microbatch and that no later section reads.

    What boxing brings for the backward pass too is an activation like any other.
    """
    later = {
        port.register
        for actor in draft.actors
        for port in actor.inputs
        if port.register in draft.producer
        and actor.section != draft.actors[draft.producer[port.register]].section
    }
    return frozenset(
        register
        for register, maker in draft.producer.items()
        if draft.actors[maker].kind in BOXING
        and draft.registers[register].memory_kind == "activation"
        and register not in later
    )


def shared_places(live_ranges: LiveRanges, pairs: bool = False) -> tuple[dict[int, int], int]:
    """Offsets of the registers that share the area, and the area's size.

    Where a schedule pairs forwards with gradients, forwards have an area of their own below that of
    all other sections.

    Parameters
    ----------
    live_ranges : LiveRanges
        Of a stage's registers; its `followers` are filled in.
    pairs : bool
        True if slots of the schedule run beside others (`Timetable.pairs`). False: all sections
        take the same area, one after the other.

    Returns
    -------
    tuple (dict of int to int, int)
        Bytes from the area's begin by index of the register, and bytes of the area.
    """
    offsets: dict[int, int] = {}
    sizes = {True: 0, False: 0}  # of forwards, of all others
    packed: dict[object, tuple[tuple[int, ...], int]] = {}
    above: list[int] = []
    for section, local in live_ranges.by_section().items():
        starts = [start for start, _ in stretches(live_ranges.draft, live_ranges.ops(section))]
        stepwise = section in (BEGIN, UPDATE)
        places, size = _pack_section(local, starts, packed, stepwise)
        offsets |= places
        forward = section[0] == "F"
        sizes[forward] = max(sizes[forward], size)
        above += () if forward else places
    if pairs:
        offsets |= {register: sizes[True] + offsets[register] for register in above}
    area = sum(sizes.values()) if pairs else max(sizes.values())
    offsets |= {register: offsets[leader] for register, leader in live_ranges.followers.items()}
    return offsets, area


def aliased_registers(live_ranges: LiveRanges, shared: Set[int]) -> dict[int, tuple[int, int]]:
    """Registers that lie in the place of another, by that one and the bytes behind its start.

    A weight's parts, and what boxing makes of them before the first microbatch, are read before
    any forward that reads the whole, and so before its gradient is summed. What boxing makes of
    the sum, once the last microbatch is done, comes after all that read the whole weight, if their
    actors come before the sum's; the update that reads it is done before the weight is gathered
    again, and anything is summed. So it lies where the weight was, or where what it is boxed from
    no longer is. Where neither has room, an all_reduce is in place.

    Parameters
    ----------
    live_ranges : LiveRanges
        Of a stage's registers.
    shared : set of int
        Registers in the area that sections share (`shared_places`); a weight of which one of these
        holds a part, the sum or anything boxed is passed over.

    Returns
    -------
    dict of int to tuple (int, int)
        By index of a register, the index of the other and the bytes.
    """
    draft = live_ranges.draft
    places: dict[int, tuple[int, int]] = {}
    for variable, gradient in _updates(draft):
        total, reduced = _summed(live_ranges, gradient)
        if total is None or {total, *reduced} & shared:
            continue
        parts, gathered = _gathered(live_ranges, variable)
        owners = [total]
        apart = gathered is not None and not {gathered, *parts} & shared
        if gathered is not None and apart and _read_before(live_ranges, gathered, total):
            owners = [gathered, total]
        behind = 0
        for part in parts if len(owners) > 1 else ():
            size = draft.registers[part].slot_bytes
            if behind + size <= draft.registers[total].slot_bytes:
                places[part] = total, behind
                behind += size
        places |= _boxed_places(live_ranges, owners, total, reduced)
    return places


def _boxed_places(
    live_ranges: LiveRanges, owners: Sequence[int], total: int, reduced: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Places of what boxing makes of a sum, one after the other, in those that may be there."""
    draft, places = live_ranges.draft, dict[int, tuple[int, int]]()
    last_in = {total: total}  # what lies, or lay, in the place of an owner
    for before, register in pairwise((total, *reduced)):
        size = draft.registers[register].slot_bytes
        kind = draft.actors[draft.producer[register]].kind
        is_large = kind in COLLECTIVES and size > IN_PLACE_BYTES_MIN
        in_place = is_large and COLLECTIVES[kind].in_place
        for owner in sorted(owners, key=lambda owner: last_in.get(owner) == before):
            last = last_in.get(owner)
            is_over = last is None or len(live_ranges.readers[last]) == 1
            fits = size <= draft.registers[owner].slot_bytes
            if is_over and fits and (last != before or in_place):
                places[register], last_in[owner] = (owner, 0), register
                break
    return places


def _updates(draft: StageIR) -> Iterator[tuple[int, int]]:
    """Variables that an actor updates, each with the gradient that it reads for it."""
    for actor in draft.actors:
        if not actor.in_place:
            continue
        ports = [*actor.inputs, *actor.outputs]
        for part in actor.parts:
            yield ports[part.outputs[0]].register, ports[part.inputs[1]].register
        if not actor.parts and len(actor.outputs) == 1:
            yield actor.outputs[0].register, actor.inputs[0].register


def _made_of(actor: ActorIR, register: int) -> list[int]:
    """Registers that an actor makes of one of its inputs."""
    if actor.meeting is not None:
        pairs = zip(actor.inputs, actor.outputs, strict=False)  # a part each; waits come after
        return [output.register for sent, output in pairs if sent.register == register]
    if not actor.parts:
        return [port.register for port in actor.outputs]
    operand = [port.register for port in actor.inputs].index(register)
    ports = (*actor.inputs, *actor.outputs)
    return [
        ports[output_operand].register
        for part in actor.parts
        if operand in part.inputs
        for output_operand in part.outputs
    ]


def _gathered(live_ranges: LiveRanges, variable: int) -> tuple[list[int], int | None]:
    """Registers made of a variable before the first microbatch: all but the last, and the last."""
    draft, parts = live_ranges.draft, list[int]()
    last = variable
    while True:
        readers = [
            reader
            for reader in live_ranges.readers.get(last, ())
            if draft.actors[reader].section == BEGIN
        ]
        if not readers:
            is_made = last in draft.producer and not draft.registers[last].initial
            return parts[:-1], last if is_made else None
        if len(readers) > 1 or (last != variable and len(live_ranges.readers[last]) > 1):
            return [], None
        actor = draft.actors[readers[0]]
        outputs = _made_of(actor, last)
        if len(outputs) != 1 or (actor.lane != "compute" and not live_ranges.local(readers[0])):
            return [], None
        (last,) = outputs
        parts.append(last)


def _summed(live_ranges: LiveRanges, gradient: int) -> tuple[int | None, list[int]]:
    """Sum of all microbatches that a gradient is boxed from, and what boxing made of it."""
    draft, reduced = live_ranges.draft, list[int]()
    boxed: int | None = None  # the actor that boxes it on
    while True:
        index = draft.producer.get(gradient)
        readers = [reader for reader in live_ranges.readers[gradient] if reader != boxed]
        alone = all(
            draft.actors[reader].section == UPDATE and draft.actors[reader].lane == "compute"
            for reader in readers
        )
        if index is None or not alone:
            return None, []
        actor = draft.actors[index]
        if "accumulate" in actor.kinds:
            return gradient, reduced[::-1]
        part = [port.register for port in actor.outputs].index(gradient)
        if live_ranges.local(index):
            reduced.append(gradient)
        elif (actor.kind, actor.section) != ("add", UPDATE):  # of all readers of a tied weight
            return None, []
        gradient, boxed = actor.inputs[part].register, index


def _read_before(live_ranges: LiveRanges, gathered: int, total: int) -> bool:
    """True if every microbatch reads a weight before its gradient is added to the sum."""
    draft = live_ranges.draft
    end = draft.producer[total]
    last = live_ranges.section(end)
    readers = live_ranges.readers.get(gathered, ())
    parts = [draft.actors[reader].section for reader in readers]
    return ("F", last[1]) in parts and all(
        draft.actors[reader].lane == "compute"
        and section[1] == last[1]
        and (reader < end or live_ranges.section(reader) != last)
        and PART_ORDER[section[0]] <= PART_ORDER[draft.actors[end].section[0]]
        for reader, section in zip(readers, parts, strict=True)
    )


def _pack_section(
    live_ranges: Sequence[LiveRange],
    starts: Sequence[int],
    packed: dict[object, tuple[tuple[int, ...], int]],
    stepwise: bool,
) -> tuple[dict[int, int], int]:
    """Offsets of a section's live ranges, and the bytes they take; `packed` remembers stretches.

    Once a step (`stepwise`) what lives across stretches is left out: each adds its own.
    """
    across: dict[int, list[LiveRange]] = {}
    within: dict[int, list[LiveRange]] = {}
    for live_range in live_ranges:
        first, last = bisect_right(starts, live_range.first), bisect_right(starts, live_range.last)
        if first == last:
            within.setdefault(first, []).append(live_range)
        elif not stepwise:
            across.setdefault(last if first == last - 1 else 0, []).append(live_range)
    fixed, offsets = _pack_across(across)
    area = max((placed.offset + placed.size for placed in fixed), default=0)
    for stretch, local in within.items():
        begin = starts[stretch - 1]
        end = (
            starts[stretch] - 1
            if stretch < len(starts)
            else max(live_range.last for live_range in local)
        )
        around = sorted(
            PlacedRange(
                placed.offset,
                placed.size,
                max(placed.first, begin) - begin,
                min(placed.last, end) - begin,
            )
            for placed in fixed
            if placed.first <= end and begin <= placed.last
        )
        moved = [
            live_range._replace(first=live_range.first - begin, last=live_range.last - begin)
            for live_range in local
        ]
        key = tuple(live_range[1:] for live_range in moved), tuple(around)
        if key not in packed:
            offset_of = {
                live_range.register: offset for live_range, offset in _fitted(moved, list(around))
            }
            places = tuple(offset_of[live_range.register] for live_range in local)
            packed[key] = places, max(p + s.size for p, s in zip(places, local, strict=True))
        places, size = packed[key]
        offsets |= {
            live_range.register: place for live_range, place in zip(local, places, strict=True)
        }
        area = max(area, size)
    return offsets, area


def _pack_across(across: dict[int, list[LiveRange]]) -> tuple[list[PlacedRange], dict[int, int]]:
    """Places of what lives across stretches, by the last one where that is next to the first.

    What ends in even stretches and what ends in odd ones have a part each, so that however many
    stretches there are, those two parts are as large as the largest pair of neighbours needs. What
    lives longer (0) lies below.
    """
    fixed: list[PlacedRange] = []
    offsets: dict[int, int] = {}
    base = 0
    for part in ([0], *(sorted(k for k in across if k and k % 2 == odd) for odd in (0, 1))):
        end = base
        for stretch in part:
            placed: list[PlacedRange] = []
            for live_range, offset in _fitted(across.get(stretch, ()), placed):
                offsets[live_range.register] = base + offset
                end = max(end, base + offset + live_range.size)
            fixed += (place._replace(offset=base + place.offset) for place in placed)
        base = end
    return fixed, offsets


def _fitted(
    live_ranges: Sequence[LiveRange], placed: list[PlacedRange]
) -> Iterator[tuple[LiveRange, int]]:
    """First fit, largest first, around and into what is placed already (sorted by offset)."""
    for live_range in sorted(
        live_ranges,
        key=lambda live_range: (
            -live_range.size,
            live_range.first,
            live_range.last,
            live_range.register,
        ),
    ):
        offset = 0
        for other in placed:
            if (
                other.first <= live_range.last
                and live_range.first <= other.last
                and other.offset < offset + live_range.size
                and offset < other.offset + other.size
            ):
                offset = other.offset + other.size
        insort(placed, PlacedRange(offset, live_range.size, live_range.first, live_range.last))
        yield live_range, offset
