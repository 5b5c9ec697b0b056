"""Pieces of arrays in host memory, which pass through a buffer of the device one by one."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from millrace.executor.cuda.calls import BUFFER, Call, CopyCall, Operand
from millrace.executor.errors import ExecutorError

ALIGNMENT_BYTES = 16  # alignment of an array's part of the buffer: a thread's widest load
PIECE_UNIT = 8  # elements: pieces of tensors of 16 bits begin on 16 bytes too


class HostArray(NamedTuple):
    """An array in host memory of which a kernel reads every element, at the element's own place.

    Parameters
    ----------
    source
        Place of the array.
    itemsize
        Bytes of an element.
    target
        Place to which what the kernel leaves in the buffer is copied; None: the kernel only reads.
    """

    source: Operand
    itemsize: int
    target: Operand | None = None


Work = Callable[[int, int, tuple[Operand, ...]], Sequence[Call]]
"""`work(start, count, arrays)`: the calls on elements from `start` on; where each array's lie."""


def offset_by(operand: Operand, size_bytes: int) -> Operand:
    """Operand from so many bytes on."""
    return operand._replace(offset_bytes=operand.offset_bytes + size_bytes)


def in_pieces(
    name: str, count: int, arrays: Sequence[HostArray], buffer_bytes: int, work: Work
) -> tuple[Call, ...]:
    """Calls that bring `count` elements of every array in, work on them, and copy them back.

    Every array has an equal part of the buffer; a piece is as long as such a part holds. One piece
    is under way at a time, as `millrace.planner.costs.host_transfers` counts.

    Parameters
    ----------
    name
        The actor's name.
    count
        Elements of each array.
    arrays
        Arrays that pass through.
    buffer_bytes
        Size of the buffer.
    work
        Makes the calls on one piece.

    Raises
    ------
    ExecutorError
        The buffer holds less of each than all of a small array, or `PIECE_UNIT` elements.
    """
    itemsize = max(array.itemsize for array in arrays)
    least = ceil(min(count, PIECE_UNIT) * itemsize / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    share = buffer_bytes // len(arrays) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    length = share // itemsize
    if length < count:
        length -= length % PIECE_UNIT
    if share < least:
        raise ExecutorError(
            f"a buffer for {len(arrays)} arrays needs {len(arrays) * least} bytes or more, found "
            f"{buffer_bytes}; compile the plan again",
            actor=name,
        )
    places = tuple(offset_by(BUFFER, number * share) for number in range(len(arrays)))
    calls: list[Call] = []
    for start in range(0, count, length):
        size = min(length, count - start)
        for array, place in zip(arrays, places, strict=True):
            source = offset_by(array.source, start * array.itemsize)
            calls.append(CopyCall(source, place, size * array.itemsize))
        calls.extend(work(start, size, places))
        for array, place in zip(arrays, places, strict=True):
            if array.target is not None:
                target = offset_by(array.target, start * array.itemsize)
                calls.append(CopyCall(place, target, size * array.itemsize))
    return tuple(calls)
