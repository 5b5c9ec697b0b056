"""Calls of meetings: by a library of flat collectives, or between members on one device.

A library knows contiguous elements only, blocks of members one after the other. Where the dim that
is cut is not the outermost (of more than one element), blocks are packed into the workspace before
the collective, or unpacked from there after it. Members on one device read each other's blocks
where they lie.

The parts of a bucket are given to a library at once (`Bucket`), each where it lies: NCCL puts what
stands between the start and the end of a group in one launch (NCCL user guide, "Group Calls":
aggregated operations, since 2.2), a kernel in a captured graph like any other. Nothing is copied
into one buffer and back, which would cost that buffer and its bytes' way through memory twice.

What a member receives is what `millrace.executor.transport.communicator.receive` says. Sums of
16-bit values are rounded after each member that is added, here as on every hop of a library's ring.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import (
    TYPES,
    Bucket,
    Call,
    Calls,
    Collective,
    CopyCall,
    Launch,
    Operand,
    aligned,
    elementwise,
    peer,
    read,
    same_calls,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.pieces import offset_by
from millrace.executor.transport.communicator import Exchange
from millrace.models.graph import ITEMSIZE
from millrace.planner.collectives import COLLECTIVES, ROTATE

Shape = tuple[int, ...]

SOURCE = "meetings"
JOINS = {"sum": "Add", "max": "Largest"}
UNIT_BYTES = (16, 8, 4, 2)  # bytes that a thread may move at once


class MemberBlocks(NamedTuple):
    """Cut of a tensor along a dim into a block per member.

    Parameters
    ----------
    run_count
        Contiguous runs of elements in a block: one where only dims of size 1 come before the dim.
    run
        Elements of a run.
    parts
        Blocks.
    """

    run_count: int
    run: int
    parts: int

    @property
    def stride(self) -> int:
        """Elements from one run of a block to the next."""
        return self.run * self.parts

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return self.run_count * self.run


def cut_of(shape: Shape, dim: int | None, parts: int) -> MemberBlocks:
    """Cut of a tensor along `dim`; one block that is all of it where nothing is cut."""
    if dim is None:
        return MemberBlocks(1, prod(shape), 1)
    return MemberBlocks(prod(shape[:dim]), prod(shape[dim:]) // parts, parts)


def collective_calls(
    exchange: Exchange, send_shape: Shape | None, recv_shape: Shape | None, dtype: str
) -> Calls:
    """Calls of one member of a meeting, by a library of flat collectives.

    Parameters
    ----------
    exchange
        The member's part in the meeting.
    send_shape, recv_shape
        Shapes of its two registers; None where it sends or receives nothing.
    dtype
        Dtype of both.
    """
    kind, members = exchange.kind, len(exchange.members)
    if send_shape is None or recv_shape is None:
        only, shape = (read(0), send_shape) if recv_shape is None else (write(0), recv_shape)
        return same_calls(Collective(kind, only, only, prod(shape or ()), dtype))
    if members == 1:
        return same_calls(_copy(read(0), write(0), recv_shape, dtype))
    scatter = cut_of(send_shape, exchange.scatter_dim, members)
    gather = cut_of(recv_shape, exchange.gather_dim, members)
    source, target, used_bytes = read(0), write(0), 0
    before: list[Call] = []
    after: list[Call] = []
    if scatter.run_count > 1:
        source = workspace()
        used_bytes = aligned(_size_bytes(send_shape, dtype))
        before.append(_transposed(read(0), source, scatter.run_count, members, scatter.run, dtype))
    if gather.run_count > 1:
        target = workspace(used_bytes)
        used_bytes += aligned(_size_bytes(recv_shape, dtype))
        after.append(_transposed(target, write(0), members, gather.run_count, gather.run, dtype))
    # The elements are one block of the send register: what a member keeps, sends to each, or sends.
    meeting = Collective(kind, source, target, scatter.elements, dtype, exchange.reduction)
    return same_calls(*before, meeting, *after, workspace_bytes=used_bytes)


def loopback_calls(
    exchange: Exchange, send_shape: Shape | None, recv_shape: Shape | None, dtype: str
) -> Calls:
    """Calls of one member of a meeting whose members all lie on one device.

    It reads what the others send (`peer(0)`, `peer(1)`, … in the order of the group; of a transfer
    `peer(0)` is the sender's) and writes its own register. All members' send registers must be
    filled before the first call, and be kept until every member's last.

    Parameters
    ----------
    exchange
        The member's part in the meeting.
    send_shape, recv_shape
        Shapes of its two registers; None where it sends or receives nothing.
    dtype
        Dtype of both.
    """
    if recv_shape is None:
        return same_calls()
    members, position = len(exchange.members), exchange.position
    kind = COLLECTIVES[exchange.kind]
    if kind.point_to_point or send_shape is None:
        return same_calls(_copy(peer(0), write(0), recv_shape, dtype))
    if kind.name == ROTATE:
        return same_calls(_copy(peer((position - 1) % members), write(0), recv_shape, dtype))
    itemsize = ITEMSIZE[dtype]
    scatter = cut_of(send_shape, exchange.scatter_dim, members)
    offset_bytes = position * scatter.run * itemsize if scatter.parts > 1 else 0
    blocks = [offset_by(peer(member), offset_bytes) for member in range(members)]
    if kind.reduces:
        first, *others = blocks
        contiguous = MemberBlocks(1, scatter.elements, 1)
        join = f"join_block<{TYPES[dtype]}, {JOINS[exchange.reduction]}>"
        how = (write(0), np.int64(scatter.run), np.int64(scatter.stride))
        return same_calls(
            _moved(first, write(0), scatter, contiguous, dtype),
            *(elementwise(SOURCE, join, scatter.elements, other, *how) for other in others),
        )
    gather = cut_of(recv_shape, exchange.gather_dim, members)
    return same_calls(
        *(
            _moved(
                block, offset_by(write(0), member * gather.run * itemsize), scatter, gather, dtype
            )
            for member, block in enumerate(blocks)
        )
    )


def bucket_calls(parts: Sequence[Calls]) -> Calls:
    """Calls of a meeting, given those of each of its parts by itself.

    Parameters
    ----------
    parts
        Calls by `collective_calls` or `loopback_calls`: the same in every firing.
    """
    if len(parts) == 1:
        return parts[0]
    before: list[Call] = []
    together: list[Collective] = []
    after: list[Call] = []
    used_bytes = 0
    for number, part in enumerate(parts):
        end = before
        for call in part.of(0):
            part_call = _of_part(call, number, used_bytes)
            if isinstance(part_call, Collective):
                together.append(part_call)
                end = after
            else:
                end.append(part_call)
        used_bytes += aligned(part.workspace_bytes)
    meeting = (Bucket(tuple(together)),) if together else ()
    return same_calls(*before, *meeting, *after, workspace_bytes=used_bytes)


def _of_part(call: Call, part: int, workspace_bytes: int) -> Call:
    """Call of a part by itself, with the operands and the workspace that it has in a bucket."""

    def place(operand: Operand) -> Operand:
        match operand.role:
            case "read" | "write":
                return operand._replace(number=part)
            case "peer":
                return operand._replace(part=part)
            case "workspace":
                return operand._replace(offset_bytes=operand.offset_bytes + workspace_bytes)
        return operand

    return bind(call, place)


def _moved(
    source: Operand, target: Operand, before: MemberBlocks, after: MemberBlocks, dtype: str
) -> Call:
    """Call that copies a block that lies as `before` says to where it lies as `after` says."""
    if before.run_count == after.run_count == 1:
        return CopyCall(source, target, before.run * ITEMSIZE[dtype])
    unit = _unit_bytes(before.run, after.run, dtype)
    extents = [
        np.int64(elements * ITEMSIZE[dtype] // unit)
        for elements in (before.run, before.stride, after.run, after.stride)
    ]
    count = before.elements * ITEMSIZE[dtype] // unit
    return elementwise(SOURCE, f"move_block<bytes{unit}>", count, source, target, *extents)


def _transposed(
    source: Operand, target: Operand, outer: int, inner: int, length: int, dtype: str
) -> Launch:
    """Launch that brings blocks from [outer, inner, length] to [inner, outer, length]."""
    unit = _unit_bytes(length, length, dtype)
    units = length * ITEMSIZE[dtype] // unit
    sizes = (np.int64(outer), np.int64(inner), np.int64(units))
    name = f"transpose_blocks<bytes{unit}>"
    return elementwise(SOURCE, name, outer * inner * units, source, target, *sizes)


def _unit_bytes(run: int, other: int, dtype: str) -> int:
    """Bytes of the widest unit that divides both runs, hence every place at which one begins."""
    itemsize = ITEMSIZE[dtype]
    return next(
        unit for unit in UNIT_BYTES if not run * itemsize % unit and not other * itemsize % unit
    )


def _copy(source: Operand, target: Operand, shape: Shape, dtype: str) -> CopyCall:
    return CopyCall(source, target, _size_bytes(shape, dtype))


def _size_bytes(shape: Shape, dtype: str) -> int:
    return prod(shape) * ITEMSIZE[dtype]
