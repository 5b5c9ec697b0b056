"""Device listings: command buffers as text with every call of every command, without a device.

What `millrace.executor.streams.command_listing` says of slots is said here of bytes: a line per
call, in the order in which `millrace.executor.gpu.driver` issues them, its operands by region and
offset (`arena+0x1200`). So what would run on a GPU can be read, compared and kept where there is
none.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from millrace.executor.cuda.calls import (
    Argument,
    Attention,
    AttentionGrad,
    Bucket,
    Call,
    Clear,
    Collective,
    Convolution,
    CopyCall,
    KernelAlternatives,
    Launch,
    LibraryCall,
    Matrices,
    Operand,
    Pointers,
    ProductCall,
    Vector,
)
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.cuda.wording import described
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, RunState, SampleSource
from millrace.executor.streams.command_listing import command_line
from millrace.executor.streams.commands import Command, CommandBuffer, command_buffer
from millrace.executor.values.loading import float32_arithmetic
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.collectives import COLLECTIVES
from millrace.planner.compile import compile_plan
from millrace.planner.errors import PlanError
from millrace.planner.plan import Plan

INDENT = " " * 8


class Unread:
    """The samples of a run that is only listed: nobody reads them."""

    description = "nothing"

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Refuse: kernels of the host are made for a listing and never fired."""
        raise ExecutorError(f"a listing reads no `{source.name}`: run the plan instead")


def rank_listing(plan: Plan, rank: int) -> str:
    """Text of what one rank of a plan would issue to its GPU, ranks being one to a GPU.

    Parameters
    ----------
    plan
        The plan.
    rank
        The rank.

    Raises
    ------
    PlanError
        The plan has no such rank.
    ExecutorError
        An op has no kernel on a GPU; names it.
    """
    if not 0 <= rank < plan.ranks:
        rank_range = "only rank 0" if plan.ranks == 1 else f"ranks 0 to {plan.ranks - 1}"
        raise PlanError(f"the plan has no rank {rank}: it has {rank_range}")
    graph = compile_plan(plan)
    buffer = command_buffer(graph, (rank,))
    ranks = {rank: RankCalls(graph, rank, buffer, listed_run(plan))}
    return device_listing(graph, buffer, ranks)


def listed_run(plan: Plan) -> RunState:
    """State that a rank's kernels share where calls are only made, and no sample is read."""
    return RunState(
        seed=plan.seed,
        dataset=Unread(),
        global_batch=plan.global_batch,
        microbatches=plan.microbatches,
        batch=plan.batch,
        arithmetic=float32_arithmetic(plan.model),
    )


def device_listing(graph: ActorGraph, buffer: CommandBuffer, ranks: Mapping[int, RankCalls]) -> str:
    """Text of every call of every step of a buffer's period, in the order of the driver.

    First come the bytes of every region of every rank. Then every command has a line with its
    number, rank, stream, actor and firing, the commands it waits for, `records` where an event
    follows, and the other members of its meeting; under it is a line per call. The launches that
    end a step come last.

    Parameters
    ----------
    graph, buffer
        The actor graph, and the commands of some of its ranks.
    ranks
        The calls of each of these ranks.
    """
    lines = [
        f"{graph.name}: {', '.join(f'rank {rank}' for rank in buffer.ranks)} of {graph.ranks}, "
        f"{len(buffer.steps[0])} commands a step, slots repeat after "
        f"{'every step' if buffer.period == 1 else f'{buffer.period} steps'}"
    ]
    for rank, streams in zip(buffer.ranks, buffer.streams, strict=True):
        sizes = (f"{region} {size}" for region, size in ranks[rank].sizes.items())
        lines += [f"bytes of rank {rank}: {', '.join(sizes)}"]
        lines += [f"streams of rank {rank}: {', '.join(streams)}"]
    for step, commands in enumerate(buffer.steps):
        lines += ["", f"step {step}: all streams wait for the origin"]
        for number in range(len(commands)):
            lines += _command(graph, buffer, commands, number, ranks)
        lines += ["      the origin waits for all streams"]
        for rank, calls in ranks.items():
            lines += [f"      rank {rank} origin: the end of the step"]
            lines += [INDENT + line for line in _described(calls.finish(), rank, ())]
    return "\n".join(lines) + "\n"


def _command(
    graph: ActorGraph,
    buffer: CommandBuffer,
    commands: Sequence[Command],
    number: int,
    ranks: Mapping[int, RankCalls],
) -> Iterator[str]:
    """Yield the line of a command, and those of its calls."""
    command = commands[number]
    calls = ranks[command.rank]
    actor = calls.program.actors[command.actor]
    yield command_line(graph, buffer, commands, number, slots=False)
    members = () if actor.meeting is None else graph.members(command.rank, actor.meeting)
    peers = [(ranks[commands[peer].rank], commands[peer]) for peer in command.meets]
    for call in calls.located(command, peers):
        yield from (INDENT + line for line in _described(call, command.rank, members))


