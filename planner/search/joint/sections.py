"""Sections: how much of a microbatch is alive at once within one block, as rows of the program.

A tensor is alive from the op that makes it to its last reader in the section, and so is every place
that boxing takes it through: `millrace.planner.memory.SectionPeaks`, whose rules these are.
Whether a place is alive up to some reader is a column, at least one where boxing for that reader,
or a later one, passes through it.

Shapes: a flow's arrays are [boxings], pairs of a source and a target state; states are numbers of
`sbp_codes`, columns those of the program.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from millrace.models.arrays import Ints
from millrace.models.graph import ITEMSIZE, Op, Rate
from millrace.planner.boxing import boxing_path
from millrace.planner.sbp import local_size
from millrace.planner.search.blocks.sbp_codes import number_of, sbp_of
from millrace.planner.search.joint.parts import Cell, Mode
from millrace.planner.search.joint.stage_rows import StageRows


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Flow:
    """Boxing for one use: columns `w` from source states to target states."""

    source: Ints
    target: Ints
    columns: Ints


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockReading:
    """An op of the block that reads a tensor, and the state that each of its options wants."""

    op_index: int
    choice: int
    option_states: Ints
    later: bool


class SectionRows:
    """Rows of one cell: bytes alive at every op of its block.

    Parameters
    ----------
    stages : StageRows
    mode : Mode
        The cell's.
    cell : Cell
    flows : dict
        Boxing by (tensor, choice that reads it, the states that its options want).
    """

    def __init__(
        self,
        stages: StageRows,
        mode: Mode,
        cell: Cell,
        flows: dict[tuple[str, int, bytes], Flow],
    ) -> None:
        self.stages = stages
        self.mode = mode
        self.cell = cell
        self.flows = flows
        space = mode.space
        self.choice_of = {
            op_options.op.name: (number, op_options)
            for number in cell.first
            for op_options in space.choices[number].ops
        }
        self.ops: list[Op] = [op for op in space.folded.ops if op.name in self.choice_of]
        self.later = [op.phase.is_backward for op in self.ops]
        # Per op: columns, and the bytes of what is alive there where they are one.
        self.alive: list[list[tuple[Ints, Ints]]] = [[] for _ in self.ops]

    def add(self) -> None:
        """Add all rows."""
        program, limit = self.stages.program, self.stages.limit
        assert limit is not None, "asked only where memory counts"
        for op_index, op in enumerate(self.ops):
            for number, name in enumerate(op.outputs):
                if self.mode.tensors[name].rate is Rate.MICROBATCH:
                    self._add_tensor(op_index, op, number)
        for terms in self.alive:
            row = self.stages.add_alive(self.cell.position)
            for columns, sizes in terms:
                program.enter(row, columns, -sizes / limit)

    def _states(self, op: str, operand: int) -> tuple[int, Ints]:
        """Choice of an op, and the state that each of its options gives an operand."""
        choice, op_options = self.choice_of[op]
        return choice, op_options.states[operand, self.mode.tables.choices[choice].options]

    def _bytes(self, name: str, states: Ints) -> Ints:
        tensor = self.mode.tensors[name]
        item = ITEMSIZE[tensor.dtype]
        axes = self.mode.space.axes
        return np.array(
            [
                item * local_size(tensor.shape, sbp_of(state, axes), self.mode.sizes)
                for state in states.tolist()
            ],
            np.int64,
        )

    def _readings(self, name: str) -> Iterator[BlockReading]:
        for op_index, op in enumerate(self.ops):
            for index, read in enumerate(op.inputs):
                if read == name:
                    choice, wants = self._states(op.name, index)
                    yield BlockReading(
                        op_index=op_index,
                        choice=choice,
                        option_states=wants,
                        later=self.later[op_index],
                    )

    def _add_tensor(self, maker: int, op: Op, number: int) -> None:
        name = op.outputs[number]
        choice, made_states = self._states(op.name, len(op.inputs) + number)
        readings = list(self._readings(name))
        home, repeats = self.later[maker], op.kind == "repeat"
        if not repeats and all(reading.later == home for reading in readings):
            columns = self.cell.first[choice] + np.arange(len(made_states))
            sizes = self._bytes(name, made_states)
            for op_index in range(
                maker, max((reading.op_index for reading in readings), default=maker) + 1
            ):
                self.alive[op_index].append((columns, sizes))
        for later in (False, True):
            here = [reading for reading in readings if reading.later == later]
            others = [] if repeats else [reading for reading in readings if reading.later != later]
            early = repeats or later != home
            section = [
                op_index for op_index, op_later in enumerate(self.later) if op_later == later
            ]
            for place, upto, ends in self._places(name, here, others):
                size = self._bytes(name, np.array([place]))
                begin = section[0] if early else maker
                for column, end in zip(upto, ends, strict=True):
                    for op_index in range(begin, end + 1):
                        self.alive[op_index].append((np.array([column]), size))
                    begin = end + 1
                if early:  # boxed a block early, besides
                    for op_index in section:
                        self.alive[op_index].append((np.array(upto[:1]), size))

    def _places(
        self, name: str, here: list[BlockReading], others: list[BlockReading]
    ) -> Iterator[tuple[int, list[int], list[int]]]:
        """Places that boxing may pass through, with a column per reader up to which each lives."""
        program = self.stages.program
        through: dict[int, dict[int, list[tuple[int, Ints]]]] = {}
        for reading in here:
            flow = self.flows[name, reading.choice, reading.option_states.tobytes()]
            for (place, target), passing in self._passing(name, flow).items():
                through.setdefault(place, {}).setdefault(reading.op_index, []).append(
                    (target, passing)
                )
        for place, by_reader in through.items():
            ends = sorted(by_reader)
            first = program.add_columns(np.zeros(len(ends)))
            columns = [first + number for number in range(len(ends))]
            for number, end in enumerate(ends):
                if number:
                    row = program.add_rows(1, lower=0.0)
                    program.enter(row, columns[number - 1], 1.0)
                    program.enter(row, columns[number], -1.0)
                for target, flows in by_reader[end]:
                    row = program.add_rows(1, lower=0.0)
                    program.enter(row, columns[number], 1.0)
                    program.enter(row, flows, -1.0)
                    # What another section reads too is kept, and counted there.
                    for other in others:
                        wants = np.flatnonzero(other.option_states == target)
                        program.enter(row, self.cell.first[other.choice] + wants, 1.0)
            yield place, columns, ends

    def _passing(self, name: str, flow: Flow) -> dict[tuple[int, int], Ints]:
        """Columns of the boxing that passes each place on its way to each target."""
        axes, shape = self.mode.space.axes, self.mode.tensors[name].shape
        columns_of: dict[tuple[int, int], list[int]] = {}
        for source, target, column in zip(
            flow.source.tolist(), flow.target.tolist(), flow.columns.tolist(), strict=True
        ):
            path = boxing_path(sbp_of(source, axes), sbp_of(target, axes), self.mode.sizes, shape)
            for step in path:
                columns_of.setdefault((number_of(step.after), target), []).append(column)
        return {key: np.array(columns) for key, columns in columns_of.items()}
