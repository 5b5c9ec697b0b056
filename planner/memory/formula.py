"""The formula: bytes of every stage of a plan, by kind, as the compiler will lay them out.

    stage = Σ over registers (slots · bytes) + the largest section's area

Registers are those that lowering makes; slots follow from the schedule
(`millrace.planner.compile.slots`); what lives within one section shares its area, what chunks keep
takes turns in places (`millrace.planner.compile.arena`). None of it needs a run, and equal blocks
and equal stages are lowered once and counted (`regular`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as changed

from millrace.models.graph import GLOBAL_BLOCK
from millrace.planner.actors.graph import HOST, TEMPORARY
from millrace.planner.cluster import Cluster
from millrace.planner.compile.arena import (
    aliased_registers,
    communication_buffers,
    shared_places,
)
from millrace.planner.compile.bundles import chunk_stretches, taking_turns
from millrace.planner.compile.collectives import bucketed, hold_back
from millrace.planner.compile.fused import fused_stages
from millrace.planner.compile.live_ranges import LiveRanges
from millrace.planner.compile.lowering import Lowering
from millrace.planner.compile.packing import UNSTRETCHED, Bundle, packed
from millrace.planner.compile.placement import place
from millrace.planner.compile.slots import Lifetime, Timetable, lifetimes, timetable
from millrace.planner.compile.stage_ir import Section, StageIR
from millrace.planner.memory.device_overhead import device_overhead_bytes
from millrace.planner.memory.plan_deduplication import Regular, regular
from millrace.planner.memory.stage_memory import KINDS, StageMemory
from millrace.planner.plan import FUSED, Plan, check_plan
from millrace.planner.schedules import Slot

# Bytes of one slot by kind and lifetime (None: one version a step).
Registers = Counter[tuple[str, Lifetime | None]]
# Kind, lifetime and bytes of what belongs to no block, by the names of registers.
Common = dict[str, tuple[tuple[str, Lifetime | None], int]]


BOXED = ": "  # in the names of actors that box, after the name of the tensor


class StageRegisters(NamedTuple):
    """Registers of a stage outside the area: with places of their own, and taking turns."""

    private: Registers
    common: Common
    bundle_sizes: dict[Bundle, Counter[int]]  # number of registers by bytes of a slot


def plan_memory(
    plan: Plan,
    *,
    gathers_again: bool = False,
    lets_sent_go: bool = False,
    grown: Mapping[str, float] | None = None,
) -> tuple[StageMemory, ...]:
    """Memory of every stage of a plan.

    Parameters
    ----------
    plan : Plan
    gathers_again : bool
        What is gathered of an activation in the forward pass is not held, but gathered anew for the
        backward pass, as Megatron does (Korthikanti et al., 2022, section 4.2.2). No program is
        compiled so: it says what others would need for such a plan.
    lets_sent_go : bool
        What only other stages read takes no room once it is sent. No program is compiled so.
    grown : mapping, optional
        By name of op: how many times the bytes of what it makes is held, where others hold more
        beside it (a mask, an operand that a fused op does not write) or nothing of it. A name that
        ends in `BOXED` is that of all that boxing makes of the op's result.

    Returns
    -------
    tuple of StageMemory
        One per stage; `arena_bytes` of each is what the compiled program's registers take.

    Raises
    ------
    PlanError
        The plan is malformed, or does not fit the model's ops.
    InfeasibleError
        Shards or microbatches do not divide, or the schedule cannot run the chunks.
    """
    check_plan(plan)
    small = regular(plan)
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    drafts = _lowered(small, table.joint, gathers_again, grown or {})
    alive = lifetimes(drafts)
    if small.moved and not _all_near(alive, small):
        small = Regular.unreduced(plan)
        drafts = _lowered(small, table.joint, gathers_again, grown or {})
        alive = lifetimes(drafts)
    if lets_sent_go:
        _let_go(drafts, alive)
    makers = {name: op.block for op in small.graph.ops for name in op.outputs}
    live_ranges = [LiveRanges(draft, table.joint) for draft in drafts]
    areas = [shared_places(stage_ranges, table.pairs) for stage_ranges in live_ranges]
    sums = [
        _registers(stage_ranges, alive[stage], areas[stage][0].keys(), small.times, makers)
        for stage, stage_ranges in enumerate(live_ranges)
    ]
    memories = []
    for stage, parts in enumerate(small.stands_for):
        sizes: Counter[str] = Counter()
        own_sizes = [
            (chunk, *entry)
            for chunk, part in enumerate(parts)
            for entry in sums[part].private.items()
        ]
        # Registers of no block are there once, however many chunks need them.
        common = {name: entry for part in parts for name, entry in sums[part].common.items()}
        packing = packed(
            _stage_bundles([sums[part].bundle_sizes for part in parts]), table.turns[stage]
        )
        sizes["activation"] += packing.size_bytes
        for chunk, (kind, lifetime), size in (
            *own_sizes,
            *((0, *entry) for entry in common.values()),
        ):
            if lifetime is not None and small.moved:
                lifetime = _moved(lifetime, stage, chunk if small.apart else None, table)
            sizes[kind] += size * (1 if lifetime is None else table.slots(stage, lifetime))
        memories.append(_memory(sizes, max(areas[part][1] for part in parts), plan.cluster))
    return tuple(memories)


def _lowered(
    small: Regular, joint_backward: bool, gathers_again: bool, grown: Mapping[str, float]
) -> list[StageIR]:
    plan = small.plan
    lowering = Lowering(
        small.graph,
        plan.mesh,
        plan.stages,
        plan.microbatches,
        plan.offload,
        gathers_again=gathers_again,
    )
    for placed in place(plan, small.graph):
        lowering.lower(placed)
    drafts = fused_stages(lowering.stages, plan.fusion, joint=joint_backward, across_blocks=False)
    for draft in drafts:
        hold_back(draft, joint_backward)
        for actor in draft.actors if grown else ():
            times = grown.get(actor.name, grown.get(f"{actor.name.partition(BOXED)[0]}{BOXED}", 1))
            for port in actor.outputs if times != 1 else ():
                register = draft.registers[port.register]
                slot_bytes = int(register.slot_bytes * times)
                draft.registers[port.register] = changed(register, slot_bytes=slot_bytes)
    if plan.fusion != FUSED:
        return drafts
    return [_in_buckets(draft, stage, plan, joint_backward) for stage, draft in enumerate(drafts)]


def _let_go(drafts: Sequence[StageIR], alive: Sequence[Sequence[Lifetime | None]]) -> None:
    """Take the room from registers that only other stages read."""
    for draft, lifetimes_of_stage in zip(drafts, alive, strict=True):
        for index, lifetime in enumerate(lifetimes_of_stage):
            if lifetime and lifetime.sent and lifetime.read <= {lifetime.producer}:
                draft.registers[index] = changed(draft.registers[index], slot_bytes=0)


def _in_buckets(draft: StageIR, stage: int, plan: Plan, joint: bool) -> StageIR:
    """Draft with the buckets of every microbatch; those of a step take no more room.

    They lie within a block and a part of the step, so that the order of the parts is all one.
    """
    if not any(
        actor.firings > 1 and actor.meeting and actor.meeting.bucketed for actor in draft.actors
    ):
        return draft
    chunks = sorted({chunk for _, chunk in (actor.section for actor in draft.actors)})
    backward = ("BW",) if joint else ("B", "W")
    slots = [
        Slot(part, chunk, microbatch)
        for microbatch in range(plan.microbatches)
        for part, row in (("F", chunks), *((part, chunks[::-1]) for part in backward))
        for chunk in row
    ]
    return bucketed(draft, slots, stage, plan.mesh, plan.cluster)


def _registers(
    live_ranges: LiveRanges,
    alive: list[Lifetime | None],
    shared: Set[int],
    times: dict[str, int],
    makers: dict[str, str],
) -> StageRegisters:
    """Bytes of one slot of a stage's registers, every block counted."""
    draft = live_ranges.draft
    # A register belongs to the block that makes its tensor; what is inside an op, to the op's.
    inside = {
        register: actor.block
        for actor in draft.actors
        for register in (*actor.state, *(port.register for port in actor.outputs))
    }
    buffers = communication_buffers(draft)

    def block(index: int) -> str:
        return makers.get(draft.registers[index].tensor) or inside.get(index, "")

    def sizes(indices: Iterable[int]) -> Registers:
        kind_bytes: Registers = Counter()
        for index in indices:
            register = draft.registers[index]
            kind = "communication" if index in buffers else register.memory_kind
            kind_bytes[kind, alive[index]] += times.get(block(index), 1) * register.slot_bytes
        return kind_bytes

    lent = aliased_registers(live_ranges, shared).keys()
    bundle_registers = taking_turns(live_ranges, shared | lent)
    taking = (index for rows in bundle_registers.values() for index in rows)
    elsewhere = {*shared, *lent, *taking}
    own_places = [index for index in range(len(draft.registers)) if index not in elsewhere]
    common = [index for index in own_places if block(index) in ("", GLOBAL_BLOCK)]
    return StageRegisters(
        private=sizes(set(own_places).difference(common)),
        common={
            draft.registers[index].name: next(iter(sizes([index]).items())) for index in common
        },
        bundle_sizes=_every_block(live_ranges, bundle_registers, block, times),
    )


