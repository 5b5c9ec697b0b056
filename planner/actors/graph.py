"""ActorGraph: a plan compiled to actors, registers and queues with their orders.

One `Program` serves every rank of a device class (a pipeline stage, to begin with); `coordinate`
and `members` turn it into one rank's own. Registers never cross a rank: ranks meet only in actors
that have a `meeting` (a collective, or the send and recv ends of a transfer).

An actor fires when it is next in each of its queues, every input register holds the version it
needs and every output register has the slot free. Rates are *holds*: an input port with hold 4
reads one version for four firings and then gives it back; an output port with hold 4 takes a slot
at the first of four firings and publishes it at the last.
"""

from collections.abc import Iterable
from enum import StrEnum
from math import prod
from typing import Annotated

import msgspec

from millrace.planner.collectives import ALONE, TokenCopies
from millrace.planner.mesh import Axis

SCHEMA_VERSION = 1

TEMPORARY = "temporary"  # the kind of registers that share one area of the arena
HOST = "host"  # the kind of registers in the memory of the node, outside the device's arena
LENT = "lent"  # the kind of registers in the place of another that is not alive meanwhile
COMMUNICATION = "communication"  # the kind of boxing's buffers that have a place of their own


class Leave(StrEnum):
    """Event at which an actor makes room for the next one in a queue."""

    ISSUED = "issued"
    COMPLETED = "completed"


