"""One rank's calls: what each of its commands does, and the memory that takes, without a device.

Memory is cut into regions of a rank: the `arena` of its registers and the `host` arena, as the
compiler laid them out; and beside them one `workspace` per stream, the `tables` of constants, the
`stage` (two halves that steps take in turn, into which samples are copied while the step before
runs), the `control` block and the `history` of steps, which the host reads. A located operand is
`Operand(region, rank, offset_bytes)`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from math import floor, log2, prod

import numpy as np
from numpy.typing import NDArray

from millrace.executor.cuda.binding import bind, leaves
from millrace.executor.cuda.calls import CONTROL, Call, Calls, Launch, Operand, aligned
from millrace.executor.cuda.communication_calls import (
    bucket_calls,
    collective_calls,
    loopback_calls,
)
from millrace.executor.cuda.control import (
    CONTROL_DTYPE,
    HISTORY_FIELDS,
    control_bytes,
    finish_step_call,
)
from millrace.executor.cuda.kernels.fused.siblings import stacked_calls
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.source import stage_dtype
from millrace.executor.cuda.products import with_cuts
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import Kernel, RunState, make_kernel
from millrace.executor.kernels.context import Array, KernelContext
from millrace.executor.shards import RankShards
from millrace.executor.streams.commands import Command, CommandBuffer
from millrace.executor.transport.communicator import Exchange, exchanges_of
from millrace.models.ops import kinds_where
from millrace.planner.actors.graph import HOST, Actor, ActorGraph, Port

HISTORY_STEPS = 64  # rows; the host reads each before it is overwritten
# Kinds that read the totals of the step, as their second input.
UPDATES = kinds_where(lambda row: row.updates)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedInput:
    """Values that the host copies to the stage for one firing of an `input` actor.

    `read(firing, (), (values,))` fills values of `shape` and `dtype`, which go to `offset_bytes` of
    a half.
    """

    actor: int
    firing: int
    offset_bytes: int
    shape: tuple[int, ...]
    dtype: str
    read: Kernel

    @property
    def size_bytes(self) -> int:
        """Bytes in the stage."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


