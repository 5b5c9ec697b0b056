"""Multi-tensor actors: work that is done to every variable alike, in few launches.

A model has hundreds of small variables, and casting, squaring or updating one of them, or adding up
its gradients, costs less than its launch. Those of a stage that can run at one time become one
actor, of as many parts; a backend does them in one launch for many tensors.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from millrace.planner.actors.graph import Part, Port
from millrace.planner.compile.stage_ir import BEGIN, UPDATE, ActorIR, StageIR

FIRST, LAST = "first", "last"

TOGETHER = {
    "cast": FIRST,
    "squared_sum": LAST,
    "adamw": FIRST,
    "sgd": FIRST,
    "accumulate": LAST,
}
"""Kinds that are joined, and at whose place: of the first, before which all inputs are there, or of
the last, for whose results the end of the step waits in any case."""

PER_PART_ATTRIBUTES = (
    "variable",
    "weight_decay",
)  # attributes in which parts of one update may differ


def joined_launches(draft: StageIR, *, across_blocks: bool = True) -> StageIR:
    """The stage with launches joined, sums over microbatches within their block.

    A cast is joined where it reads a variable and what it makes is kept for the microbatches: what
    only a collective reads comes and goes, and would have to be there all at once. A sum over
    microbatches is joined where no collective waits for it.
    """
    rows: dict[object, list[int]] = defaultdict(list)
    read_later, readers = _read_later(draft), _readers(draft)
    for index, actor in enumerate(draft.actors):
        if not across_blocks and actor.kind != "accumulate":
            continue
        if (alike := _alike(draft, actor, read_later, readers)) is not None:
            rows[alike].append(index)
    joined: dict[int, list[int]] = {}
    gone: set[int] = set()
    for row in rows.values():
        if len(row) > 1:
            position = row[0] if TOGETHER[draft.actors[row[0]].kind] == FIRST else row[-1]
            joined[position] = row
            gone.update(row)
    joined_draft = StageIR(draft.sizes, registers=draft.registers, places=draft.places)
    for index, actor in enumerate(draft.actors):
        if index in joined:
            joined_draft.add_actor(_one_actor([draft.actors[member] for member in joined[index]]))
        elif index not in gone:
            joined_draft.add_actor(actor)
    return joined_draft


def _readers(draft: StageIR) -> Mapping[int, list[int]]:
    readers: dict[int, list[int]] = defaultdict(list)
    for index, actor in enumerate(draft.actors):
        for port in actor.inputs:
            readers[port.register].append(index)
    return readers


def _alike(
    draft: StageIR,
    actor: ActorIR,
    read_later: frozenset[int],
    readers: Mapping[int, Sequence[int]],
) -> object:
    """Properties that joined actors have in common; None where an actor is not joined."""
    plain = actor.buffer is None and not actor.parts
    if actor.kind not in TOGETHER or not plain:
        return None
    if actor.kind == "accumulate":
        (result,) = actor.outputs
        alone = all(draft.actors[reader].lane == "compute" for reader in readers[result.register])
        likeness = actor.kind, actor.block, actor.section, actor.firings, result.hold
        return likeness if alone else None
    if actor.firings > 1:
        return None
    if actor.kind == "cast":
        (source,), (result,) = actor.inputs, actor.outputs
        stays = draft.registers[source.register].initial and result.register in read_later
        if actor.section != BEGIN or not stays:
            return None
    elif actor.section != UPDATE:
        return None
    shared = {
        name: value for name, value in actor.attributes.items() if name not in PER_PART_ATTRIBUTES
    }
    others = () if actor.kind in ("cast", "squared_sum") else actor.inputs[1:]
    return actor.kind, tuple(sorted(shared.items())), tuple(port.register for port in others)


def _read_later(draft: StageIR) -> frozenset[int]:
    """Registers that are read after the step's beginning."""
    return frozenset(
        port.register for actor in draft.actors if actor.section != BEGIN for port in actor.inputs
    )


def _one_actor(members: Sequence[ActorIR]) -> ActorIR:
    """Actor that does what all members do; updates read the versions before in its outputs."""
    inputs: dict[int, Port] = {}
    for actor in members:
        for port in actor.inputs:
            inputs.setdefault(port.register, port)
    outputs = tuple(port for actor in members for port in actor.outputs)
    input_numbers = {register: number for number, register in enumerate(inputs)}
    output_numbers = {port.register: len(inputs) + number for number, port in enumerate(outputs)}
    parts, state = [], list[int]()
    for actor in members:
        read = [input_numbers[port.register] for port in actor.inputs]
        written = tuple(output_numbers[port.register] for port in actor.outputs)
        parts.append(
            Part(
                name=actor.name,
                kind=actor.kind,
                labels=actor.labels,
                attributes=actor.attributes,
                inputs=tuple([written[0], *read] if actor.in_place else read),
                outputs=written,
                state=tuple(range(len(state), len(state) + len(actor.state))),
            )
        )
        state += actor.state
    head = members[0]
    return ActorIR(
        name=f"{head.name} and {len(members) - 1} more",
        kind=head.kind,
        section=head.section,
        firings=head.firings,
        inputs=tuple(inputs.values()),
        outputs=outputs,
        block=head.block,
        state=tuple(state),
        in_place=head.in_place,
        parts=tuple(parts),
    )
