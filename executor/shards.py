"""Shards: where a rank's parts of tensors lie, and the contexts of its kernels, on any device."""

from abc import abstractmethod
from collections.abc import Sequence

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, FusedPart, KernelContext, RunState, Shard
from millrace.planner.actors.graph import HOST, Actor, ActorGraph, Part, Program, Register
from millrace.planner.sbp import parse_nd_sbp, shard_offsets


class RankShards:
    """One rank of an actor graph: its program, its place in the mesh, and its shards.

    Parameters
    ----------
    graph, rank
        The actor graph and which of its ranks this is.
    """

    def __init__(self, graph: ActorGraph, rank: int) -> None:
        self.graph, self.rank = graph, rank
        self.program: Program = graph.programs[graph.program_of(rank)]
        self.coordinate = graph.coordinate(rank)

    def shard(self, register: Register) -> Shard:
        """Shard of a register's tensor on this rank: where it begins, and how large it is."""
        return Shard(
            global_shape=register.global_shape,
            offsets=shard_offsets(
                register.global_shape,
                parse_nd_sbp(register.sbp),
                self.graph.axis_sizes,
                self.coordinate,
            ),
            shape=register.shape,
            dtype=register.dtype,
            pitch=register.pitch,
        )

    def context(
        self,
        actor: Actor,
        run: RunState,
        *,
        state: Sequence[Array] = (),
        buffer: Array | None = None,
    ) -> KernelContext:
        """Context of the kernel of a local actor; arrays where the backend has any."""
        inputs, outputs = self.program.operands(actor)
        passes = None if actor.buffer is None else self.program.registers[actor.buffer]
        updated = self.program.registers[actor.outputs[0].register] if actor.in_place else None
        return KernelContext(
            kind=actor.kind,
            name=actor.name,
            labels=actor.labels,
            attributes=actor.attributes,
            inputs=tuple(self.shard(register) for register in inputs),
            outputs=tuple(self.shard(register) for register in outputs),
            run=run,
            output_hold=actor.outputs[0].hold if actor.outputs else 1,
            input_sbp=tuple(parse_nd_sbp(register.sbp) for register in inputs),
            output_sbp=tuple(parse_nd_sbp(register.sbp) for register in outputs),
            coordinate=self.coordinate,
            axis_sizes=self.graph.axis_sizes,
            state=state,
            buffer=buffer,
            buffer_bytes=0 if passes is None else passes.slot_bytes,
            variable_in_host=updated is not None and updated.memory_kind == HOST,
            parts=tuple(self._part(actor, part, run, state) for part in actor.parts),
            inner=tuple(self.shard(register) for register in actor.inner),
        )

    def _part(self, actor: Actor, part: Part, run: RunState, state: Sequence[Array]) -> FusedPart:
        """Context and operands of the kernel of one op of a fused actor."""
        operands = self.program.all_operands(actor)
        inputs = [operands[number] for number in part.inputs]
        outputs = [operands[number] for number in part.outputs]
        ports = (*actor.inputs, *actor.outputs)
        first = part.outputs[0]
        return FusedPart(
            context=KernelContext(
                kind=part.kind,
                name=part.name,
                labels=part.labels,
                attributes=part.attributes,
                inputs=tuple(self.shard(register) for register in inputs),
                outputs=tuple(self.shard(register) for register in outputs),
                run=run,
                output_hold=ports[first].hold if first < len(ports) else 1,
                input_sbp=tuple(parse_nd_sbp(register.sbp) for register in inputs),
                output_sbp=tuple(parse_nd_sbp(register.sbp) for register in outputs),
                coordinate=self.coordinate,
                axis_sizes=self.graph.axis_sizes,
                state=tuple(state[number] for number in part.state) if state else (),
            ),
            inputs=part.inputs,
            outputs=part.outputs,
            state=part.state,
        )


class RankValues(RankShards):
    """A rank whose registers hold values, wherever they lie; read and written between steps.

    Parameters
    ----------
    graph, rank
        The actor graph and which of its ranks this is.
    run
        What the kernels of this rank share.
    """

    def __init__(self, graph: ActorGraph, rank: int, run: RunState | None = None) -> None:
        super().__init__(graph, rank)
        self._run = run

    @property
    def run_state(self) -> RunState:
        """State that the kernels of this rank share."""
        if self._run is None:
            raise ExecutorError("this rank runs no kernels", rank=self.rank)
        return self._run

    @abstractmethod
    def write(self, register: int, slot: int, values: Array) -> None:
        """Write this rank's shard into a slot."""

    @abstractmethod
    def value(self, register: int, slot: int) -> Array:
        """Shard of this rank as a slot holds it."""

    def load(self, register: int, values: Array, version: int = 0) -> None:
        """Write this rank's shard of a whole tensor into the slot of `version`."""
        target = self.program.registers[register]
        if values.shape != target.global_shape:
            raise ExecutorError(
                f"`{target.tensor}` has shape {target.global_shape} in the plan, but a value of "
                f"shape {values.shape} was given"
            )
        shard = self.shard(target)
        region = tuple(
            slice(start, start + size)
            for start, size in zip(shard.offsets, shard.shape, strict=True)
        )
        self.write(register, version % target.slots, values[region])