class RankCalls(RankShards):
    """The calls of one rank of a command buffer.

    Parameters
    ----------
    graph, rank
        The actor graph, and the number of this rank in it.
    buffer
        The command buffer that the rank is in.
    run
        State that the kernels of this rank share.

    Attributes
    ----------
    sizes
        Bytes of every region.
    tables
        Constants, by their offset in `tables`.
    inputs
        Inputs that the host stages for a step.
    exchanges
        The rank's exchange of every part of every meeting actor, by actor index.

    Raises
    ------
    ExecutorError
        An op has no kernel on a GPU, or not for these labels, shapes or dtypes; names it. Or the
        rank scales a loss and could not learn that a step was skipped.
    """

    def __init__(self, graph: ActorGraph, rank: int, buffer: CommandBuffer, run: RunState) -> None:
        super().__init__(graph, rank)
        self._buffer, self.run_state = buffer, run
        self._check_scale()
        self.exchanges: dict[int, tuple[Exchange, ...]] = exchanges_of(graph, rank)
        self._calls = [self._actor_calls(index) for index in range(len(self.program.actors))]
        self.tables, self._table_offsets, table_bytes = self._tabled()
        self._workspaces, workspace_bytes = self._scratch()
        self.inputs, self._half_bytes = self._staged()
        self._stage_offsets = {
            (staged.actor, staged.firing): staged.offset_bytes for staged in self.inputs
        }
        self.sizes: Mapping[str, int] = {
            "arena": self.program.memory_bytes,
            "host": self.program.host_bytes,
            "workspace": workspace_bytes,
            "tables": table_bytes,
            "stage": 2 * self._half_bytes,
            "control": CONTROL_DTYPE.itemsize,
            "history": HISTORY_STEPS * len(HISTORY_FIELDS) * 8,
        }

    def region_operand(self, region: str, offset_bytes: int = 0) -> Operand:
        """Operand located in one of this rank's regions."""
        return Operand(region, self.rank, offset_bytes)

    def register_at(self, register: int, slot: int) -> Operand:
        """Place of a slot of a register."""
        entry = self.program.registers[register]
        region = "host" if entry.memory_kind == HOST else "arena"
        return self.region_operand(region, entry.start_bytes(slot))

    def located(
        self, command: Command, peers: Sequence[tuple["RankCalls", Command]] = ()
    ) -> tuple[Call, ...]:
        """Calls of a command, in the order of its stream.

        Parameters
        ----------
        command
            A command of this rank.
        peers
            Members of the meeting in the order of its group, where all live on this device.
        """
        actor = self.program.actors[command.actor]
        reads = [self.register_at(p.register, s) for p, s in _slots(actor.inputs, command.reads)]
        writes = [self.register_at(p.register, s) for p, s in _slots(actor.outputs, command.writes)]
        if actor.reads_first_output:
            reads.insert(0, writes[0])

        def place(operand: Operand) -> Operand:
            base = self._base(operand, command, reads, writes, peers)
            return base._replace(offset_bytes=base.offset_bytes + operand.offset_bytes)

        calls = tuple(bind(call, place) for call in self._calls[command.actor].of(command.firing))
        return tuple(with_cuts(call) for call in (stacked_calls(calls) if actor.parts else calls))

    def _base(
        self,
        operand: Operand,
        command: Command,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        peers: Sequence[tuple["RankCalls", Command]],
    ) -> Operand:
        """Place at which what an operand names begins."""
        actor = self.program.actors[command.actor]
        match operand.role:
            case "read":
                return reads[operand.number]
            case "write":
                return writes[operand.number]
            case "state":
                return self.register_at(actor.state[operand.number], 0)
            case "buffer":
                assert actor.buffer is not None
                return self.register_at(actor.buffer, 0)
            case "workspace":
                return self.region_operand("workspace", self._workspaces[command.stream])
            case "table":
                return self.region_operand(
                    "tables", self._table_offsets[command.actor][operand.number]
                )
            case "stage":
                offset = self._stage_offsets[command.actor, command.firing]
                return self.region_operand("stage", offset + operand.number * self._half_bytes)
            case "control":
                return self.region_operand("control")
            case "peer":
                calls, other = peers[operand.number]
                port = calls.program.actors[other.actor].inputs[operand.part]
                return calls.register_at(port.register, other.reads[operand.part])
        raise ExecutorError(f"no operand has the role `{operand.role}`", actor=actor.name)

    @property
    def totals(self) -> Port | None:
        """Register with the totals of a step when it ends; None where nothing is updated."""
        return next((a.inputs[1] for a in self.program.actors if a.kind in UPDATES), None)

    def finish(self) -> Call:
        """Located launch that ends a step: totals to the history, clocks on by one."""
        where, dtype = None, "float32"
        if (port := self.totals) is not None:
            where = self.register_at(port.register, 0)
            dtype = self.program.registers[port.register].dtype
        launch = finish_step_call(where, dtype, self.region_operand("history"), HISTORY_STEPS)
        return bind(
            launch,
            lambda operand: self.region_operand("control") if operand == CONTROL else operand,
        )

    def _check_scale(self) -> None:
        """Refuse a rank whose loss scale would not follow that of the others.

        Where gradients are not finite the scale halves, which a rank reads from the totals that its
        variables are updated by.
        """
        scaled = (a.name for a in self.program.actors if a.attributes.get("loss_scaled"))
        if self.totals is None and (name := next(scaled, None)) is not None:
            raise ExecutorError(
                "multiplies the loss by the loss scale on a rank that updates no variables, and "
                "would not learn that a step was skipped: train in bf16, or with fewer stages",
                rank=self.rank,
                actor=name,
            )

    def control(self) -> NDArray[np.uint8]:
        """Bytes of `Control` before the first step, the same on every rank.

        In fp16 the loss scale is that of a mean over the tokens of a microbatch, for gradients
        here are those of sums.
        """
        first = self.run_state.first_step
        scaled = [
            program.operands(actor)[1][0].global_shape
            for program in self.graph.programs
            for actor in program.actors
            if actor.attributes.get("loss_scaled")
        ]
        if not scaled:
            return np.frombuffer(control_bytes(first, "fp32"), np.uint8)
        rows = max(prod(shape[:-1]) for shape in scaled)
        scale = 2.0 ** floor(log2(self.run_state.loss_scale / rows))
        return np.frombuffer(control_bytes(first, "fp16", loss_scale=scale), np.uint8)

    def functions(self) -> dict[str, set[str]]:
        """Functions that the rank may launch, by source."""
        functions_by_source: dict[str, set[str]] = {}
        for call in leaves(*self.all_calls()):
            if isinstance(call, Launch):
                functions_by_source.setdefault(call.source, set()).add(call.function)
        return functions_by_source

    def all_calls(self) -> Iterator[Call]:
        """Yield every call of a step, not located."""
        for actor, calls in zip(self.program.actors, self._calls, strict=True):
            for firing in range(actor.firings):
                yield from calls.of(firing)
        yield self.finish()

    def _actor_calls(self, index: int) -> Calls:
        actor = self.program.actors[index]
        if actor.meeting is None:
            return make_calls(self.context(actor, self.run_state))
        inputs, outputs = self.program.operands(actor)
        parts = []
        for part, exchange in enumerate(self.exchanges[index]):
            send, recv = inputs[part] if inputs else None, outputs[part] if outputs else None
            make = loopback_calls if self._is_on_one_device(exchange) else collective_calls
            calls = make(
                exchange,
                None if send is None else send.shape,
                None if recv is None else recv.shape,
                (recv or inputs[part]).dtype,
            )
            parts.append(calls)
        return bucket_calls(parts)

    def _is_on_one_device(self, exchange: Exchange) -> bool:
        """True if all members of a meeting live on this device."""
        return set(exchange.members) <= set(self._buffer.ranks)

    def _tabled(self) -> tuple[list[tuple[int, Array]], list[list[int]], int]:
        """Tables of all actors by offset, each content once, the actors' offsets, and all bytes."""
        tables: list[tuple[int, Array]] = []
        offset_by_digest: dict[bytes, int] = {}
        offsets: list[list[int]] = []
        end = 0
        for calls in self._calls:
            places = []
            for table in calls.tables:
                content = np.ascontiguousarray(table).tobytes()
                digest = sha256(content).digest()
                if digest not in offset_by_digest:
                    offset_by_digest[digest] = end
                    tables.append((end, np.frombuffer(content, np.uint8)))
                    end += aligned(len(content))
                places.append(offset_by_digest[digest])
            offsets.append(places)
        return tables, offsets, end

    def _scratch(self) -> tuple[list[int], int]:
        """Offsets of the streams' workspaces, each as large as an actor needs, and all bytes."""
        sizes = [0] * len(self._buffer.streams[self._buffer.ranks.index(self.rank)])
        for step in self._buffer.steps:
            for command in step:
                if command.rank == self.rank:
                    needed = self._calls[command.actor].workspace_bytes
                    sizes[command.stream] = max(sizes[command.stream], needed)
        *starts, end = accumulate(map(aligned, sizes), initial=0)
        return starts, end

    def _staged(self) -> tuple[tuple[StagedInput, ...], int]:
        """Inputs of a half of the stage, one per firing of every `input` actor, and its bytes."""
        staged_inputs: list[StagedInput] = []
        end = 0
        for index, actor in enumerate(self.program.actors):
            if actor.kind != "input":
                continue
            context = self._host_context(actor)
            (shard,), read = context.outputs, make_kernel(context)
            for firing in range(actor.firings):
                staged = StagedInput(
                    actor=index,
                    firing=firing,
                    offset_bytes=end,
                    shape=shard.shape,
                    dtype=shard.dtype,
                    read=read,
                )
                staged_inputs.append(staged)
                end += aligned(staged.size_bytes)
        return tuple(staged_inputs), end

    def _host_context(self, actor: Actor) -> KernelContext:
        """Context of the host's kernel of an `input` actor, with dtypes as the stage has them."""
        context = self.context(actor, self.run_state)
        outputs = tuple(replace(shard, dtype=stage_dtype(shard.dtype)) for shard in context.outputs)
        return replace(context, outputs=outputs)


def _slots(ports: Sequence[Port], slots: Sequence[int]) -> Iterator[tuple[Port, int]]:
    return zip(ports, slots, strict=True)
