"""The formula: bytes of every stage of a plan, by kind, as the compiler will lay them out.

    stage = Σ over registers (slots · bytes) + the largest section's area

Registers are those that lowering makes; slots follow from the schedule (`planner.compile.slots`);
what lives within one section shares its area (`planner.compile.arena`). None of it needs a run, and
equal blocks and equal stages are lowered once and counted (`regular`).
"""

from collections import Counter
from dataclasses import replace

from models.graph import GLOBAL_BLOCK, Graph
from planner.actors.graph import HOST, TEMPORARY
from planner.cluster import Cluster
from planner.compile.arena import communication_buffers, shared_places
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
# The same of what belongs to no block, by the names of registers.
Common = dict[str, tuple[tuple[str, Lifetime | None], int]]


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
    if small.moved and not _all_near(alive, small):
        small = Regular.whole(plan, graph)
        drafts = _lowered(small, table.joint)
        alive = lifetimes(drafts)
    makers = {name: op.block for op in small.graph.ops for name in op.outputs}
    areas = [shared_places(draft, table.joint) for draft in drafts]
    sums = [
        _registers(draft, alive[stage], frozenset(areas[stage][0]), small.times, makers)
        for stage, draft in enumerate(drafts)
    ]
    found = []
    for stage, parts in enumerate(small.stands_for):
        sizes: Counter[str] = Counter()
        held = [(chunk, *one) for chunk, part in enumerate(parts) for one in sums[part][0].items()]
        # What belongs to no block is there once, however many chunks need it.
        once = {name: one for part in parts for name, one in sums[part][1].items()}
        for chunk, (kind, lifetime), size in (*held, *((0, *one) for one in once.values())):
            if lifetime is not None and small.moved:
                lifetime = _moved(lifetime, stage, chunk if small.apart else None, table)
            sizes[kind] += size * (1 if lifetime is None else table.slots(stage, lifetime))
        found.append(_memory(sizes, max(areas[part][1] for part in parts), plan.cluster))
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
    draft: DraftStage,
    alive: list[Lifetime | None],
    shared: frozenset[int],
    times: dict[str, int],
    makers: dict[str, str],
) -> tuple[Registers, Common]:
    """Bytes of one slot of the registers with places of their own, every block counted.

    What belongs to no block comes apart, by name.
    """
    # A register belongs to the block that makes its tensor; what is inside an op, to the op's.
    inside = {
        register: actor.block
        for actor in draft.actors
        for register in (*actor.state, *(port.register for port in actor.outputs))
    }
    buffers = communication_buffers(draft)
    found: Registers = Counter()
    common: Common = {}
    for index, register in enumerate(draft.registers):
        if index not in shared:
            key = "communication" if index in buffers else register.memory_kind, alive[index]
            block = makers.get(register.tensor) or inside.get(index, "")
            if block in ("", GLOBAL_BLOCK):
                common[register.name] = key, register.slot_bytes
            else:
                found[key] += times.get(block, 1) * register.slot_bytes
    return found, common


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


def _moved(lifetime: Lifetime, stage: int, chunk: int | None, table: Timetable) -> Lifetime:
    """The lifetime of a register on a stage that equals, in a chunk: its neighbours are others.

    Without a chunk those of the stage have the numbers they had.
    """
    if chunk is not None:
        made = (lifetime.made[0], chunk)
        read = frozenset((part, chunk) for part, _ in lifetime.read)
        lifetime = replace(lifetime, made=made, read=read)
    if not lifetime.sent:
        return lifetime
    position = table.positions[stage][lifetime.made[1]] + _neighbour(lifetime.made)
    peer = table.homes[position]
    there = table.positions[peer].index(position)
    sent = frozenset((peer, (section[0], there)) for _, section in lifetime.sent)
    return replace(lifetime, sent=sent)


def _memory(sizes: Counter[str], area: int, cluster: Cluster) -> StageMemory:
    kinds = Counter(sizes)
    host = kinds.pop(HOST, 0)
    kinds[TEMPORARY] = area
    kinds.update(beside(sum(kinds.values()), cluster))
    return StageMemory(host_bytes=host, **{f"{kind}_bytes": kinds[kind] for kind in KINDS})
