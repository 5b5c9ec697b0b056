"""Muon: calls of the momentum's direction, of Newton and Schulz' rounds, and of the update.

Shape legend: r rows, c columns of a matrix; s the shorter of both.
"""

from itertools import accumulate

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    CONTROL,
    Call,
    Calls,
    Launch,
    Matrices,
    Operand,
    ProductCall,
    aligned,
    elementwise,
    read,
    same_calls,
    state,
    types,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.context import CallsFactory
from millrace.executor.cuda.kernels.matmul import arithmetic_of
from millrace.executor.cuda.kernels.pieces import HostArray, in_pieces, offset_by
from millrace.executor.kernels.context import KernelContext
from millrace.executor.kernels.dims import bind_operand_dims
from millrace.models.graph import ITEMSIZE
from millrace.models.ops.orthogonal import COEFFICIENTS, EPSILON, matrix_sizes

SOURCE = "muon"
PART_ELEMENTS = 16 * BLOCK_THREADS  # of a matrix, of whose squares a block adds up
PARTS_MAX = 1024  # blocks of a matrix


def momentum(context: KernelContext) -> Calls:
    """Calls of the direction of Nesterov's momentum, of (gradient sum, totals)."""
    gradient, totals = context.inputs
    (direction,) = context.outputs
    values = (
        np.float64(context.number("momentum", 0.0)),
        np.float64(context.number("clip_norm", 0.0)),
    )
    name = "momentum" + types(gradient.dtype, totals.dtype, direction.dtype, gradient.dtype)

    def launch(start: int, count: int, velocity: Operand) -> Launch:
        slope = offset_by(read(0), start * ITEMSIZE[gradient.dtype])
        target = offset_by(write(0), start * ITEMSIZE[direction.dtype])
        return elementwise(SOURCE, name, count, CONTROL, slope, read(1), target, velocity, *values)

    if not context.buffer_bytes:
        return same_calls(launch(0, gradient.size, state(0)))
    velocities = HostArray(state(0), ITEMSIZE[gradient.dtype], state(0))

    def work(start: int, count: int, places: tuple[Operand, ...]) -> tuple[Call, ...]:
        return (launch(start, count, places[0]),)

    pieces = in_pieces(context.name, gradient.size, [velocities], context.buffer_bytes, work)
    return same_calls(*pieces)


def newton_schulz(context: KernelContext) -> Calls:
    """Calls of the matrices near a direction whose singular values are about one.

    A round is the products A = X Xᵀ, A A and (a I + b A + c A A) X, with X turned where it is tall.
    """
    (direction,) = context.inputs
    dtype, item = direction.dtype, ITEMSIZE[direction.dtype]
    bound = bind_operand_dims(context).sizes
    batch, r, c = map(int, matrix_sizes(context.labels, context.attributes, bound))
    s, size = min(r, c), r * c
    parts = min(-(-size // PART_ELEMENTS), PARTS_MAX)
    rooms = [8 * batch * parts, *(item * batch * size,) * 2, *(item * batch * s * s,) * 2]
    ends = list(accumulate(map(aligned, rooms), initial=0))
    sums, *places, gram, square = map(workspace, ends[:-1])
    arithmetic = arithmetic_of(dtype, context.run)

    def matrices(operand: Operand, turned: bool) -> Matrices:
        return Matrices(operand, dtype, *((1, c) if turned else (c, 1)), size)

    def symmetric(operand: Operand) -> Matrices:
        return Matrices(operand, dtype, s, 1, s * s)

    grid = (parts, batch, 1)
    block, length = (BLOCK_THREADS, 1, 1), np.int64(size)
    calls: list[Call] = [
        Launch(SOURCE, "matrix_squares" + types(dtype), grid, block, (read(0), sums, length)),
        Launch(
            SOURCE, "normalised" + types(dtype), grid, block,
            (read(0), sums, places[0], np.float64(EPSILON), length),
        ),
    ]  # fmt: skip
    rounds = int(context.number("rounds", 0))
    coefficients = tuple(map(np.float64, COEFFICIENTS))
    for index in range(rounds):
        x = places[index % 2]
        target = write(0) if index == rounds - 1 else places[1 - index % 2]
        tall = r > c
        a, p = symmetric(gram), symmetric(square)
        sides = (matrices(x, tall), matrices(x, not tall))
        calls += [
            ProductCall(*sides, a, s, s, max(r, c), batch, arithmetic),
            ProductCall(a, a, p, s, s, s, batch, arithmetic),
            elementwise(
                SOURCE, "polynomial" + types(dtype), batch * s * s,
                gram, square, *coefficients, np.int64(s),
            ),
            ProductCall(
                *((matrices(x, False), a) if tall else (a, matrices(x, False))),
                matrices(target, False), r, c, s, batch, arithmetic,
            ),
        ]  # fmt: skip
    return same_calls(*calls, workspace_bytes=ends[-1])


def muon(context: KernelContext) -> Calls:
    """Calls of the next value of a variable, of (w, direction, totals, learning rate)."""
    w, direction = context.inputs[:2]
    values = (
        np.float64(context.number("rate_factor", 1.0)),
        np.float64(context.number("weight_decay", 0.0)),
    )
    name = "muon" + types(*(shard.dtype for shard in context.inputs))

    def launch(start: int, count: int, before: Operand, after: Operand) -> Launch:
        change = offset_by(read(1), start * ITEMSIZE[direction.dtype])
        operands = (CONTROL, before, change, read(2), read(3), after)
        return elementwise(SOURCE, name, count, *operands, *values)

    if not context.variable_in_host:
        return same_calls(launch(0, w.size, read(0), write(0)))

    def work(start: int, count: int, places: tuple[Operand, ...]) -> tuple[Call, ...]:
        return (launch(start, count, places[0], places[0]),)

    variable = HostArray(read(0), ITEMSIZE[w.dtype], write(0))
    return same_calls(*in_pieces(context.name, w.size, [variable], context.buffer_bytes, work))


MUON: dict[str, CallsFactory] = {
    "momentum": momentum,
    "muon": muon,
    "newton_schulz": newton_schulz,
}