def _every_block(
    live_ranges: LiveRanges,
    bundle_registers: Mapping[Bundle, Iterable[int]],
    block: Callable[[int], str],
    times: Mapping[str, int],
) -> dict[Bundle, Counter[int]]:
    """Number of registers of every size by bundle, with the blocks that others stand for."""
    sizes: dict[Bundle, Counter[int]] = {}
    for bundle, rows in bundle_registers.items():
        blocks = [name for _, name in chunk_stretches(live_ranges, bundle.chunk)]
        for index in rows:
            size = live_ranges.draft.registers[index].slot_bytes
            if bundle.stretch == UNSTRETCHED:
                sizes.setdefault(bundle, Counter())[size] += times.get(block(index), 1)
                continue
            for stretch in _stretches_of(bundle.stretch, block(index), blocks, times):
                sizes.setdefault(bundle._replace(stretch=stretch), Counter())[size] += 1
    return sizes


def _stretches_of(
    stretch: int, block: str, blocks: Sequence[str], times: Mapping[str, int]
) -> Iterable[int]:
    """Stretches, every block counted, where copies of a block's register are made or read.

    Each is as far from its own block's stretch as it is where blocks stand for others.
    """
    counts = [times.get(name, 1) for name in blocks]
    first, count = sum(counts[:stretch]), times.get(block, 1)
    own_stretch = blocks.index(block) if block in blocks else stretch
    if count > 1:
        begin = sum(counts[:own_stretch]) + stretch - own_stretch
        return range(begin, begin + count)
    return [first + counts[stretch] - 1 if own_stretch > stretch else first]


