"""Rounds of an op on a ring (`millrace.planner.ring_attention`) as actors, and their rotations.

Round j works on the block that rotation j brought; rotation j + 1 hands the same block on at the
same time. The block of round j + 2 takes the place of that of round j, so a device never holds more
than two blocks that are not its own: rotation j + 2 waits for round j, and since it sends what
rotation j + 1 brought, the block of round j has been handed on by then.

The first rotation waits for whatever tells the arena in which section it runs: its own block where
that was made there, else another input that was, else the first round.
"""

from collections.abc import Sequence
from math import prod

from millrace.models.graph import ITEMSIZE, Tensor
from millrace.planner.actors.graph import Meeting, Port
from millrace.planner.collectives import ROTATE
from millrace.planner.compile.placement import PlacedOp
from millrace.planner.compile.stage_ir import ActorIR, Section, StageIR
from millrace.planner.mesh import Mesh
from millrace.planner.ring_attention import RINGS
from millrace.planner.sbp import NdSbp

TOGETHER = ("R", "B")  # parts that run in one section


def lower_rounds(
    draft: StageIR,
    placed: PlacedOp,
    tensors: dict[str, Tensor],
    mesh: Mesh,
    section: Section,
    firings: int,
    inputs: Sequence[int],
) -> tuple[int, ...]:
    """Add the actors of one op on a ring; return the registers of its outputs.

    Parameters
    ----------
    draft
        The op's stage.
    placed, tensors, mesh
        The op, its tensors by name, and the mesh.
    section, firings
        Of all its actors.
    inputs
        The registers that it reads.
    """
    return _Rounds(draft, placed, tensors, mesh, section, firings, inputs).lower()


