"""Launches: what is done to every variable alike, joined to few actors that launch once.

A model has hundreds of small variables, and casting, squaring or updating one of them, or adding up
its gradients, costs less than its launch. Those of a stage that can run at one time become one
actor, of as many parts; a backend does them in one launch for many tensors.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from millrace.planner.actors.graph import Part, Port
from millrace.planner.compile.draft import BEGIN, UPDATE, DraftActor, DraftStage

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

OWN = ("variable", "weight_decay")  # attributes in which parts of one update may differ


def joined_launches(draft: DraftStage, *, across_blocks: bool = True) -> DraftStage:
    """Return the stage with such actors joined, sums over microbatches within their block.

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
            at = row[0] if TOGETHER[draft.actors[row[0]].kind] == FIRST else row[-1]
            joined[at] = row
            gone.update(row)
    found = DraftStage(draft.sizes, registers=draft.registers, places=draft.places)
    for index, actor in enumerate(draft.actors):
        if index in joined:
            found.add_actor(_one_actor([draft.actors[member] for member in joined[index]]))
        elif index not in gone:
            found.add_actor(actor)
    return found


def _readers(draft: DraftStage) -> Mapping[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for index, actor in enumerate(draft.actors):
        for port in actor.inputs:
            found[port.register].append(index)
    return found


def _alike(
    draft: DraftStage,
    actor: DraftActor,
    read_later: frozenset[int],
    readers: Mapping[int, Sequence[int]],
) -> object:
    """What actors have in common that are joined; None where one is not."""
    plain = actor.buffer is None and not actor.parts
    if actor.kind not in TOGETHER or not plain:
        return None
    if actor.kind == "accumulate":
        (made,) = actor.outputs
        alone = all(draft.actors[at].lane == "compute" for at in readers[made.register])
        own = actor.kind, actor.block, actor.section, actor.firings, made.hold
        return own if alone else None
    if actor.firings > 1:
        return None
    if actor.kind == "cast":
        (source,), (made,) = actor.inputs, actor.outputs
        kept = draft.registers[source.register].initial and made.register in read_later
        if actor.section != BEGIN or not kept:
            return None
    elif actor.section != UPDATE:
        return None
    shared = {name: value for name, value in actor.attributes.items() if name not in OWN}
    others = () if actor.kind in ("cast", "squared_sum") else actor.inputs[1:]
    return actor.kind, tuple(sorted(shared.items())), tuple(port.register for port in others)


def _read_later(draft: DraftStage) -> frozenset[int]:
    """Registers that something reads after the step's beginning."""
    return frozenset(
        port.register for actor in draft.actors if actor.section != BEGIN for port in actor.inputs
    )


def _one_actor(members: Sequence[DraftActor]) -> DraftActor:
    """The actor that does what all members do; updates read the versions before in its outputs."""
    inputs: dict[int, Port] = {}
    for actor in members:
        for port in actor.inputs:
            inputs.setdefault(port.register, port)
    outputs = tuple(port for actor in members for port in actor.outputs)
    at = {register: number for number, register in enumerate(inputs)}
    made = {port.register: len(inputs) + number for number, port in enumerate(outputs)}
    parts, state = [], list[int]()
    for actor in members:
        read = [at[port.register] for port in actor.inputs]
        written = tuple(made[port.register] for port in actor.outputs)
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
    return DraftActor(
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
