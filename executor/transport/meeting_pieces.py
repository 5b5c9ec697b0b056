"""Pieces: what the members of a meeting receive, cut by who has it first, and into chunks.

A piece is a block that one member sends (`all_gather`, `all_to_all`, a transfer), or that one
member adds up for itself (`reduce_scatter`) or for all (`all_reduce`). What crosses the network is
cut into chunks, so that one can be added up while the next travels. Nothing here knows arrays.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from millrace.planner.collectives import COLLECTIVES, IN_PLACE_BYTES_MIN, ROTATE

SMALL_BYTES = IN_PLACE_BYTES_MIN  # an all_reduce below this is added up by every member for itself
CHUNK_BYTES = 2**19
CHUNKS_MIN = 8  # a piece is cut into so many, unless chunks would be too small
CHUNK_BYTES_MIN = 2**16

Index = tuple[int | slice, ...]


class Cut(NamedTuple):
    """Block `block` of `blocks` along `dim` of a register; its elements in one row if it is flat.

    Without a dim it is the register, cut into nothing.
    """

    dim: int | None = None
    blocks: int = 1
    block: int = 0
    flat: bool = True


class PartShape(NamedTuple):
    """Shape of what one member sends and receives in a part, and bytes of an element.

    A member that only sends or only receives has the one shape twice.
    """

    sent: tuple[int, ...]
    received: tuple[int, ...]
    item_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Member of a meeting among the others.

    Attributes
    ----------
    kind, reduction
        Those of the meeting.
    position
        This member, in the order of the group.
    hosts
        Host of every member, by any number.
    scatter_dim, gather_dim
        By part, as an `Exchange` has them.
    shapes
        By part.
    """

    kind: str
    reduction: str
    position: int
    hosts: tuple[int, ...]
    scatter_dims: tuple[int | None, ...]
    gather_dims: tuple[int | None, ...]
    shapes: tuple[PartShape, ...]

    def on_host(self, host: int) -> tuple[int, ...]:
        """Members on a host."""
        return tuple(member for member, place in enumerate(self.hosts) if place == host)

    def speaker(self, host: int, piece: int) -> int:
        """Member that sends and receives a piece for its host."""
        if self.hosts[piece] == host:
            return piece
        members = self.on_host(host)
        return members[piece % len(members)]


class Piece(NamedTuple):
    """Piece of a part: the member that has it first, and all that receive it.

    It is the owner's own, or, if it is reduced, made of what all members send.
    """

    part: int
    number: int
    owner: int
    receivers: tuple[int, ...]
    reduces: bool
    sent: Cut
    received: Cut
    region: Index
    chunks: tuple[Index, ...]
    shape: tuple[int, ...]  # of its block


def pieces_of(party: Party, part: int, chunk_bytes: int, small_bytes: int) -> Iterator[Piece]:
    """Pieces of a part, in one order on all members."""
    kind, shape, count = COLLECTIVES[party.kind], party.shapes[part], len(party.hosts)
    everyone, uncut = tuple(range(count)), Cut()

    def piece(
        number: int,
        owner: int,
        receivers: tuple[int, ...],
        sent: Cut = uncut,
        received: Cut = uncut,
        stretch: slice | None = None,
    ) -> Piece:
        block = shape.received if received.dim is None else shape.sent
        if sent.dim is not None and received.dim is not None:
            block = _block_shape(shape.sent, sent)
        is_flat = _in_one_row(shape.sent, sent) and _in_one_row(shape.received, received)
        if is_flat:
            block = (prod(block),)
        index: Index = (stretch or slice(0, block[0]),) if is_flat else ()
        away = everyone if kind.reduces else receivers
        crosses = any(party.hosts[member] != party.hosts[owner] for member in (*away, *receivers))
        chunks: tuple[Index, ...] = (index,)
        if crosses and is_flat:
            chunks = tuple(_stretches(index[0], shape.item_bytes, chunk_bytes))
        elif crosses:
            chunks = tuple(_slabs(block, shape.item_bytes, chunk_bytes))
        return Piece(
            part,
            number,
            owner,
            receivers,
            kind.reduces,
            sent._replace(flat=is_flat),
            received._replace(flat=is_flat),
            index,
            chunks,
            block,
        )

    scatter_dim, gather_dim = party.scatter_dims[part], party.gather_dims[part]
    if kind.point_to_point:
        yield piece(0, 0, (1,))
    elif kind.name == ROTATE:
        for member in everyone:
            yield piece(member, member, ((member + 1) % count,))
    elif kind.reduces and kind.scatters:
        for member in everyone:
            yield piece(member, member, (member,), sent=Cut(scatter_dim, count, member))
    elif kind.reduces:
        size = prod(shape.received)
        is_small = size * shape.item_bytes < small_bytes
        for member in everyone:
            if is_small:
                yield piece(member, member, (member,))
            else:
                stretch = slice(size * member // count, size * (member + 1) // count)
                yield piece(member, member, everyone, stretch=stretch)
    elif not kind.scatters:
        for member in everyone:
            yield piece(member, member, everyone, received=Cut(gather_dim, count, member))
    else:
        for member in everyone:
            for other in everyone:
                cuts = Cut(scatter_dim, count, other), Cut(gather_dim, count, member)
                yield piece(member * count + other, member, (other,), *cuts)


def _block_shape(shape: tuple[int, ...], cut: Cut) -> tuple[int, ...]:
    if cut.dim is None:
        return shape
    return (*shape[: cut.dim], shape[cut.dim] // cut.blocks, *shape[cut.dim + 1 :])


def _in_one_row(shape: tuple[int, ...], cut: Cut) -> bool:
    """True if the bytes of a block of a register of this shape lie one behind the other."""
    return cut.dim is None or cut.blocks == 1 or prod(shape[: cut.dim]) == 1


def _stretches(stretch: int | slice, item_bytes: int, chunk_bytes: int) -> Iterator[Index]:
    """Chunks of elements in a row."""
    assert isinstance(stretch, slice)
    size_bytes = (stretch.stop - stretch.start) * item_bytes
    chunk_bytes = min(chunk_bytes, max(size_bytes // CHUNKS_MIN, CHUNK_BYTES_MIN))
    step = max(1, chunk_bytes // item_bytes)
    for start in range(stretch.start, stretch.stop, step):
        yield (slice(start, min(start + step, stretch.stop)),)


def _slabs(shape: tuple[int, ...], item_bytes: int, chunk_bytes: int) -> Iterator[Index]:
    """Chunks of a block whose bytes lie apart: some rows of the first dim whose rows are small."""
    row_bytes = [prod(shape[axis + 1 :]) * item_bytes for axis in range(len(shape))]
    axis = next(axis for axis, size_bytes in enumerate(row_bytes) if size_bytes <= chunk_bytes)
    step = max(1, chunk_bytes // max(1, row_bytes[axis]))
    for first in product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], step):
            yield (*first, slice(start, min(start + step, shape[axis])))


def chunk_shape(piece: Piece, chunk: Index) -> tuple[int, ...]:
    """Shape of a chunk, without the dims of which it has a single row."""
    last = chunk[-1]
    assert isinstance(last, slice)
    return (last.stop - last.start, *piece.shape[len(chunk) :])


def is_contiguous(cut: Cut) -> bool:
    """True if the bytes of a chunk of such a cut lie one behind the other."""
    return cut.flat or cut.dim is None