class _Rounds:
    """The rounds of one op while they are added."""

    def __init__(
        self,
        draft: StageIR,
        placed: PlacedOp,
        tensors: dict[str, Tensor],
        mesh: Mesh,
        section: Section,
        firings: int,
        inputs: Sequence[int],
    ) -> None:
        self.draft, self.op, self.mesh = draft, placed.op, mesh
        self.section, self.firings = section, firings
        self.ring = RINGS[placed.op.kind]
        axes = self.ring.axes(placed.inputs)
        self.names = tuple(mesh.names[axis] for axis in axes)
        self.size = prod(mesh.sizes[axis] for axis in axes)
        self.inputs = list(inputs)
        self.input_sbp, self.output_sbp = placed.inputs, placed.outputs
        self.input_tensors = [tensors[name] for name in placed.op.inputs]
        self.output_tensors = [tensors[name] for name in placed.op.outputs]
        self.dtypes = self.ring.dtypes([tensor.dtype for tensor in self.output_tensors])
        self.blocks = {operand: [inputs[operand]] for operand in self.ring.travelling}
        self.done: list[int] = []  # per round, a small register that tells that it is done
        self.outputs: list[int] = []

    def lower(self) -> tuple[int, ...]:
        if self.size == 1:
            self._round(0)
            return tuple(self.outputs)
        begin, can_begin = self._begin()
        for number in range(self.size):
            arrived = {
                output: self._rotate_sum(output, number, self.outputs[output], "")
                for output in (self.ring.returning if number else ())
            }
            if can_begin and number < self.size - 1:
                self._hand_on(number, begin)
            self._round(number)
            for output, register in arrived.items():
                self.outputs[output] = self._add(output, number, register)
            self.done.append(self.outputs[-1])
            if not can_begin:
                self._hand_on(number, self.done[0])
                can_begin = True
        for output in self.ring.returning:
            name = self.op.outputs[output]
            self.outputs[output] = self._rotate_sum(output, self.size, self.outputs[output], name)
        return tuple(self.outputs)

    def _begin(self) -> tuple[int | None, bool]:
        """Register that the first rotation waits for beside its block; False: the first round."""

        def here(register: int) -> int:
            """The actor of the compute queue that makes a register in this section; -1: none."""
            index = self.draft.producer.get(register, -1)
            actor = self.draft.actors[index]
            parts = {actor.section[0], self.section[0]}
            same = actor.section == self.section or parts <= set(TOGETHER)
            return index if index >= 0 and actor.lane == "compute" and same else -1

        if all(here(blocks[0]) >= 0 for blocks in self.blocks.values()):
            return None, True
        latest = max(self.inputs, key=here)
        return latest, here(latest) >= 0

    def _round(self, number: int) -> None:
        """Work on the blocks that the last rotation brought."""
        reads = list(self.inputs)
        for operand, blocks in self.blocks.items():
            reads[operand] = blocks[number]
        labels, attributes = self.op.labels, dict(self.op.attributes)
        if number:
            reads += [self.outputs[output] for output in self.ring.carried]
            labels, attributes["round"] = self.ring.labels(labels), number
        self.outputs = []
        for output, tensor in enumerate(self.output_tensors):
            last = number == self.size - 1 and output not in self.ring.returning
            name = tensor.name if last else f"{self.op.name}.out{output} of round {number}"
            dtype = tensor.dtype if last else self.dtypes[output]
            self.outputs.append(self._register(name, tensor, dtype, self.output_sbp[output]))
        self._actor(
            f"{self.op.name}: round {number}",
            self.ring.later if number else self.op.kind,
            reads,
            self.outputs,
            labels,
            attributes,
        )

    def _hand_on(self, number: int, begin: int | None) -> None:
        """Send the blocks of a round to the next device."""
        for operand, blocks in self.blocks.items():
            wait = begin if number == 0 else self.done[number - 1] if number > 1 else None
            name = f"{self.op.name}.in{operand}"
            tensor, sbp = self.input_tensors[operand], self.input_sbp[operand]
            block = self._register(f"{name} of round {number + 1}", tensor, tensor.dtype, sbp)
            self._rotate(f"{name}: round {number} -> {number + 1}", blocks[-1], block, wait)
            if number > 1:
                behind = blocks[number - 1]
                self.draft.places[block] = self.draft.places.get(behind, behind)
            blocks.append(block)

    def _rotate_sum(self, output: int, number: int, register: int, name: str) -> int:
        """Send what returns to the next device, where the blocks it belongs to are by now."""
        tensor = self.output_tensors[output]
        prefix = f"{self.op.name}.out{output}"
        name = name or f"{prefix} for round {number}"
        arrived = self._register(name, tensor, self.dtypes[output], self.output_sbp[output])
        self._rotate(f"{prefix}: round {number - 1} -> {number}", register, arrived, None)
        return arrived

    def _add(self, output: int, number: int, arrived: int) -> int:
        name = f"{self.op.name}.out{output} up to round {number}"
        total = self._register(
            name, self.output_tensors[output], self.dtypes[output], self.output_sbp[output]
        )
        labels = self.ring.adding(self.op.labels, output)
        self._actor(
            f"{self.op.name}.out{output}: sum of round {number}",
            "add",
            [arrived, self.outputs[output]],
            [total],
            labels,
            {},
        )
        return total

    def _rotate(self, name: str, source: int, target: int, wait: int | None) -> None:
        """Add a rotation; what it waits for is a second input that it does not send."""
        register = self.draft.registers[source]
        local = prod(register.shape) * ITEMSIZE[register.dtype]
        waits = () if wait is None else (Port(register=wait),)
        self.draft.add_actor(
            ActorIR(
                name=name,
                kind=ROTATE,
                section=self.section,
                firings=self.firings,
                inputs=(Port(register=source), *waits),
                outputs=(Port(register=target),),
                block=self.op.block,
                meeting=Meeting(key=name, kind=ROTATE, axes=self.names, message_bytes=local),
                lane="+".join(self.names),
            )
        )

    def _actor(
        self,
        name: str,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        labels: str,
        attributes: dict[str, int | float | str | bool],
    ) -> None:
        self.draft.add_actor(
            ActorIR(
                name=name,
                kind=kind,
                section=self.section,
                firings=self.firings,
                inputs=tuple(Port(register=register) for register in inputs),
                outputs=tuple(Port(register=register) for register in outputs),
                labels=labels,
                attributes=attributes,
                block=self.op.block,
            )
        )

    def _register(self, name: str, tensor: Tensor, dtype: str, sbp: NdSbp) -> int:
        return self.draft.add_register(
            name=name,
            tensor=name,
            shape=tensor.shape,
            dtype=dtype,
            sbp=sbp,
            memory_kind="activation",
        )