def _stage_bundles(parts: Sequence[Mapping[Bundle, Counter[int]]]) -> dict[Bundle, Counter[int]]:
    """Registers that a stage keeps between sections: as one like it, or one like each chunk."""
    if len(parts) == 1:
        return dict(parts[0])
    return {
        bundle._replace(chunk=chunk): counts
        for chunk, part in enumerate(parts)
        for bundle, counts in part.items()
    }


def _neighbour(section: Section) -> int:
    """Step in the model from a section to the reader of its results: 1 after it, -1 before."""
    return 1 if section[0] == "F" else -1


def _all_near(alive: list[list[Lifetime | None]], small: Regular) -> bool:
    """True if everything sent once a microbatch goes to the next chunk of the model."""
    chunks = small.plan.chunks
    positions = [
        [k for k, chunk in enumerate(chunks) if chunk.stage == stage]
        for stage in range(small.plan.stages)
    ]
    return all(
        positions[peer][section[1]]
        == positions[stage][lifetime.producer[1]] + _neighbour(lifetime.producer)
        for stage, registers in enumerate(alive)
        for lifetime in registers
        if lifetime is not None
        for peer, section in lifetime.sent
    )


def _moved(lifetime: Lifetime, stage: int, chunk: int | None, table: Timetable) -> Lifetime:
    """Lifetime of a register on a stage that equals, in a chunk: its neighbours are others.

    Without a chunk those of the stage have the numbers they had.
    """
    if chunk is not None:
        making = (lifetime.producer[0], chunk)
        read = frozenset((part, chunk) for part, _ in lifetime.read)
        lifetime = replace(lifetime, producer=making, read=read)
    if not lifetime.sent:
        return lifetime
    position = table.positions[stage][lifetime.producer[1]] + _neighbour(lifetime.producer)
    peer = table.homes[position]
    there = table.positions[peer].index(position)
    sent = frozenset((peer, (section[0], there)) for _, section in lifetime.sent)
    return replace(lifetime, sent=sent)


def _memory(sizes: Counter[str], area: int, cluster: Cluster) -> StageMemory:
    kinds = Counter(sizes)
    host = kinds.pop(HOST, 0)
    kinds[TEMPORARY] = area
    kinds.update(device_overhead_bytes(sum(kinds.values()), cluster))
    return StageMemory(host_bytes=host, **{f"{kind}_bytes": kinds[kind] for kind in KINDS})
