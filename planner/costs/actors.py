"""Compiled actors: the duration of each one's firing on a cluster."""

from collections.abc import Collection, Hashable, Iterator, Sequence
from math import prod

import numpy as np

from millrace.models.graph import ITEMSIZE
from millrace.models.ops import state_of
from millrace.planner.actors.graph import HOST, Actor, ActorGraph, Meeting, Part, Program, Register
from millrace.planner.cluster import Cluster, Device, HostMemory
from millrace.planner.collectives import LOCAL_BOXING
from millrace.planner.costs.bucket_sizes import State, Totals
from millrace.planner.costs.collective_costs import collective_duration_ns
from millrace.planner.costs.group_topology import frame_of, layout_of
from millrace.planner.costs.host_transfers import host_of, state_copies_ns
from millrace.planner.costs.op_batch import OpFirings, firing_of
from millrace.planner.costs.ops import op_duration_ns
from millrace.planner.fusion.fused_traffic import Share, shares_of
from millrace.planner.fusion.fusion_graph import FusionNode, FusionTensor

# Attributes that change what an op of equal shapes takes, besides those that `state_of` asks for.
PRICED_ATTRIBUTES = ("causal", "window", "arithmetic", "rows", "rounds", "epilogue")


Priced = tuple[Part, tuple[Register, ...], tuple[Register, ...], Share]


def parts_of(actor: Actor, program: Program) -> Iterator[Priced]:
    """Ops of a fused actor with their operands and shares.

    Parameters
    ----------
    actor : Actor
        One that has `parts`.
    program : Program
        The program that it is of, whose registers it reads and writes.

    Yields
    ------
    tuple (Part, tuple of Register, tuple of Register, Share)
        The op, its inputs and its outputs as its labels list them, and the bytes per element that
        count as its own; in the order of the parts.

    Raises
    ------
    ModelError
        The op table has no such kind.
    """
    operands = program.all_operands(actor)
    names = [(*part.inputs, *part.outputs) for part in actor.parts]
    nodes = [
        FusionNode(
            name=part.name,
            kind=part.kind,
            labels=part.labels,
            inputs=part.inputs,
            outputs=part.outputs,
            section=actor.phase,
        )
        for part in actor.parts
    ]
    values: dict[Hashable, FusionTensor] = {
        number: FusionTensor(shape=operands[number].shape, dtype=operands[number].dtype)
        for row in names
        for number in row
    }
    places = range(len(actor.inputs), len(actor.inputs) + len(actor.outputs))
    shares = shares_of(nodes, values, places)
    for part, share in zip(actor.parts, shares, strict=True):
        inputs = tuple(operands[number] for number in part.inputs)
        yield part, inputs, tuple(operands[number] for number in part.outputs), share


def firing_of_actor(actor: Actor, program: Program) -> OpFirings:
    """One firing of an actor of one op, as its duration is asked for.

    Parameters
    ----------
    actor : Actor
        One without `parts` that takes part in no meeting.
    program : Program
        The program that it is of, whose registers it reads and writes.

    Raises
    ------
    ModelError
        The op table has no such kind.
    """
    inputs, outputs = program.operands(actor)
    return firing_of(
        actor.kind,
        actor.labels,
        actor.attributes,
        [register.shape for register in inputs],
        [register.shape for register in outputs],
        [register.dtype for register in inputs],
        [register.dtype for register in outputs],
    )