def _described(call: Call, rank: int, members: Sequence[int]) -> Iterator[str]:
    """Yield one call as one line; a choice as one line, and its options below it."""
    if not isinstance(call, KernelAlternatives):
        yield _line(call, rank, members)
        return
    yield f"one of {len(call.options)}:"
    for number, option in enumerate(call.options, 1):
        for option_call in option:
            yield from (f"  {number}: {line}" for line in _described(option_call, rank, members))


def _line(call: Call, rank: int, members: Sequence[int]) -> str:
    match call:
        case Launch():
            args = ", ".join(_argument(arg, rank) for arg in call.args)
            sizes = f"grid {_extent(call.grid)} block {_extent(call.block)}"
            if call.shared_bytes:
                sizes += f" shared {call.shared_bytes}"
            return f"{call.source}: {call.function} {sizes} ({args})"
        case ProductCall():
            how = f"m {call.m} n {call.n} k {call.k} batch {call.batch} in {call.arithmetic}"
            a, b, d = (_matrices(matrices, rank) for matrices in (call.a, call.b, call.d))
            equation = f"product {how}: {d} {'+=' if call.accumulate else '='} {a} x {b}"
            return "; ".join((equation, *_epilogue(call, rank)))
        case Clear():
            return f"clear {call.size_bytes} bytes: {_operand(call.target, rank)}"
        case CopyCall():
            source, target = _operand(call.source, rank), _operand(call.target, rank)
            return f"copy {call.size_bytes} bytes: {source} -> {target}"
        case Collective():
            kind = call.kind
            if COLLECTIVES[kind].reduces:
                kind += f" {call.reduction}"
            ends = f"{_operand(call.send, rank)} -> {_operand(call.recv, rank)}"
            among = ", ".join(map(str, members))
            return f"{kind} {call.elements} {call.dtype} among {among}: {ends}"
        case Bucket():
            parts = (_line(collective, rank, members) for collective in call.collectives)
            return f"at once: {'; '.join(parts)}"
        case Attention() | AttentionGrad() | Convolution():
            return _library_line(call, rank)
        case KernelAlternatives():
            raise AssertionError("a choice has a line for each of its calls")


def _library_line(call: LibraryCall, rank: int) -> str:
    tensors = ", ".join(
        f"{_operand(tensor.operand, rank)} {tensor.dtype} [{' '.join(map(str, tensor.strides))}]"
        for tensor in call.tensors
    )
    return f"library: {described(call)}: {tensors}"


def _epilogue(call: ProductCall, rank: int) -> Iterator[str]:
    """Yield the terms of a product beside the multiplication, in the order of their computation."""
    if call.c is not None:
        yield f"plus {_matrices(call.c, rank)}"
    if call.bias is not None:
        yield f"bias {_vector(call.bias, rank)}"
    if call.aux is not None and not call.slope:
        yield f"kept in {_matrices(call.aux, rank)}"
    if call.activation:
        yield call.activation
    if call.aux is not None and call.slope:
        yield f"slope of {call.slope} at {_matrices(call.aux, rank)}"


def _argument(arg: Argument, rank: int) -> str:
    if isinstance(arg, Pointers):
        return f"[{', '.join(_operand(operand, rank) for operand in arg.operands)}]"
    return _operand(arg, rank) if isinstance(arg, Operand) else f"{arg.dtype} {arg.item()}"


def _operand(operand: Operand, rank: int) -> str:
    """Region and offset; the rank too where the region is another's."""
    region = operand.role if operand.number == rank else f"rank {operand.number} {operand.role}"
    return f"{region}+{operand.offset_bytes:#x}" if operand.offset_bytes else region


def _matrices(matrices: Matrices, rank: int) -> str:
    strides = f"{matrices.batch_stride} {matrices.row_stride} {matrices.column_stride}"
    return f"{_operand(matrices.operand, rank)} {matrices.dtype} [{strides}]"


def _vector(vector: Vector, rank: int) -> str:
    return f"{_operand(vector.operand, rank)} {vector.dtype} [{vector.batch_stride}]"


def _extent(size: tuple[int, int, int]) -> str:
    """Sizes, without the trailing ones of 1: `4 x 2`, `256`."""
    used = max((axis for axis, extent in enumerate(size) if extent > 1), default=0) + 1
    return " x ".join(map(str, size[:used]))
