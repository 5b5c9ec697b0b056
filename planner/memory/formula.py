"""The formula: bytes of every stage of a plan, by kind, as the compiler will lay them out.

    stage = Σ over registers (slots · bytes) + the largest section's area

Registers are those that lowering makes; slots follow from the schedule (`planner.compile.slots`);
what lives within one section shares its area, what chunks keep takes turns in places
(`planner.compile.arena`). None of it needs a run, and
equal blocks and equal stages are lowered once and counted (`regular`).
"""

from collections import Counter
from collections.abc import Set
from dataclasses import replace

from models.graph import Graph
from planner.actors.graph import HOST, TEMPORARY
from planner.cluster import Cluster
from planner.compile.arena import (
    Alike,
    Spans,
    communication_buffers,
    kept_together,
    lent_places,
    shared_places,
)
from planner.compile.draft import DraftStage, Section
from planner.compile.lowering import Lowering
from planner.compile.placement import check_plan, place
from planner.compile.prefetch import hold_back
from planner.compile.slots import Lifetime, Timetable, lifetimes, timetable
from planner.memory.device import beside
from planner.memory.kinds import KINDS, StageMemory
from planner.memory.regular import Regular, regular
from planner.plan import Plan

# Bytes of one slot by kind and lifetime (None: one version a step).
Registers = Counter[tuple[str, Lifetime | None]]
# How many registers that take turns each chunk of a stage has.
Together = dict[Alike, dict[int, int]]


def plan_memory(plan: Plan, graph: Graph) -> tuple[StageMemory, ...]:
    """Return the memory of every stage of a plan.

    Parameters
    ----------
    plan : Plan
    graph : Graph
        As `plan_graph` gives it.

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
    small = regular(plan, graph)
    homes = tuple(chunk.stage for chunk in plan.chunks)
    table = timetable(plan.schedule, homes, plan.microbatches)
    drafts = _lowered(small, table.joint)
    alive = lifetimes(drafts)
    if small.plan.stages < plan.stages and not _all_near(alive, small):
        small = Regular.whole(plan, graph)
        drafts = _lowered(small, table.joint)
        alive = lifetimes(drafts)
    makers = {name: op.block for op in small.graph.ops for name in op.outputs}
    spans = [Spans(draft, table.joint) for draft in drafts]
    areas = [shared_places(one) for one in spans]
    sums = [
        _registers(one, alive[stage], areas[stage][0].keys(), small.times, makers)
        for stage, one in enumerate(spans)
    ]
    found = []
    for stage, kind in enumerate(small.stands_for):
        sizes: Counter[str] = Counter()
        alone, together = sums[kind]
        for (name, lifetime), size in alone.items():
            if lifetime is not None and small.plan.stages < plan.stages:
                lifetime = _moved(lifetime, stage, table)
            sizes[name] += size * (1 if lifetime is None else table.slots(stage, lifetime))
        for alike, counts in together.items():
            sizes["activation"] += _turns_bytes(alike, counts, stage, table)
        found.append(_memory(sizes, areas[kind][1], plan.cluster))
    return tuple(found)


def _lowered(small: Regular, joint_backward: bool) -> list[DraftStage]:
    plan = small.plan
    lowering = Lowering(small.graph, plan.mesh, plan.stages, plan.microbatches, plan.offload)
    for placed in place(plan, small.graph):
        lowering.lower(placed)
    for draft in lowering.stages:
        hold_back(draft, joint_backward)
    return lowering.stages


def _registers(
    spans: Spans,
    alive: list[Lifetime | None],
    shared: Set[int],
    times: dict[str, int],
    makers: dict[str, str],
) -> tuple[Registers, Together]:
    """Bytes of one slot of the registers with places of their own, every block counted.

    Of those that take turns, how many of a kind each chunk has.
    """
    draft = spans.draft
    # A register belongs to the block that makes its tensor; what is inside an op, to the op's.
    inside = {
        register: actor.block
        for actor in draft.actors
        for register in (*actor.state, *(port.register for port in actor.outputs))
    }
    buffers = communication_buffers(draft)

    def occurrences(index: int) -> int:
        block = makers.get(draft.registers[index].tensor) or inside.get(index, "")
        return times.get(block, 1)

    lent = lent_places(spans, shared).keys()
    turns = kept_together(spans, shared | lent)
    together = {
        alike: {chunk: sum(map(occurrences, rows)) for chunk, rows in chunks.items()}
        for alike, chunks in turns.items()
    }
    taking = (one for chunks in turns.values() for rows in chunks.values() for one in rows)
    elsewhere = {*shared, *lent, *taking}
    found: Registers = Counter()
    for index, register in enumerate(draft.registers):
        if index not in elsewhere:
            kind = "communication" if index in buffers else register.memory_kind
            found[kind, alive[index]] += occurrences(index) * register.slot_bytes
    return found, together


def _turns_bytes(alike: Alike, counts: dict[int, int], stage: int, table: Timetable) -> int:
    """Bytes of registers that take turns: the first of every chunk together, then each next one."""
    found = done = 0
    for count in sorted(set(counts.values())):
        chunks = [chunk for chunk, number in counts.items() if number >= count]
        places = table.together(alike.turn(stage, chunks))
        found += (count - done) * (1 + max(map(max, places.values()))) * alike.slot_bytes
        done = count
    return found


def _neighbour(section: Section) -> int:
    """On which side of the model a section's results are wanted: after it, or before."""
    return 1 if section[0] == "F" else -1


def _all_near(alive: list[list[Lifetime | None]], small: Regular) -> bool:
    """Whether everything sent once a microbatch goes to the next chunk of the model."""
    chunks = small.plan.chunks
    positions = [
        [k for k, chunk in enumerate(chunks) if chunk.stage == stage]
        for stage in range(small.plan.stages)
    ]
    return all(
        positions[peer][section[1]]
        == positions[stage][lifetime.made[1]] + _neighbour(lifetime.made)
        for stage, registers in enumerate(alive)
        for lifetime in registers
        if lifetime is not None
        for peer, section in lifetime.sent
    )


def _moved(lifetime: Lifetime, stage: int, table: Timetable) -> Lifetime:
    """The lifetime of a register whose stage equals `stage`: it is sent to that one's neighbour."""
    if not lifetime.sent:
        return lifetime
    position = table.positions[stage][lifetime.made[1]] + _neighbour(lifetime.made)
    peer = table.homes[position]
    chunk = table.positions[peer].index(position)
    sent = frozenset((peer, (section[0], chunk)) for _, section in lifetime.sent)
    return replace(lifetime, sent=sent)


def _memory(sizes: Counter[str], area: int, cluster: Cluster) -> StageMemory:
    kinds = Counter(sizes)
    host = kinds.pop(HOST, 0)
    kinds[TEMPORARY] = area
    kinds.update(beside(sum(kinds.values()), cluster))
    return StageMemory(host_bytes=host, **{f"{kind}_bytes": kinds[kind] for kind in KINDS})
