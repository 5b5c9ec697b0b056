"""What a driver asks of a transport, and how the two ends of a meeting lie in memory.

Collectives move *blocks*: equal contiguous pieces, one per member, in the group's order. Where a
tensor is cut along dim 0 its memory is already a row of blocks; along another dim the blocks are
copied through a staging buffer that is made once.

Shapes: `pre` dims before the cut dim, `parts` members, `block` size of the cut dim on one member,
`post` dims after it.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from executor.arena import numpy_dtype
from executor.errors import ExecutorError
from planner.actors.graph import ActorGraph, Register
from planner.actors.protocol import Fire
from planner.sbp import parse_nd_sbp

Array = NDArray[Any]
Done = Callable[[Fire], None]
Failed = Callable[[int, Fire | None, BaseException], None]


class Communicator(Protocol):
    """Carries out the meetings of the ranks of this process.

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


class Blocks:
    """A tensor of `shape` seen as `parts` blocks along `dim`, staged where memory is not so."""

    def __init__(self, shape: tuple[int, ...], dim: int, parts: int, dtype: np.dtype[Any]) -> None:
        pre, post = prod(shape[:dim]), prod(shape[dim + 1 :])
        self._strided = (pre, parts, shape[dim] // parts, post)
        self._staging: Array | None = None
        if pre > 1 and parts > 1:
            self._staging = np.empty((parts, pre, shape[dim] // parts, post), dtype)

    @property
    def staging_bytes(self) -> int:
        """Bytes of the staging buffer; 0 where none is needed."""
        return 0 if self._staging is None else self._staging.nbytes

    def contiguous(self, view: Array) -> Array:
        """Return a buffer in block order of the size of `view`, without its values."""
        return view if self._staging is None else self._staging

    def packed(self, view: Array) -> Array:
        """Return the values of `view` in block order."""
        if self._staging is None:
            return view
        np.copyto(self._staging, view.reshape(self._strided).swapaxes(0, 1))
        return self._staging

    def unpack(self, view: Array) -> None:
        """Write the values of the buffer that `contiguous` gave into `view`."""
        if self._staging is not None:
            np.copyto(view.reshape(self._strided).swapaxes(0, 1), self._staging)


class Exchange:
    """One rank's part in one meeting actor: the group, its place there, and the memory layout.

    Attributes
    ----------
    kind, key, reduction
        Those of the meeting.
    members
        Ranks of the group in its order.
    position
        Index of this rank among them.

    Raises
    ------
    ExecutorError
        The registers' sbp do not describe the meeting (no dim, or more than one, is cut over it).
    """

    def __init__(self, graph: ActorGraph, rank: int, actor: int) -> None:
        program = graph.programs[graph.program_of(rank)]
        node = program.actors[actor]
        if node.meeting is None:
            raise ExecutorError(f"actor `{node.name}` meets nobody", rank=rank)
        meeting = node.meeting
        self.name, self.kind, self.key = node.name, meeting.kind, meeting.key
        self.reduction = meeting.reduction or "sum"
        self.members = graph.members(rank, meeting)
        self.position = self.members.index(rank)
        self._axes = tuple(
            index
            for index, axis in enumerate(graph.axes)
            if axis.name in meeting.axes and axis.size > 1
        )
        send = [program.registers[port.register] for port in node.inputs]
        recv = [program.registers[port.register] for port in node.outputs]
        self._outgoing = self._incoming = None
        if len(self.members) > 1 and self.kind in ("reduce_scatter", "all_to_all"):
            self._outgoing = self._blocks(send[0], self._cut_dim(recv[0]))
        if len(self.members) > 1 and self.kind in ("all_gather", "all_to_all"):
            self._incoming = self._blocks(recv[0], self._cut_dim(send[0]))

    @property
    def staging_bytes(self) -> int:
        """Bytes of staging buffers, which come on top of the arena."""
        return sum(b.staging_bytes for b in (self._outgoing, self._incoming) if b is not None)

    def outgoing(self, send: Array) -> Array:
        """Return what this rank sends, as contiguous blocks in the order of the members."""
        return send if self._outgoing is None else self._outgoing.packed(send)

    def incoming(self, recv: Array) -> Array:
        """Return the buffer in which to receive, in the order of the members."""
        return recv if self._incoming is None else self._incoming.contiguous(recv)

    def deliver(self, recv: Array) -> None:
        """Put what has arrived in the buffer of `incoming` in its place in `recv`."""
        if self._incoming is not None:
            self._incoming.unpack(recv)

    def _cut_dim(self, register: Register) -> int:
        """The dim of `register` that is split over every axis of the meeting."""
        sbp = parse_nd_sbp(register.sbp)
        cuts = {sbp[axis] for axis in self._axes}
        if len(cuts) != 1 or not (cut := cuts.pop()).is_split:
            raise ExecutorError(
                f"actor `{self.name}`: {self.kind} expects one dim of `{register.name}` to be "
                f"split over its axes, found {register.sbp}"
            )
        return cut.dim

    def _blocks(self, register: Register, dim: int) -> Blocks:
        return Blocks(register.shape, dim, len(self.members), numpy_dtype(register))


def exchanges_of(graph: ActorGraph, rank: int) -> dict[int, Exchange]:
    """Return the exchange of every meeting actor of `rank`, by actor index."""
    program = graph.programs[graph.program_of(rank)]
    return {
        index: Exchange(graph, rank, index)
        for index, actor in enumerate(program.actors)
        if actor.meeting is not None
    }