class _Costs:
    """Durations of the actors of one graph on one cluster, equal questions asked once."""

    def __init__(self, graph: ActorGraph, cluster: Cluster) -> None:
        self.graph = graph
        self.cluster = cluster
        self._frame = frame_of(cluster)
        self._ops: dict[object, int] = {}
        self._meetings: dict[object, int] = {}
        self._groups: dict[object, tuple[tuple[int, ...], ...]] = {}
        self._devices: dict[tuple[int, ...], tuple[Device, ...]] = {}
        self._hosts: dict[tuple[int, ...], list[HostMemory]] = {}
        self._totals: dict[int, Totals] = {}

    def actor_ns(self, actor: Actor, program: Program) -> int:
        if actor.meeting is not None:
            return self._meeting_ns(actor.meeting, program, self._state(actor, program))
        if actor.parts:
            return sum(
                self._op_ns(part, inputs, outputs, program, share)
                for part, inputs, outputs, share in parts_of(actor, program)
            )
        duration_ns = self._op_ns(actor, *program.operands(actor), program)
        return duration_ns + self._copies_ns(actor, program)

    def _op_ns(
        self,
        op: Actor | Part,
        inputs: Sequence[Register],
        outputs: Sequence[Register],
        program: Program,
        share: Share | None = None,
    ) -> int:
        """Duration of one op: of an actor, or of a fused one its share."""
        work = (
            tuple(register.shape for register in inputs),
            tuple(register.shape for register in outputs),
            tuple(register.dtype for register in inputs),
            tuple(register.dtype for register in outputs),
        )
        state = () if op.kind in LOCAL_BOXING else state_of(op.kind, op.attributes)
        told = tuple(op.attributes.get(name) for name in PRICED_ATTRIBUTES)
        devices = self._kinds(program.ranks)
        names = tuple(device.name for device in devices)
        key = (op.kind, op.labels, state, told, work, names, share)
        if key not in self._ops:
            self._ops[key] = max(
                op_duration_ns(
                    op.kind, op.labels, op.attributes, *work, device, self.cluster.software, share
                )
                for device in devices
            )
        return self._ops[key]

    def _copies_ns(self, actor: Actor, program: Program) -> int:
        """Nanoseconds that an update or a cast waits for copies from and to host memory."""
        if actor.buffer is None:
            return 0
        ports = actor.outputs if actor.in_place else actor.inputs
        passing = [
            program.registers[index]
            for index in (*actor.state, ports[0].register)
            if program.registers[index].memory_kind == HOST
        ]
        size = np.array([prod(passing[0].shape) * ITEMSIZE[passing[0].dtype]])
        ways = 2 if actor.in_place else 1
        if program.ranks not in self._hosts:
            groups = self.cluster.groups
            if self.cluster.others:
                lie = map(self.cluster.group_of, program.ranks)
                groups = tuple({id(group): group for group in lie}.values())
            self._hosts[program.ranks] = [host_of(group, self.cluster) for group in groups]
        copies_ns = state_copies_ns(size, len(passing), self._hosts[program.ranks], ways=ways)
        return int(copies_ns[0])

    def _kinds(self, ranks: tuple[int, ...]) -> tuple[Device, ...]:
        """Kinds of device that a program's ranks lie on."""
        if not self.cluster.others:
            return (self.cluster.device,)
        if ranks not in self._devices:
            devices_by_name = {device.name: device for device in map(self.cluster.device_of, ranks)}
            self._devices[ranks] = tuple(devices_by_name.values())
        return self._devices[ranks]

    def _state(self, actor: Actor, program: Program) -> State:
        if id(program) not in self._totals:
            self._totals[id(program)] = Totals(program)
        return self._totals[id(program)].state(actor)

    def _meeting_ns(self, meeting: Meeting, program: Program, state: State) -> int:
        where = (program.ranks[0], meeting.axes, meeting.peer, meeting.world, meeting.kind)
        if where not in self._groups:
            self._groups[where] = self._members(meeting, program)
        key = (*where, meeting.message_bytes, meeting.bucketed, meeting.copies, state)
        if key not in self._meetings:
            self._meetings[key] = max(
                collective_duration_ns(
                    meeting.kind,
                    meeting.message_bytes,
                    len(group),
                    self.cluster,
                    group,
                    bucketed=meeting.bucketed,
                    copies=meeting.copies,
                    state=state,
                )
                for group in self._groups[where]
            )
        return self._meetings[key]

    def _members(self, meeting: Meeting, program: Program) -> tuple[tuple[int, ...], ...]:
        """Groups of the meeting with a member in the program, one of each that lie alike."""
        seen: set[int] = set()
        members_by_layout: dict[object, tuple[int, ...]] = {}
        for rank in program.ranks:
            if rank not in seen:
                members = tuple(self.graph.members(rank, meeting))
                seen.update(members)
                kinds = tuple(device.name for device in self._kinds(members))
                members_by_layout.setdefault((layout_of(members, self._frame), kinds), members)
        return tuple(members_by_layout.values())


def durations(
    graph: ActorGraph, cluster: Cluster, chosen: Collection[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Duration of one firing of every actor, per program and in the order of its actors.

    Parameters
    ----------
    graph, cluster
        What is priced, and on what.
    chosen
        Of every program these of its actors alone, if given.
    """
    costs = _Costs(graph, cluster)
    return tuple(
        tuple(
            costs.actor_ns(actor, program)
            for index, actor in enumerate(program.actors)
            if chosen is None or index in chosen
        )
        for program in graph.programs
    )