class Register(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`slots` buffers for successive versions of one rank's shard of a tensor.

    Version v lies in slot v mod slots. `initial` versions exist before the first step (variables);
    one that no actor writes holds its only version for good, as often as it is read.
    `offset_bytes` is the place of slot 0 in the rank's arena, slot k follows at
    `offset_bytes + k * slot_bytes`. Where there are `places`, slot k lies in the place of that
    number instead, `within_bytes` behind its start; places are `place_bytes` long (0: as long as a
    slot) and begin at `offset_bytes`. Registers of equal offset have these places together, and
    never use the same bytes of one at once. Registers of the kind `host` have an arena of their
    own, in the memory of the node. With a `pitch` there is room for rows of the last dim that lie
    so many elements apart.
    """

    name: str
    tensor: str
    global_shape: tuple[int, ...]
    sbp: str
    shape: tuple[int, ...]
    dtype: str
    pitch: int = 0
    slots: int = 1
    initial: int = 0
    offset_bytes: int = 0
    slot_bytes: int = 0
    places: tuple[int, ...] = ()
    place_bytes: int = 0
    within_bytes: int = 0
    # parameter, gradient, optimizer, activation, communication, temporary, lent or host
    memory_kind: str = "activation"

    def start_bytes(self, slot: int) -> int:
        """Offset of a slot in its arena."""
        if not self.places:
            return self.offset_bytes + slot * self.slot_bytes
        begin = self.places[slot] * (self.place_bytes or self.slot_bytes)
        return self.offset_bytes + begin + self.within_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of its places, those included that other registers share."""
        if not self.places:
            return self.slots * self.slot_bytes
        return (max(self.places) + 1) * (self.place_bytes or self.slot_bytes)


class Port(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One register of an actor and for how many firings a version of it is held."""

    register: int
    hold: int = 1


class Meeting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rendezvous of ranks: a collective over mesh axes, over the world, or one end of a transfer.

    Equal `key` and equal group mean the same meeting. `axes` are the mesh axes the group spans;
    `peer` is the program of a transfer's other end (the rank at the same coordinate);
    `world` is a group of every rank of every program. `message_bytes` is the size of the whole
    message as collective libraries count it: the reduced tensor for all_reduce, the larger side
    for all_gather and reduce_scatter, the local tensor for all_to_all, send, recv and rotate (of
    which every member gets what the one before it in the group has). `bucketed`: it moves weights
    or their gradients, which travel in the buckets of the cluster's software. `copies`: how often
    the message holds every token, for experts of its choice, wherever these lie. `parts`: it
    sends so many of the actor's inputs, each by itself: what the members make of input i is output
    i. A collective of several parts is a *bucket*; `message_bytes` is their sum.
    """

    key: str
    kind: str  # of millrace.planner.collectives
    axes: tuple[str, ...] = ()
    peer: int | None = None
    world: bool = False
    reduction: str = ""
    message_bytes: int = 0
    bucketed: bool = False
    copies: TokenCopies = ALONE
    parts: int = 1


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One op of a fused actor.

    `inputs` and `outputs` are its operands as its labels list them, numbers of operands of the
    actor: first its inputs, then its outputs, then what is `inner`. `state` are places in the
    actor's `state`.
    """

    name: str
    kind: str
    labels: str
    attributes: dict[str, int | float | str | bool] = {}
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    state: tuple[int, ...] = ()


class Actor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One op, boxing step or end of a meeting, fired `firings` times a step.

    `state` are registers that only this actor touches and updates in place (Adam's moments). Where
    they lie in host memory they pass through the register `buffer`, piece by piece.
    `in_place`: the op's first operand is the version before the one it writes, found in the same
    slot (a variable under its optimizer), so no input port reads it. A collective sends as many of
    its first inputs as its meeting has parts; further ones only say what it waits for.

    A fused actor computes several ops, its `parts` in their order; its kind lists theirs, joined by
    plus signs. What one part makes for another alone is `inner`: it has a shape and a dtype but no
    place, for a backend need not write it down. A fused actor that is `in_place` updates all its
    outputs so, and its parts say which operand they read.
    """

    name: str
    kind: str
    queues: tuple[int, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    firings: int
    labels: str = ""
    attributes: dict[str, int | float | str | bool] = {}
    phase: str = "forward"
    block: str = ""
    state: tuple[int, ...] = ()
    buffer: int | None = None
    in_place: bool = False
    meeting: Meeting | None = None
    parts: tuple[Part, ...] = ()
    inner: tuple[Register, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the ops that it computes."""
        return tuple(part.kind for part in self.parts) or (self.kind,)

    @property
    def updates(self) -> tuple[Port, ...]:
        """Outputs whose previous version the actor reads."""
        if not self.in_place:
            return ()
        return self.outputs if self.parts else self.outputs[:1]

    @property
    def reads_first_output(self) -> bool:
        """True if the labels list its first output as the first input."""
        return self.in_place and not self.parts

    @property
    def read(self) -> tuple[Port, ...]:
        """Inputs whose content the actor reads; for the others it only waits."""
        return self.inputs if self.meeting is None else self.inputs[: self.meeting.parts]


class Queue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An in-order lane: `order` lists the actors of one step's firings."""

    name: str
    leave: Leave
    order: tuple[int, ...]


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Program of every rank of one device class; `ranks` in row-major order of the mesh."""

    name: str
    stage: int
    ranks: tuple[int, ...]
    registers: tuple[Register, ...]
    actors: tuple[Actor, ...]
    queues: tuple[Queue, ...]

    def operands(self, actor: Actor) -> tuple[tuple[Register, ...], tuple[Register, ...]]:
        """Registers of an actor's input and output operands, as its labels list them."""
        outputs = tuple(self.registers[port.register] for port in actor.outputs)
        inputs = tuple(self.registers[port.register] for port in actor.inputs)
        return ((outputs[0], *inputs) if actor.reads_first_output else inputs), outputs

    def all_operands(self, actor: Actor) -> tuple[Register, ...]:
        """Registers that the parts of a fused actor number: inputs, outputs and inner ones."""
        ports = (*actor.inputs, *actor.outputs)
        return (*(self.registers[port.register] for port in ports), *actor.inner)

    @property
    def memory_bytes(self) -> int:
        """Size of the device's arena: the end of the last register."""
        return _end(register for register in self.registers if register.memory_kind != HOST)

    @property
    def host_bytes(self) -> int:
        """Size of the arena in the memory of the node."""
        return _end(register for register in self.registers if register.memory_kind == HOST)

    @property
    def memory_bytes_by_kind(self) -> dict[str, int]:
        """The arena's bytes by kind; they add up to `memory_bytes`."""
        kind_bytes: dict[str, int] = {}
        ends: dict[int, int] = {}  # bytes counted of places that registers share, by their offset
        for register in self.registers:
            size, before = register.size_bytes, kind_bytes.get(register.memory_kind, 0)
            if register.memory_kind in (HOST, LENT):
                continue
            if register.places:
                end = ends.get(register.offset_bytes, 0)
                size = max(size - end, 0)
                ends[register.offset_bytes] = end + size
            if register.memory_kind == TEMPORARY:
                kind_bytes[TEMPORARY] = max(before, register.offset_bytes + size)
            else:
                kind_bytes[register.memory_kind] = before + size
        return dict(sorted(kind_bytes.items()))


def _end(registers: Iterable[Register]) -> int:
    return max((r.offset_bytes + r.size_bytes for r in registers), default=0)


class ActorGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One program per device class over the mesh `axes` that every stage shares."""

    schema_version: Annotated[int, msgspec.Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = (
        SCHEMA_VERSION
    )
    name: str
    axes: tuple[Axis, ...]
    programs: tuple[Program, ...]

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """Sizes of the mesh axes, outer first."""
        return tuple(axis.size for axis in self.axes)

    @property
    def ranks(self) -> int:
        """Number of ranks over all programs."""
        return sum(len(program.ranks) for program in self.programs)

    def program_of(self, rank: int) -> int:
        """Index of the program that `rank` runs."""
        return self._place(rank)[0]

    def _place(self, rank: int) -> tuple[int, int]:
        """Index of the program that `rank` runs, and its position among those that do."""
        for index, program in enumerate(self.programs):
            guess = rank - program.ranks[0]  # ranks follow one another, as a rule
            if 0 <= guess < len(program.ranks) and program.ranks[guess] == rank:
                return index, guess
        for index, program in enumerate(self.programs):
            if rank in program.ranks:
                return index, program.ranks.index(rank)
        raise ValueError(f"rank {rank} of {self.ranks}: no program lists it")

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Mesh coordinate of `rank` inside its stage."""
        _, position = self._place(rank)
        indices = []
        for size in reversed(self.axis_sizes):
            position, index = divmod(position, size)
            indices.append(index)
        return tuple(reversed(indices))

    def members(self, rank: int, meeting: Meeting) -> tuple[int, ...]:
        """Ranks of the meeting that `rank` takes part in, in the order of the group.

        A transfer lists the sender first.
        """
        if meeting.world:
            return tuple(sorted(r for program in self.programs for r in program.ranks))
        index, position = self._place(rank)
        if meeting.peer is not None:
            other = self.programs[meeting.peer].ranks[position]
            return (rank, other) if meeting.kind == "send" else (other, rank)
        strides = [prod(self.axis_sizes[i + 1 :]) for i in range(len(self.axes))]
        names = [axis.name for axis in self.axes]
        base = position
        members = [0]
        for axis in meeting.axes:
            axis_index = names.index(axis)
            size, stride = self.axis_sizes[axis_index], strides[axis_index]
            base -= (position // stride % size) * stride
            members = [member + k * stride for member in members for k in range(size)]
        return tuple(self.programs[index].ranks[base + member] for member in members)
