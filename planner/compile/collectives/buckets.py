"""Buckets: collectives of state that are neighbours in time become one with several parts.

A gradient's own all_reduce or reduce_scatter, and a split weight's own all_gather, cost a launch
and the latency of a way through all members each, whatever they move. This pass joins those of one
kind over one group, of one dtype, reduction, section and number of firings into one *bucket*, an
actor whose parts move together. How large one gets is computed in
`millrace.planner.costs.bucket_sizes`.

*When it runs.* A bucket begins when its last input is there, so members are joined in the order in
which their inputs come (gradients: the order of the backward pass) or their results are wanted
(weights: that of the forward pass). One end of the row shows: of gradients the last bucket, which
nothing hides; of weights the first, for which everything waits. So buckets grow from that end on,
each twice as large as the one before, from `shown_bytes` up to `bucket_bytes`. Collectives of every
microbatch are joined within a block only, so that gradients and gathered weights of no more blocks
are held than if each went by itself, and weights are gathered a block ahead, as
`prefetch.hold_back` lets each of them be; of these only the first block's gathers and the last
one's gradients show.

*Why it cannot deadlock.* Ops run in the order of the compute queue, so each firing has a number.
Let `ready` be the largest of the firings that make what a bucket reads, and `deadline` the smallest
that reads what it makes, through other collectives too. Members are joined only while `ready <
deadline` in every firing. Put every collective right behind its `ready` one, and one that reads
another's result behind that: it is an order of all firings of the rank with which every dependency
agrees. What comes from or goes to another stage joins nothing, so no rank waits for another that it
did not wait for before. All ranks of a stage run one program, hence the same buckets.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from millrace.planner.actors.graph import Meeting, Port
from millrace.planner.cluster import Cluster
from millrace.planner.collectives import COLLECTIVES
from millrace.planner.compile.queue_orders import compute_order
from millrace.planner.compile.stage_ir import BEGIN, UPDATE, ActorIR, StageIR
from millrace.planner.costs.bucket_sizes import bucket_bytes, shown_bytes
from millrace.planner.costs.collective_costs import collective_duration_ns
from millrace.planner.mesh import Mesh
from millrace.planner.schedules import Slot

# A bucket this much fuller than asked for, or this empty, takes another member all the same: by
# itself, what is so small would cost latency and next to nothing else.
CRUMB = 1 / 16

Firings = NDArray[np.int64]  # a number in the compute queue's order for every firing of a step
_Bound = Callable[[int], "Firings | None"]  # of a collective, by its place in the draft


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketMember:
    """A collective that may be joined: its place in the draft, and between what it must run."""

    index: int
    ready: Firings
    deadline: Firings


def bucketed(
    draft: StageIR,
    slots: Sequence[Slot],
    stage: int,
    mesh: Mesh,
    cluster: Cluster,
    paired_slots: Set[int] = frozenset(),
) -> StageIR:
    """The stage's draft with its collectives of state in buckets.

    Parameters
    ----------
    draft
        A stage whose early collectives are held back already (`prefetch`).
    slots
        The stage's order.
    stage, mesh
        Where its ranks lie.
    cluster
        What moves the buckets. Nothing is joined where its software has buckets of its own
        (`Software.bucket_bytes`), for then every collective is priced as a part of those.
    paired_slots
        Numbers of slots that run beside the one before them.
    """
    if cluster.software.bucketing:
        return draft
    rows = _Joining(draft, slots, stage, mesh, cluster, paired_slots).buckets()
    return _with_buckets(draft, [row for row in rows if len(row) > 1])


class _Joining:
    """Search for the members of every bucket of a stage."""

    def __init__(
        self,
        draft: StageIR,
        slots: Sequence[Slot],
        stage: int,
        mesh: Mesh,
        cluster: Cluster,
        paired_slots: Set[int],
    ) -> None:
        self.draft, self.cluster = draft, cluster
        self.mesh, self.first_rank = mesh, stage * mesh.devices
        numbers: list[list[int]] = [[] for _ in draft.actors]
        for number, index in enumerate(compute_order(draft, slots, paired_slots)):
            numbers[index].append(number)
        self.numbers = [np.asarray(row, np.int64) for row in numbers]
        self.readers: dict[int, list[tuple[int, Port]]] = {}
        for index, actor in enumerate(draft.actors):
            for port in actor.inputs:
                self.readers.setdefault(port.register, []).append((index, port))
        self.ready: dict[int, Firings | None] = {}
        self.deadline: dict[int, Firings | None] = {}
        self.depths: dict[int, int] = {}

    def buckets(self) -> list[list[int]]:
        """Actors of every bucket; collectives that read others' results come after those."""
        chosen = [index for index, actor in enumerate(self.draft.actors) if _may_join(actor)]
        buckets: list[list[int]] = []
        for depth in sorted({self._depth(index) for index in chosen}):
            rows: dict[object, list[_BucketMember]] = {}
            for index in chosen:
                if self._depth(index) != depth:
                    continue
                ready, deadline = self._ready(index), self._deadline(index)
                if ready is not None and deadline is not None:
                    member = _BucketMember(index=index, ready=ready, deadline=deadline)
                    rows.setdefault(self._key(index), []).append(member)
            for row in rows.values():
                buckets += self._joined(row)
        return buckets

    def _key(self, index: int) -> object:
        """Properties that members of a bucket have in common."""
        actor = self.draft.actors[index]
        assert actor.meeting is not None
        meeting = actor.meeting
        dtype = self.draft.registers[actor.outputs[0].register].dtype
        once = actor.section in (BEGIN, UPDATE)
        within = "" if once else (actor.block, actor.inputs[1:])
        message = meeting.kind, meeting.axes, meeting.reduction, dtype
        return (*message, actor.lane, actor.section, actor.firings, within)

    def _joined(self, row: list[_BucketMember]) -> list[list[int]]:
        """Cut a row of members, in the order of time, into buckets."""
        actors = self.draft.actors
        meeting, section = actors[row[0].index].meeting, actors[row[0].index].section
        assert meeting is not None
        # Members are sorted from the end that shows.
        if meeting.kind == "all_gather":
            row = sorted(row, key=lambda member: (int(member.deadline[0]), member.index))
        else:
            row = sorted(row, key=lambda member: (-int(member.ready[-1]), -member.index))
        duration_ns = self._duration_of(meeting)
        once = section in (BEGIN, UPDATE)
        together = sum(_bytes(actors[member.index]) for member in row)
        full = bucket_bytes(duration_ns, together if once else 0)
        shows = once or self._shows(row, meeting.kind)
        most = min(shown_bytes(duration_ns), full) if shows else full
        buckets: list[list[_BucketMember]] = []
        size = 0
        for member in row:
            more = _bytes(actors[member.index])
            if buckets and _fits(size, more, most) and _in_time((*buckets[-1], member)):
                buckets[-1].append(member)
                size += more
            else:
                most = min(2 * most, full) if buckets else most
                buckets.append([member])
                size = more
        for bucket in buckets:
            latest = np.max([member.ready for member in bucket], axis=0)
            self.ready.update((member.index, latest) for member in bucket)
        return [sorted(member.index for member in bucket) for bucket in buckets]

    def _shows(self, row: Sequence[_BucketMember], kind: str) -> bool:
        """True if a block's collectives of every microbatch have no other block to hide them."""
        ready = [int(member.ready[-1]) for member in row]
        deadlines = [int(member.deadline[-1]) for member in row]
        if kind != "all_gather":
            own_span = max(ready) - min(ready)
        elif len(self.draft.actors[row[0].index].inputs) == 1:
            return True
        else:
            own_span = max(deadlines) - min(deadlines)
        # Fewer ops are there to hide them than their own block has between the first and the last.
        return min(deadlines) - max(ready) < own_span

    def _duration_of(self, meeting: Meeting) -> Callable[[int], int]:
        """Nanoseconds of a message among this stage's first group, as a function of its bytes."""
        ranks = self._group(meeting.axes)

        def duration_ns(size_bytes: int) -> int:
            return collective_duration_ns(
                meeting.kind, size_bytes, len(ranks), self.cluster, ranks, bucketed=True
            )

        return duration_ns

    def _group(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Ranks of the group over some axes in which the stage's first rank is."""
        ranks = [self.first_rank]
        for index, axis in enumerate(self.mesh.axes):
            if axis.name in axes:
                stride = prod(self.mesh.sizes[index + 1 :])
                ranks = [rank + k * stride for rank in ranks for k in range(axis.size)]
        return tuple(ranks)

    def _ready(self, index: int) -> Firings | None:
        """Last compute firing that each firing of a collective waits for; None: not known."""
        if index not in self.ready:
            actor = self.draft.actors[index]
            rows = [self._producing_firings(port, actor.firings) for port in actor.inputs]
            present = [row for row in rows if row is not None]
            self.ready[index] = (
                np.max(present, axis=0) if present and len(present) == len(rows) else None
            )
        return self.ready[index]

    def _producing_firings(self, port: Port, firings: int) -> Firings | None:
        """Number of the compute firing behind which each reading finds its version."""
        maker = self.draft.producer.get(port.register)
        if self.draft.registers[port.register].initial or maker is None:
            return np.full(firings, -1)
        actor = self.draft.actors[maker]
        versions = np.arange(firings) // port.hold
        hold = next(output.hold for output in actor.outputs if output.register == port.register)
        numbers = self._numbers(maker, self._ready)
        return None if numbers is None else numbers[(versions + 1) * hold - 1]

    def _deadline(self, index: int) -> Firings | None:
        """First compute firing that waits for each firing of a collective; None: not known."""
        if index not in self.deadline:
            (output,) = self.draft.actors[index].outputs
            rows = []
            for reader, port in self.readers.get(output.register, ()):
                numbers = self._numbers(reader, self._deadline)
                rows.append(None if numbers is None else numbers[:: port.hold])
            present = [row for row in rows if row is not None]
            deadline = np.min(present, axis=0) if present and len(present) == len(rows) else None
            self.deadline[index] = deadline
        return self.deadline[index]

    def _numbers(self, index: int, met: _Bound) -> Firings | None:
        """An actor's own firings, or those that `met` says of a collective of this stage."""
        actor = self.draft.actors[index]
        if actor.meeting is None:
            return self.numbers[index]
        if actor.meeting.peer is not None or actor.meeting.world or len(actor.outputs) != 1:
            return None
        return met(index)

    def _depth(self, index: int) -> int:
        """Number of collectives that a collective's input came through."""
        if index not in self.depths:
            makers = (
                self.draft.producer.get(port.register) for port in self.draft.actors[index].inputs
            )
            self.depths[index] = max(
                (
                    1 + self._depth(maker)
                    for maker in makers
                    if maker is not None and self.draft.actors[maker].meeting is not None
                ),
                default=0,
            )
        return self.depths[index]


def _may_join(actor: ActorIR) -> bool:
    meeting = actor.meeting
    return (
        meeting is not None
        and meeting.bucketed
        and COLLECTIVES[meeting.kind].joins_buckets
        and meeting.peer is None
        and not meeting.world
        and all(port.hold == 1 for port in actor.outputs)
    )


def _bytes(actor: ActorIR) -> int:
    return 0 if actor.meeting is None else actor.meeting.message_bytes


def _fits(size: int, more: int, most: int) -> bool:
    """True if a bucket of some bytes takes more of them."""
    crumb = most * CRUMB
    return size + more <= most or size <= crumb or (more <= crumb and size < most)


def _in_time(members: Iterable[_BucketMember]) -> bool:
    """True if in every firing all inputs are there before a result is wanted."""
    rows = tuple(members)
    ready = np.max([member.ready for member in rows], axis=0)
    deadline = np.min([member.deadline for member in rows], axis=0)
    return bool(np.all(ready < deadline))


def _with_buckets(draft: StageIR, buckets: Sequence[Sequence[int]]) -> StageIR:
    """Draft with each bucket in the place of its last member."""
    bucket_actors = {row[-1]: _bucket([draft.actors[index] for index in row]) for row in buckets}
    gone = {index for row in buckets for index in row[:-1]}
    joined_draft = StageIR(draft.sizes, registers=draft.registers, places=draft.places)
    for index, actor in enumerate(draft.actors):
        if index not in gone:
            joined_draft.add_actor(bucket_actors.get(index, actor))
    return joined_draft


def _bucket(members: Sequence[ActorIR]) -> ActorIR:
    """Actor that does what all members do."""
    first, last = members[0], members[-1]
    assert first.meeting is not None
    sent = tuple(member.inputs[0] for member in members)
    waited = dict.fromkeys(port for member in members for port in member.inputs[1:])
    name = f"{first.name}, and {len(members) - 1} more"
    meeting = changed(
        first.meeting, key=name, message_bytes=sum(map(_bytes, members)), parts=len(members)
    )
    return replace(
        last,
        name=name,
        inputs=(*sent, *waited),
        outputs=tuple(member.outputs[0] for member in members),
        block=first.block if len({member.block for member in members}) == 1 else "",
        meeting=meeting,
    )
