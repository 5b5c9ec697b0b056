"""Cells: the rows and columns of one block on one chunk in one mode of recomputation.

Shapes: A states of a tensor where it is made, B where it is read; F figures (`FIGURES` of
`cost_tables`); columns and rows of the program by their numbers.
"""

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    FIGURES,
    PERSISTENT,
    EdgeCosts,
)
from millrace.planner.search.blocks.strategies import EdgeUse
from millrace.planner.search.joint.parts import Cell, ModeTemplates
from millrace.planner.search.joint.sections import Flow, SectionRows
from millrace.planner.search.joint.stage_rows import StageRows

# Lifetimes as `millrace.planner.schedules.counting.LIFETIMES` numbers them: until gradients of
# inputs, and from there to gradients of weights.
LIFETIME_OF_GAP = (0, 2)


class CellRows:
    """Rows and columns that one block on one chunk in one mode adds to the program.

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
        self,
        stages: StageRows,
        parts: ModeTemplates,
        handed: dict[tuple[str, int], int],
        cell: Cell,
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
        """Add all rows and columns of the cell."""
        for choice, first in self.cell.first.items():
            figures = self.mode.tables.choices[choice].figures[:, :, 0].T.astype(np.float64)
            self._charge(first + np.arange(len(figures)), figures)
        for edge in self.parts.edges[self.cell.template]:
            self._add_edge(edge)
        self._add_deferred()
        if self.stages.limit is not None:
            SectionRows(self.stages, self.mode, self.cell, self.flows).add()

    def _charge(self, columns: Ints, figures: Floats) -> None:
        """Let columns cost these figures [columns, F]."""
        time = self.stages.charge(self.cell.position, columns, figures)
        self.spent.append((columns, time))
        self.deferred.append((columns, figures[:, DEFERRABLE] / self.stages.unit))

    def _add_deferred(self) -> None:
        """Let at most so much of the weight gradients, and of all time, fill the ramp."""
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

    # -- edges --------------------------------------------------------------------------------

    def _add_edge(self, edge: EdgeCosts) -> None:
        program = self.program
        reachable = edge.reachable[:, :, 0]
        share = edge.count / self.parts.counts[self.cell.template]
        figures = np.zeros((*reachable.shape, len(FIGURES)))
        figures[:, :, edge.figure] = share * edge.duration_ns[:, :, 0]
        figures[:, :, PERSISTENT] = share * edge.buffer_bytes[:, :, 0]
        self._add_kept(edge, share)
        if self.stages.limit is None and not figures.any() and reachable.all():
            return
        source = self.parts.sources(edge)
        shared = len(edge.uses) > 1
        pair_columns = np.full(reachable.shape, -1, np.int64)
        if shared:
            a, b = np.nonzero(reachable & figures.any(axis=2))
            pair_columns[a, b] = program.add_columns(np.zeros(len(a))) + np.arange(len(a))
            self._charge(pair_columns[a, b], figures[a, b])
        space_edge = self.mode.space.edges[edge.number]
        for use, asked in zip(edge.uses, space_edge.uses, strict=True):
            wanted = np.zeros(reachable.shape[1], np.bool_)
            wanted[use.target_of] = True
            a, b = np.nonzero(reachable & wanted)
            columns = program.add_columns(np.zeros(len(a))) + np.arange(len(a))
            if not shared:
                self._charge(columns, figures[a, b])
            self._leave(edge, a, columns)
            arrives = program.add_rows(reachable.shape[1], 0.0, 0.0)
            program.enter(arrives + b, columns, 1.0)
            self._subtract_options(use.choice, arrives + use.target_of)
            paid = pair_columns[a, b] >= 0
            covers = program.add_rows(int(paid.sum()), lower=0.0) + np.arange(int(paid.sum()))
            program.enter(covers, pair_columns[a, b][paid], 1.0)
            program.enter(covers, columns[paid], -1.0)
            wants = space_edge.targets[
                asked.target_of[self.mode.tables.choices[use.choice].options]
            ]
            target = np.zeros(reachable.shape[1], np.int64)
            target[use.target_of] = wants
            key = space_edge.tensor, use.choice, wants.tobytes()
            self.flows[key] = Flow(source=source[a], target=target[b], columns=columns)

    def _leave(self, edge: EdgeCosts, places: Ints, columns: Ints) -> None:
        """Let boxing leave from what is made, or handed over."""
        program, space_edge = self.program, self.mode.space.edges[edge.number]
        source = self.parts.sources(edge)
        if not space_edge.crossing:
            leaves = program.add_rows(len(source), 0.0, 0.0)
            program.enter(leaves + places, columns, 1.0)
            self._subtract_options(edge.producer, leaves + edge.source_of)
            return
        comes = self._handed(space_edge.tensor, source)
        leaves = program.add_rows(len(source), 0.0, 0.0)
        program.enter(leaves + places, columns, 1.0)
        program.enter(leaves + np.arange(len(source)), comes, -1.0)

    def _handed(self, tensor: str, source: Ints) -> Ints:
        """Columns per source: one if the tensor comes in so and the block lies here."""
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
        sources, columns = self._leaving[tensor]
        return columns[np.searchsorted(sources, source)]

    def _subtract_options(self, choice: int, rows: Ints) -> None:
        """Subtract the options of a choice from the row that each of them belongs to."""
        self.program.enter(rows, self.cell.first[choice] + np.arange(len(rows)), -1.0)

    # -- what is kept ------------------------------------------------------------------------

    def _add_kept(self, edge: EdgeCosts, share: float) -> None:
        """Charge what an edge keeps from one pass to the next, by gaps as in `template_tables`."""
        space_edge = self.mode.space.edges[edge.number]
        if (
            self.stages.limit is None
            or space_edge.producer_pass is None
            or not space_edge.outlives_pass
        ):
            return
        last = 2 if self.stages.pipeline.defers_weight_gradients else 1
        reading = [
            (use, {min(pass_, last) for pass_ in use.passes}) for use in edge.uses if use.passes
        ]
        for gap in range(
            space_edge.producer_pass, max((max(passes) for _, passes in reading), default=0)
        ):
            before = [use for use, passes in reading if min(passes) <= gap]
            after = [use for use, passes in reading if max(passes) > gap]
            alive = self.stages.alive(self.cell.position, LIFETIME_OF_GAP[gap])
            made_columns = self._source_columns(edge)
            sizes = alive * share * edge.made_bytes[:, 0]
            if before:
                boxed = np.asarray(alive * share * edge.held_bytes[:, 0])
                self._add_boxed(edge, boxed, (before, after), made_columns)
                made_columns = self._made_too(edge, (before, after), made_columns)
            for columns, size in zip(made_columns, sizes.tolist(), strict=True):
                self._keep(columns, np.full(len(columns), size))

    def _add_boxed(
        self,
        edge: EdgeCosts,
        sizes: Floats,
        uses: tuple[list[EdgeUse], list[EdgeUse]],
        made_columns: list[Ints],
    ) -> None:
        """Charge layouts read before and after a gap, but for the one it was made in."""
        program, states = self.program, self._target_states(edge)
        source = self.parts.sources(edge).tolist()
        for target, state in enumerate(states.tolist()):
            pairs = [
                (before, after)
                for before in (self._wanting(use, target) for use in uses[0])
                for after in (self._wanting(use, target) for use in uses[1])
                if len(before) and len(after)
            ]
            if not pairs:
                continue
            kept_column = program.add_columns(np.zeros(1))
            self._keep(np.array([kept_column]), sizes[target : target + 1])
            for before, after in pairs:
                row = program.add_rows(1, lower=0.0)
                program.enter(row, kept_column, 1.0)
                program.enter(row, before, -1.0)
                if not np.array_equal(before, after):
                    program.enter(row, after, -1.0)
                    program.enter(row, self.cell.here, 1.0)
                if state in source:
                    program.enter(row, made_columns[source.index(state)], 1.0)

    def _made_too(
        self, edge: EdgeCosts, uses: tuple[list[EdgeUse], list[EdgeUse]], made_columns: list[Ints]
    ) -> list[Ints]:
        """Column per source that is one where what was made is kept, boxed or not."""
        program, states = self.program, self._target_states(edge)
        kept_columns = []
        for columns, state in zip(made_columns, self.parts.sources(edge).tolist(), strict=True):
            kept_column = program.add_columns(np.zeros(1))
            kept_columns.append(np.array([kept_column]))
            for use in uses[1]:
                for target in np.unique(use.target_of).tolist():
                    again = [self._wanting(early, target) for early in uses[0]]
                    if states[target] != state and any(early is use for early in uses[0]):
                        continue
                    row = program.add_rows(1, lower=0.0)
                    program.enter(row, kept_column, 1.0)
                    program.enter(row, columns, -1.0)
                    program.enter(row, self._wanting(use, target), -1.0)
                    program.enter(row, self.cell.here, 1.0)
                    for wanting in again if states[target] != state else ():
                        program.enter(row, wanting, 1.0)
        return kept_columns

    def _keep(self, columns: Ints, sizes: Floats) -> None:
        figures = np.zeros((len(columns), len(FIGURES)))
        figures[:, PERSISTENT] = sizes
        self._charge(columns, figures)

    def _source_columns(self, edge: EdgeCosts) -> list[Ints]:
        """Columns per source of which one is one where the edge's tensor is made so."""
        space_edge, source = self.mode.space.edges[edge.number], self.parts.sources(edge)
        if space_edge.crossing:
            return [
                np.array([column]) for column in self._handed(space_edge.tensor, source).tolist()
            ]
        first = self.cell.first[edge.producer]
        return [first + np.flatnonzero(edge.source_of == place) for place in range(len(source))]

    def _wanting(self, use: EdgeUse, target: int) -> Ints:
        """Columns of the options that want a target."""
        return self.cell.first[use.choice] + np.flatnonzero(use.target_of == target)

    def _target_states(self, edge: EdgeCosts) -> Ints:
        """State of every target of an edge."""
        space_edge = self.mode.space.edges[edge.number]
        states = np.zeros(len(edge.held_bytes), np.int64)
        for use, asked in zip(edge.uses, space_edge.uses, strict=True):
            options = self.mode.tables.choices[use.choice].options
            states[use.target_of] = space_edge.targets[asked.target_of[options]]
        return states
