"""Chunk arrays: what the places of a route are in memory, and what is added up there."""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from millrace.executor.transport.communicator import Exchange, RankArrays, block
from millrace.executor.transport.meeting_pieces import CHUNK_BYTES, PartShape, Party
from millrace.executor.transport.reductions import reduce_into
from millrace.executor.transport.routes import Place, Step, Store
from millrace.models.arrays import Array
from millrace.planner.actors.protocol import Fire

# Register that a member on this host sends (or receives) in a part, given like what.
Neighbour = Callable[[Fire, int, Store, int, Array], Array]


class _MeetingArrays(NamedTuple):
    """Meeting under way: its firing and arrays, and the buffers that it has been lent."""

    fire: Fire
    position: int
    sent: list[Array]
    received: list[Array]
    buffers: dict[int, Array]


class ChunkArrays:
    """Arrays of one rank's meetings under way.

    Parameters
    ----------
    memory
        The rank's arrays and exchanges.
    neighbour
        Called as `neighbour(fire, member, store, part, like)` for the register of a member on this
        host, in the shape of `like`: the same array again for the same register.
    """

    def __init__(self, memory: RankArrays, neighbour: Neighbour) -> None:
        self._memory, self._neighbour = memory, neighbour
        self._moving: dict[int, _MeetingArrays] = {}
        self._free: list[Array] = []
        self._views: dict[tuple[int, int], Array] = {}

    def begin(self, fire: Fire) -> None:
        """Take note of the firing of a meeting actor that is under way from now on."""
        sent, received = self._memory.arrays(fire)
        position = self._memory.exchanges[fire.actor][0].position
        self._moving[fire.actor] = _MeetingArrays(fire, position, sent, received, {})

    def end(self, actor: int) -> Fire:
        """Take note that it is over; returns the firing."""
        moved = self._moving.pop(actor)
        self._free += moved.buffers.values()
        return moved.fire

    def fire(self, actor: int) -> Fire:
        """Firing of an actor that is under way."""
        return self._moving[actor].fire

    def array(self, actor: int, place: Place) -> Array:
        """View of a place."""
        moving = self._moving[actor]
        if place.store is Store.STAGING:
            return self._buffer(moving, place)
        sent, received = moving.sent, moving.received
        registers = sent if place.store is Store.SENT else received
        if place.member == moving.position:
            register = registers[place.part]
        else:
            like = (registers or sent or received)[place.part]
            register = self._neighbour(moving.fire, place.member, place.store, place.part, like)
        # Registers and routes last as long as this does.
        view = self._views.get((id(register), id(place)))
        if view is None:
            cut = place.cut
            view = block(register, cut.dim, cut.blocks, cut.block)
            view = (view.reshape(-1) if cut.flat else view)[place.region]
            self._views[id(register), id(place)] = view
        return view

    def reduce(self, actor: int, step: Step) -> None:
        """Add up, or copy, what a step does."""
        assert step.target is not None
        target = self.array(actor, step.target)
        if len(step.sources) == 1:
            source = self.array(actor, step.sources[0])
            np.copyto(target, source.reshape(target.shape))
            return
        terms = [self.array(actor, source).reshape(target.shape) for source in step.sources]
        reduce_into(target, terms, step.reduction, step.spans)

    def _buffer(self, moving: _MeetingArrays, place: Place) -> Array:
        dtype = (moving.sent or moving.received)[place.part].dtype
        size_bytes = prod(place.shape) * dtype.itemsize
        buffer = moving.buffers.get(place.member)
        if buffer is None or buffer.nbytes < size_bytes:
            large = size_bytes > CHUNK_BYTES
            fresh = not self._free or large
            buffer = np.empty(max(size_bytes, CHUNK_BYTES), np.uint8) if fresh else self._free.pop()
            moving.buffers[place.member] = buffer
        return buffer[:size_bytes].view(dtype).reshape(place.shape)


def party_of(exchanges: tuple[Exchange, ...], hosts: tuple[int, ...], arrays: Any) -> Party:
    """Party of a meeting, given the hosts of all ranks and what this one sends and receives."""
    first = exchanges[0]
    sent, received = arrays
    shapes = tuple(
        PartShape(
            (sent or received)[part].shape,
            (received or sent)[part].shape,
            (sent or received)[part].itemsize,
        )
        for part in range(len(exchanges))
    )
    return Party(
        kind=first.kind,
        reduction=first.reduction,
        position=first.position,
        hosts=tuple(hosts[rank] for rank in first.members),
        scatter_dims=tuple(exchange.scatter_dim for exchange in exchanges),
        gather_dims=tuple(exchange.gather_dim for exchange in exchanges),
        shapes=shapes,
    )
