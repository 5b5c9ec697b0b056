"""Parts: what a mode of recomputation offers to the blocks of each template."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from millrace.models.arrays import Ints
from millrace.models.graph import Tensor
from millrace.planner.search.blocks.cost_tables import DEFERRABLE, MICROBATCH, CostTables, EdgeCosts
from millrace.planner.search.blocks.strategies import StrategySpace


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Mode:
    """One mode of recomputation: its space of choices, priced on a mesh, and its tensors."""

    name: str
    space: StrategySpace
    tables: CostTables  # one row, only options that are legal
    tensors: dict[str, Tensor]
    sizes: tuple[int, ...]  # of the mesh axes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cell:
    """One block on one chunk in one mode: its columns."""

    block: int
    template: str
    position: int
    mode: int
    here: int  # y
    first: dict[int, int]  # choice → x of its first option


class ModeTemplates:
    """One mode's choices and edges by template."""

    def __init__(self, mode: Mode, templates: Sequence[str]) -> None:
        self.mode = mode
        graph, space, tables = mode.space.folded.graph, mode.space, mode.tables
        self.home = [graph.templates[choice.ops[0].op.block] for choice in space.choices]
        self.choices: dict[str, list[int]] = {template: [] for template in templates}
        for number, template in enumerate(self.home):
            self.choices[template].append(number)
        self.counts = {name: list(templates).count(name) for name in templates}
        self.edges: dict[str, list[EdgeCosts]] = {template: [] for template in templates}
        self.separate = True
        for edge in tables.edges:
            readers = {self.home[use.choice] for use in edge.uses}
            self.separate &= len(readers) == 1
            self.edges[self.home[edge.uses[0].choice]].append(edge)
        # Tensors are handed over: tensor, source → the choice that makes it, and its options.
        self.handed: dict[tuple[str, int], tuple[int, Ints]] = {}
        for edge in tables.edges:
            space_edge = space.edges[edge.number]
            if space_edge.crossing:
                states = self.sources(edge)[edge.source_of]
                for state in np.unique(states).tolist():
                    options = np.flatnonzero(states == state)
                    self.handed[space_edge.tensor, state] = edge.producer, options

    def sources(self, edge: EdgeCosts) -> Ints:
        """State of every source of an edge."""
        space_edge = self.mode.space.edges[edge.number]
        states = np.zeros(edge.reachable.shape[0], np.int64)
        options = self.mode.tables.choices[edge.producer].options
        states[edge.source_of] = space_edge.sources[space_edge.source_of[options]]
        return states

    @cached_property
    def typical_ns(self) -> float:
        """Time of all choices at their mean."""
        return sum(
            choice.count * float(choice.figures[[MICROBATCH, DEFERRABLE], :, 0].sum(axis=0).mean())
            for choice in self.mode.tables.choices
        )
