"""Cells: the rows and columns of one block on one chunk in one mode of recomputation."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.blocks.tables import (
    DEFERRABLE,
    FIGURES,
    INFLIGHT,
    MICROBATCH,
    PERSISTENT,
    STEP,
    Net,
)
from millrace.planner.search.joint.parts import Cell
from millrace.planner.search.joint.sections import Flow, Sections
from millrace.planner.search.stages import DEFERRING

if TYPE_CHECKING:
    from millrace.planner.search.joint.program import JointProgram

Floats = NDArray[np.float64]


class CellRows:
    """What one block on one chunk in one mode adds to the program."""

    def __init__(self, joint: "JointProgram", cell: Cell) -> None:
        self.joint = joint
        self.cell = cell
        self.program = joint.program
        self.parts = joint.parts[cell.mode]
        self.mode = joint.modes[cell.mode]
        self.template = joint.templates[cell.block]
        self.stage = joint.pipeline.stage_of(cell.position)
        self.flows: dict[tuple[str, int, bytes], Flow] = {}
        self.deferred: list[tuple[Ints, Floats]] = []
        self.spent: list[tuple[Ints, Floats]] = []
        self._leaving: dict[str, tuple[Ints, Ints]] = {}

    def add(self) -> None:
        """Add all of it."""
        for choice, first in self.cell.first.items():
            figures = self.mode.tables.choices[choice].figures[:, :, 0].T.astype(np.float64)
            self._charge(first + np.arange(len(figures)), figures)
        for net in self.parts.nets[self.template]:
            self._add_net(net)
        self._add_deferred()
        if self.joint.limit is not None:
            Sections(self.joint, self.cell, self.stage, self.flows).add()

    def _charge(self, columns: Ints, figures: Floats) -> None:
        """Let columns cost these figures [columns, F]."""
        joint, program = self.joint, self.program
        time = (figures[:, MICROBATCH] + figures[:, DEFERRABLE]) / joint.unit
        place = joint.pipeline.place_of(self.cell.position)
        program.enter(joint.time_rows + place, columns, time)
        program.enter(joint.update_rows + self.stage, columns, figures[:, STEP] / joint.unit)
        self.spent.append((columns, time))
        self.deferred.append((columns, figures[:, DEFERRABLE] / joint.unit))
        if joint.limit is not None:
            kept = joint.kept[self.cell.position]
            size = figures[:, PERSISTENT] + kept * figures[:, INFLIGHT]
            program.enter(joint.memory_rows + self.stage, columns, size / joint.limit)

    def _add_deferred(self) -> None:
        """What fills the ramp: at most so much of the weight gradients, and of all time."""
        pipeline = self.joint.pipeline
        if pipeline.schedule not in DEFERRING:
            return
        fills = self.program.add_columns([-pipeline.ramp * self.joint.unit])
        if np.isfinite(self.joint.cutoff):
            self.program.enter(self.joint.whole, fills, -pipeline.ramp)
        share = 2 * (1 - 1 / pipeline.stages)
        for factor, terms in ((share, self.deferred), (1.0, self.spent)):
            row = self.program.add_rows(1, lower=0.0)
            self.program.enter(row, fills, -1.0)
            for columns, values in terms:
                self.program.enter(row, columns, factor * values)

    # -- nets --------------------------------------------------------------------------------

    def _add_net(self, net: Net) -> None:
        program = self.program
        reachable = net.reachable[:, :, 0]
        share = net.count / self.parts.counts[self.template]
        figures = np.zeros((*reachable.shape, len(FIGURES)))
        figures[:, :, STEP if net.step else MICROBATCH] = share * net.duration_ns[:, :, 0]
        figures[:, :, PERSISTENT] = share * net.buffer_bytes[:, :, 0]
        self._add_held(net, share)
        if self.joint.limit is None and not figures.any() and reachable.all():
            return
        source = self.parts.sources(net)
        shared = len(net.uses) > 1
        whole = np.full(reachable.shape, -1, np.int64)
        if shared:
            a, b = np.nonzero(reachable & figures.any(axis=2))
            whole[a, b] = program.add_columns(np.zeros(len(a))) + np.arange(len(a))
            self._charge(whole[a, b], figures[a, b])
        own = self.mode.space.nets[net.number]
        for use, asked in zip(net.uses, own.uses, strict=True):
            mine = np.zeros(reachable.shape[1], np.bool_)
            mine[use.wants] = True
            a, b = np.nonzero(reachable & mine)
            columns = program.add_columns(np.zeros(len(a))) + np.arange(len(a))
            if not shared:
                self._charge(columns, figures[a, b])
            self._leave(net, a, columns)
            arrives = program.add_rows(reachable.shape[1], 0.0, 0.0)
            program.enter(arrives + b, columns, 1.0)
            self._taken(use.choice, arrives + use.wants)
            paid = whole[a, b] >= 0
            covers = program.add_rows(int(paid.sum()), lower=0.0) + np.arange(int(paid.sum()))
            program.enter(covers, whole[a, b][paid], 1.0)
            program.enter(covers, columns[paid], -1.0)
            wants = own.targets[asked.wants[self.mode.tables.choices[use.choice].options]]
            target = np.zeros(reachable.shape[1], np.int64)
            target[use.wants] = wants
            key = own.tensor, use.choice, wants.tobytes()
            self.flows[key] = Flow(source=source[a], target=target[b], columns=columns)

    def _leave(self, net: Net, places: Ints, columns: Ints) -> None:
        """Boxing leaves from what is made, or handed over."""
        program, own = self.program, self.mode.space.nets[net.number]
        source = self.parts.sources(net)
        if not own.crossing:
            leaves = program.add_rows(len(source), 0.0, 0.0)
            program.enter(leaves + places, columns, 1.0)
            self._taken(net.producer, leaves + net.makes)
            return
        comes = self._handed(own.tensor, source)
        leaves = program.add_rows(len(source), 0.0, 0.0)
        program.enter(leaves + places, columns, 1.0)
        program.enter(leaves + np.arange(len(source)), comes, -1.0)

    def _handed(self, tensor: str, source: Ints) -> Ints:
        """Columns per source: it comes in so, if the block lies here."""
        if tensor not in self._leaving:
            program = self.program
            columns = program.add_columns(np.zeros(len(source))) + np.arange(len(source))
            row = program.add_rows(1, 0.0, 0.0)
            program.enter(row, columns, 1.0)
            program.enter(row, self.cell.here, -1.0)
            rows = program.add_rows(len(source), upper=0.0) + np.arange(len(source))
            program.enter(rows, columns, 1.0)
            handed = [self.joint.handed[tensor, state] for state in source.tolist()]
            program.enter(rows, handed, -1.0)
            self._leaving[tensor] = source, columns
        known, columns = self._leaving[tensor]
        return columns[np.searchsorted(known, source)]

    def _taken(self, choice: int, rows: Ints) -> None:
        """Subtract the options of a choice from the row that each of them belongs to."""
        self.program.enter(rows, self.cell.first[choice] + np.arange(len(rows)), -1.0)

    def _add_held(self, net: Net, share: float) -> None:
        """What backward readers want is kept once per target; with what gradients deferred read."""
        defers = self.joint.pipeline.schedule in DEFERRING
        deferred = defers and self.mode.space.nets[net.number].deferred
        holders = [use for use in net.uses if use.holds or deferred]
        if not holders or self.joint.limit is None:
            return
        targets = np.arange(len(net.held_bytes))
        figures = np.zeros((len(targets), len(FIGURES)))
        figures[:, INFLIGHT] = share * net.held_bytes[:, 0]
        columns = self.program.add_columns(np.zeros(len(targets))) + targets
        self._charge(columns, figures)
        for use in holders:
            rows = self.program.add_rows(len(targets), lower=0.0)
            self.program.enter(rows + targets, columns, 1.0)
            self._taken(use.choice, rows + use.wants)
