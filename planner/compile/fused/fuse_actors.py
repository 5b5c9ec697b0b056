"""Fused actors: each group of a stage's ops becomes one, and the registers inside it are gone."""

from collections.abc import Hashable, Sequence

from msgspec.structs import replace

from millrace.models.ops import op_kind
from millrace.planner.actors.graph import Part, Port, Register
from millrace.planner.compile.stage_ir import BOXING, ActorIR, StageIR
from millrace.planner.fusion.fused_traffic import components, written
from millrace.planner.fusion.fusion_graph import FusionGraph, FusionNode, FusionTensor
from millrace.planner.fusion.rules import PRODUCT, fused_groups


def fused_draft(draft: StageIR, *, joint: bool) -> StageIR:
    """The stage with its groups fused.

    Parameters
    ----------
    draft
        Actors in an order in which every register is made before it is read.
    joint
        As `fused_groups` has it.
    """
    fusion_graph = fused_groups(_nodes(draft), _values(draft), joint=joint)
    inner = {
        name
        for group in dict.fromkeys(fusion_graph.groups.values())
        for name in _group_outputs(fusion_graph, group) - set(written(fusion_graph, group))
    }
    numbers: dict[int, int] = {}
    for register in _in_stacks(fusion_graph, len(draft.registers)):
        if register not in inner:
            numbers[register] = len(numbers)
    fused = StageIR(
        draft.sizes,
        registers=[draft.registers[old] for old in numbers],
        places={
            numbers[follower]: numbers[leader]
            for follower, leader in draft.places.items()
            if follower in numbers
        },
    )
    for unit in fusion_graph.order():
        members = [draft.actors[index] for index in unit]
        actor = members[0] if len(unit) == 1 else _joined(draft, members, inner)
        fused.add_actor(_renumbered(actor, numbers))
    return fused


def _in_stacks(fusion_graph: FusionGraph, count: int) -> list[int]:
    """Registers in the order of their places: results of alike products as their operands are.

    What is read and written at equal distances, in one order, is one stack of products. The two
    may have come in opposite orders, for gradients are made backwards.
    """
    order = list(range(count))
    for group in dict.fromkeys(fusion_graph.groups.values()):
        nodes = [fusion_graph.nodes[index] for index in group]
        rows = [[nodes[index] for index in row] for row in components(nodes)]
        heads = [row[0] for row in rows]
        if len(rows) < 2 or any(op_kind(head.kind).role != PRODUCT for head in heads):
            continue
        own_operands = [
            operand
            for operand in (0, 1)
            if len({head.inputs[operand] for head in heads}) == len(heads)
        ]
        if len(own_operands) != 1:
            continue
        by_operand = sorted(
            (_number(row[0].inputs[own_operands[0]]), row_index)
            for row_index, row in enumerate(rows)
        )
        results = [
            [_number(name) for node in rows[row_index] for name in node.outputs]
            for _, row_index in by_operand
        ]
        for alike_results in zip(*results, strict=True):
            for place, register in zip(
                sorted(map(order.index, alike_results)), alike_results, strict=True
            ):
                order[place] = register
    return order


def _number(value: Hashable) -> int:
    """Number of the register that a value is named by here."""
    assert isinstance(value, int)
    return value


def _nodes(draft: StageIR) -> list[FusionNode]:
    return [
        FusionNode(
            name=actor.name,
            kind=actor.kind,
            labels=actor.labels,
            inputs=tuple(port.register for port in actor.inputs),
            outputs=tuple(port.register for port in actor.outputs),
            section=actor.section,
            firings=actor.firings,
            free=_is_free(actor),
        )
        for actor in draft.actors
    ]


def _is_free(actor: ActorIR) -> bool:
    """True if an actor is one op on the compute queue, with nothing but inputs and outputs."""
    return (
        actor.lane == "compute"
        and actor.meeting is None
        and not (actor.state or actor.in_place or actor.parts)
        and actor.buffer is None
        and actor.kind not in BOXING
    )


def _values(draft: StageIR) -> dict[Hashable, FusionTensor]:
    return {
        index: FusionTensor(shape=register.shape, dtype=register.dtype, begins=register.initial > 0)
        for index, register in enumerate(draft.registers)
    }


def _group_outputs(fusion_graph: FusionGraph, group: Sequence[int]) -> set[Hashable]:
    return {name for index in group for name in fusion_graph.nodes[index].outputs}


def _joined(draft: StageIR, members: Sequence[ActorIR], inner: set[Hashable]) -> ActorIR:
    """Actor of several, which run in their order."""
    outputs = [p for actor in members for p in actor.outputs if p.register not in inner]
    results = {port.register for actor in members for port in actor.outputs}
    inputs: dict[int, Port] = {}
    for actor in members:
        for port in actor.inputs:
            if port.register not in results:
                inputs.setdefault(port.register, port)
    within = [p.register for actor in members for p in actor.outputs if p.register in inner]
    numbers = {
        register: number
        for number, register in enumerate([*inputs, *(p.register for p in outputs), *within])
    }
    head = members[0]
    return ActorIR(
        name=name_of([actor.name for actor in members], head.block),
        kind="+".join(actor.kind for actor in members),
        section=head.section,
        firings=head.firings,
        inputs=tuple(inputs.values()),
        outputs=tuple(outputs),
        block=head.block,
        parts=tuple(
            Part(
                name=actor.name,
                kind=actor.kind,
                labels=actor.labels,
                attributes=actor.attributes,
                inputs=tuple(numbers[port.register] for port in actor.inputs),
                outputs=tuple(numbers[port.register] for port in actor.outputs),
            )
            for actor in members
        ),
        inner=tuple(_without_place(draft.registers[register]) for register in within),
    )


def name_of(names: Sequence[str], block: str) -> str:
    """Name of a fused actor: those of its ops, the block's written once."""
    first, *others = names
    return " + ".join([first, *(name.removeprefix(f"{block}.") for name in others)])


def _without_place(register: Register) -> Register:
    return replace(register, slot_bytes=0)


def _renumbered(actor: ActorIR, numbers: dict[int, int]) -> ActorIR:
    def moved(ports: tuple[Port, ...]) -> tuple[Port, ...]:
        return tuple(Port(register=numbers[port.register], hold=port.hold) for port in ports)

    actor.inputs, actor.outputs = moved(actor.inputs), moved(actor.outputs)
    actor.state = tuple(numbers[register] for register in actor.state)
    actor.buffer = None if actor.buffer is None else numbers[actor.buffer]
    return actor
