"""Cells: the rows and columns of one block on one chunk in one mode of recomputation."""

import numpy as np

from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.blocks.tables import (
    DEFERRABLE,
    FIGURES,
    PERSISTENT,
    Net,
)
from millrace.planner.search.joint.parts import Cell, Parts
from millrace.planner.search.joint.sections import Flow, SectionRows
from millrace.planner.search.joint.stage_rows import Floats, StageRows


class CellRows:
    """What one block on one chunk in one mode adds to the program.

    Parameters
    ----------
    stages : StageRows
    parts : Parts
        Of the cell's mode.
    handed : dict
        Columns `h` by tensor and source.
    cell : Cell
    """

    def __init__(
        self, stages: StageRows, parts: Parts, handed: dict[tuple[str, int], int], cell: Cell
    ) -> None:
        self.stages = stages
        self.program = stages.program
        self.parts = parts
        self.mode = parts.mode
        self.handed = handed
        self.cell = cell
        self.flows: dict[tuple[str, int, bytes], Flow] = {}
        self.deferred: list[tuple[Ints, Floats]] = []
        self.spent: list[tuple[Ints, Floats]] = []
        self._leaving: dict[str, tuple[Ints, Ints]] = {}

    def add(self) -> None:
        """Add all of it."""
        for choice, first in self.cell.first.items():
            figures = self.mode.tables.choices[choice].figures[:, :, 0].T.astype(np.float64)
            self._charge(first + np.arange(len(figures)), figures)
        for net in self.parts.nets[self.cell.template]:
            self._add_net(net)
        self._add_deferred()
        if self.stages.limit is not None:
            SectionRows(self.stages, self.mode, self.cell, self.flows).add()

    def _charge(self, columns: Ints, figures: Floats) -> None:
        """Let columns cost these figures [columns, F]."""
        time = self.stages.charge(self.cell.position, columns, figures)
        self.spent.append((columns, time))
        self.deferred.append((columns, figures[:, DEFERRABLE] / self.stages.unit))

    def _add_deferred(self) -> None:
        """What fills the ramp: at most so much of the weight gradients, and of all time."""
        pipeline = self.stages.pipeline
        if not pipeline.defers_weight_gradients:
            return
        fills = self.stages.add_filling()
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
        share = net.count / self.parts.counts[self.cell.template]
        figures = np.zeros((*reachable.shape, len(FIGURES)))
        figures[:, :, net.figure] = share * net.duration_ns[:, :, 0]
        figures[:, :, PERSISTENT] = share * net.buffer_bytes[:, :, 0]
        self._add_held(net, share)
        if self.stages.limit is None and not figures.any() and reachable.all():
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
            handed = [self.handed[tensor, state] for state in source.tolist()]
            program.enter(rows, handed, -1.0)
            self._leaving[tensor] = source, columns
        known, columns = self._leaving[tensor]
        return columns[np.searchsorted(known, source)]

    def _taken(self, choice: int, rows: Ints) -> None:
        """Subtract the options of a choice from the row that each of them belongs to."""
        self.program.enter(rows, self.cell.first[choice] + np.arange(len(rows)), -1.0)

    def _add_held(self, net: Net, share: float) -> None:
        """What backward readers want is kept once per target; with what gradients deferred read."""
        defers = self.stages.pipeline.defers_weight_gradients
        deferred = defers and self.mode.space.nets[net.number].deferred
        holders = [use for use in net.uses if use.holds or deferred]
        if not holders or self.stages.limit is None:
            return
        targets = np.arange(len(net.held_bytes))
        figures = np.zeros((len(targets), len(FIGURES)))
        lifetime = self.mode.space.nets[net.number].lifetime if defers else 0
        alive = self.stages.alive(self.cell.position, lifetime)
        figures[:, PERSISTENT] = alive * share * net.held_bytes[:, 0]
        columns = self.program.add_columns(np.zeros(len(targets))) + targets
        self._charge(columns, figures)
        for use in holders:
            rows = self.program.add_rows(len(targets), lower=0.0)
            self.program.enter(rows + targets, columns, 1.0)
            self._taken(use.choice, rows + use.wants)
