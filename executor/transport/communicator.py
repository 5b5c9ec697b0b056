"""Communicators: what a driver asks of a transport, and what members of a meeting receive.

A meeting is told by what a member receives: a sum of what all send, blocks of it put side by side,
one block of each, or all that one of them sends. Blocks lie along one dim, in the order of the
group. Each part of a bucket is such an exchange by itself, so that what it gives is to the bit what
it would give alone; a transport moves them together.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.transport.reductions import reduce_into
from millrace.models.arrays import Array
from millrace.planner.actors.graph import ActorGraph, Register
from millrace.planner.actors.protocol import Fire
from millrace.planner.collectives import COLLECTIVES, ROTATE
from millrace.planner.sbp import parse_nd_sbp

Done = Callable[[Fire], None]
Failed = Callable[[int, Fire | None, BaseException], None]


class Communicator(Protocol):
    """Communicator of the ranks of this process, whose meetings it carries out.

    Calls of one rank are posted in the order of its launch queue; `post` returns at once, and
    `done(fire)` is called later, from a thread of the communicator, when the data has moved.
    """

    def start(self, failed: Failed) -> None:
        """Begin; `failed(rank, fire, error)` is called if a meeting cannot be carried out."""
        ...

    def post(self, rank: int, fire: Fire, done: Done) -> None:
        """Hand over one firing of a meeting actor of `rank`."""
        ...

    def close(self) -> None:
        """End the communicator's threads; calls still under way are dropped."""
        ...


class RankArrays(Protocol):
    """Arrays of the rank that a transport serves (`millrace.executor.rank.RankMemory`)."""

    @property
    def rank(self) -> int:
        """Number of the rank in the actor graph."""
        ...

    @property
    def exchanges(self) -> Mapping[int, tuple["Exchange", ...]]:
        """Exchange of every part of every meeting actor, by actor index."""
        ...

    def arrays(self, fire: Fire) -> tuple[list[Array], list[Array]]:
        """Arrays that a firing reads and writes."""
        ...


class Exchange:
    """One rank's share in a part of a meeting: the group, its place there, and how blocks lie.

    Parameters
    ----------
    graph, rank, actor
        The rank's meeting actor.
    part
        Which of its parts: the number of the input that is sent, and of the output.

    Attributes
    ----------
    kind, key, reduction
        Those of the meeting.
    members
        Ranks of the group in its order.
    position
        Index of this rank among them.
    others
        The members without this rank.
    readers
        The members that receive some of what this one sends, without this rank.
    gather_dim
        Dim of what is received along which the members' blocks are put side by side, if they are.
    scatter_dim
        Dim of what is sent along which it is cut into a block for every member, if it is.

    Raises
    ------
    ExecutorError
        The backend has no such meeting, or the registers' sbp do not describe it (no dim, or more
        than one, is cut over its axes).
    """

    def __init__(self, graph: ActorGraph, rank: int, actor: int, part: int = 0) -> None:
        program = graph.programs[graph.program_of(rank)]
        node = program.actors[actor]
        if node.meeting is None:
            raise ExecutorError(f"actor `{node.name}` meets nobody", rank=rank)
        meeting = node.meeting
        self.name, self.kind, self.key = node.name, meeting.kind, meeting.key
        if self.kind not in RECEIVED:
            raise ExecutorError(f"the NumPy backend has no {self.kind}", actor=self.name)
        self.reduction = meeting.reduction or "sum"
        self.members = graph.members(rank, meeting)
        self.position = self.members.index(rank)
        self.others = self.members[: self.position] + self.members[self.position + 1 :]
        self.readers = self.others
        if COLLECTIVES[self.kind].point_to_point:
            self.readers = self.members[1:] if self.position == 0 else ()
        elif self.kind == ROTATE and self.others:
            self.readers = (self.members[(self.position + 1) % len(self.members)],)
        self._axes = tuple(
            index
            for index, axis in enumerate(graph.axes)
            if axis.name in meeting.axes and axis.size > 1
        )
        send = [program.registers[port.register] for port in node.inputs]
        recv = [program.registers[port.register] for port in node.outputs]
        self.gather_dim = self.scatter_dim = None
        if len(self.members) > 1 and COLLECTIVES[self.kind].gathers:
            self.gather_dim = self._cut_dim(send[part])
        if len(self.members) > 1 and COLLECTIVES[self.kind].scatters:
            self.scatter_dim = self._cut_dim(recv[part])

    def _cut_dim(self, register: Register) -> int:
        """Dim of `register` that is split over every axis of the meeting."""
        sbp = parse_nd_sbp(register.sbp)
        cuts = {sbp[axis] for axis in self._axes}
        if len(cuts) != 1 or not (cut := cuts.pop()).is_split:
            raise ExecutorError(
                f"actor `{self.name}`: {self.kind} expects one dim of `{register.name}` to be "
                f"split over its axes, found {register.sbp}"
            )
        return cut.dim


def exchanges_of(graph: ActorGraph, rank: int) -> dict[int, tuple[Exchange, ...]]:
    """Exchange of every part of every meeting actor of `rank`, by actor index."""
    program = graph.programs[graph.program_of(rank)]
    return {
        index: tuple(Exchange(graph, rank, index, part) for part in range(actor.meeting.parts))
        for index, actor in enumerate(program.actors)
        if actor.meeting is not None
    }


def meeting_keys(graph: ActorGraph) -> dict[str, int]:
    """Number of every meeting key, the same on all ranks."""
    keys = {
        actor.meeting.key
        for program in graph.programs
        for actor in program.actors
        if actor.meeting is not None
    }
    return {key: number for number, key in enumerate(sorted(keys))}


def receive(exchange: Exchange, sends: Sequence[Array], recv: Array) -> None:
    """Write into `recv` what this member receives, given what every member sends, in order.

    All members get the same bits, since reductions have one order (`reduce_into`).
    """
    RECEIVED[exchange.kind](exchange, sends, recv)


def block(array: Array, dim: int | None, parts: int, index: int) -> Array:
    """Block `index` of `parts` along `dim` as a view; all of it where nothing is cut."""
    if dim is None:
        return array
    size = array.shape[dim] // parts
    part = slice(index * size, (index + 1) * size)
    return array[(slice(None),) * dim + (part,)]


def _reduced(exchange: Exchange, sends: Sequence[Array], recv: Array) -> None:
    count, position = len(sends), exchange.position
    terms = [block(send, exchange.scatter_dim, count, position) for send in sends]
    reduce_into(recv, terms, exchange.reduction)


def _gathered(exchange: Exchange, sends: Sequence[Array], recv: Array) -> None:
    count, position = len(sends), exchange.position
    for index, send in enumerate(sends):
        target = block(recv, exchange.gather_dim, count, index)
        np.copyto(target, block(send, exchange.scatter_dim, count, position))


def _transferred(exchange: Exchange, sends: Sequence[Array], recv: Array) -> None:
    np.copyto(recv, sends[0])


def _rotated(exchange: Exchange, sends: Sequence[Array], recv: Array) -> None:
    np.copyto(recv, sends[exchange.position - 1])


RECEIVED: dict[str, Callable[[Exchange, Sequence[Array], Array], None]] = {
    "all_reduce": _reduced,
    "reduce_scatter": _reduced,
    "all_gather": _gathered,
    "all_to_all": _gathered,
    "send": _transferred,
    "recv": _transferred,
    "rotate": _rotated,
}
