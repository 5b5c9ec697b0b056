"""The joint program: everything about one candidate shape decided at once, for small instances.

The plans it ranges over: the blocks of the model lie in their order on the chunks of the pipeline,
no chunk empty; every block takes one option per choice of its template and one mode of
recomputation, each block on its own; all blocks hand tensors over in one way
(`VariantFigures.handover`). With block i, chunk k, mode q, choice c, option o, use u of edge n,
source a and target b, and figures per block as `Programs.block_figures` has them (boxing between
blocks is the mean over the blocks of a template; only rounding to whole numbers is left out)::

    minimise    (microbatches - ramp) T + ramp Σ_s (time[s] - deferred[s]) + sent + U
    subject to  Σ_kq y[i, k, q] = 1                      a block lies somewhere, in one mode
                Σ_{k' ≤ k} y[i + 1, k'] ≤ Σ_{k' ≤ k} y[i, k']   in the order of the model Σ_i y[i,
                k] ≥ 1                          no chunk is empty Σ_o x[i, k, q, c, o] = y[i, k, q]
                Σ_b w[u, a, b] = Σ_{o makes a} x         boxing, as in `blocks/block_milp.py`;
                between Σ_a w[u, a, b] = Σ_{o wants b} x         blocks it leaves from h instead of
                x Σ_{o makes a} x[i, ...] = h[tensor, a]   one way to hand over T ≥ its terms in
                `stages.shape`,  U ≥ step[s] bytes[s] + section[s] ≤ limit            on every stage
                section[s] ≥ bytes alive at each op of every block on s

Variables x, y and h are 0 or 1; all others follow.

Notes
-----
The rows of `section` say what `millrace.planner.memory.SectionPeaks` computes: a place that
boxing passes through is alive until the last reader that is reached through it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.planner.search.integer_program import IntegerProgram
from millrace.planner.search.joint.cells import CellRows
from millrace.planner.search.joint.parts import Cell, Mode, ModeTemplates
from millrace.planner.search.joint.stage_rows import StageRows
from millrace.planner.search.stages import Pipeline

OPTIONS_MAX = 1_500  # options of all blocks, chunks and modes together: above, nothing is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateChoice:
    """Mode of a block (a place in the modes), and its options of the space by choice."""

    mode: int
    options: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSolution:
    """Best plan of a candidate, block by block, and the proven least.

    No blocks (None): no plan that fits is within the cutoff.
    """

    block_choices: tuple[TemplateChoice, ...] | None
    bound_ns: float


class JointProgram:
    """The program of the module's docstring.

    Parameters
    ----------
    modes : sequence of Mode
    templates : sequence of str
        Template of every block, in the order of the model.
    pipeline : Pipeline
    limit_bytes : int, optional
        Memory of one stage; None: memory is left out.
    cutoff_ns : float
        No plan that takes longer is wanted.
    """

    def __init__(
        self,
        modes: Sequence[Mode],
        templates: Sequence[str],
        pipeline: Pipeline,
        limit_bytes: int | None = None,
        cutoff_ns: float = np.inf,
    ) -> None:
        self.modes = modes
        self.templates = templates
        self.pipeline = pipeline
        self.program = IntegerProgram()
        self.parts = [ModeTemplates(mode, templates) for mode in modes]
        self.handed: dict[tuple[str, int], int] = {}  # tensor, source → h
        self.cells: list[Cell] = []
        unit_ns = max(sum(part.typical_ns for part in self.parts) / len(modes), 1.0)
        self.stages = StageRows(self.program, pipeline, unit_ns, limit_bytes, cutoff_ns)

    @classmethod
    def fits(cls, modes: Sequence[Mode], templates: Sequence[str], pipeline: Pipeline) -> bool:
        """True if an instance is small enough to be solved."""
        blocks, chunks = len(templates), pipeline.positions
        options = sum(
            len(mode.tables.choices[choice].options)
            for mode in modes
            for part in [ModeTemplates(mode, templates)]
            for template in templates
            for choice in part.choices[template]
        )
        places = min(chunks, blocks - chunks + 1)
        return options * max(places, 1) <= OPTIONS_MAX and all(
            ModeTemplates(mode, templates).separate for mode in modes
        )

    def solve(self, max_gap: float = 0.0) -> JointSolution | None:
        """Best plan and the bound of every plan; None where the solver found none."""
        self._add_blocks()
        self._add_handovers()
        for cell in self.cells:
            CellRows(self.stages, self.parts[cell.mode], self.handed, cell).add()
        answer = self.program.solve(max_gap)
        if answer is None:
            return JointSolution(block_choices=None, bound_ns=float("inf"))
        if not answer.has_values:
            return None
        taken = []
        for block in range(len(self.templates)):
            cell = max(
                (cell for cell in self.cells if cell.block == block),
                key=lambda cell: float(answer.values[cell.here]),
            )
            options = {}
            for choice, first in cell.first.items():
                legal_options = self.modes[cell.mode].tables.choices[choice].options
                values = answer.values[first : first + len(legal_options)]
                options[choice] = int(legal_options[int(np.argmax(values))])
            taken.append(TemplateChoice(mode=cell.mode, options=options))
        return JointSolution(
            block_choices=tuple(taken), bound_ns=answer.bound + self.pipeline.sent_ns
        )

    def _add_blocks(self) -> None:
        program, blocks = self.program, len(self.templates)
        chunks = self.pipeline.positions
        behind = {
            (block, chunk): program.add_rows(1, lower=0.0)
            for block in range(blocks - 1)
            for chunk in range(chunks - 1)
        }
        filled = program.add_rows(chunks, lower=1.0)
        for block, template in enumerate(self.templates):
            somewhere = program.add_rows(1, 1.0, 1.0)
            for position in range(chunks):
                if position > block or chunks - 1 - position > blocks - 1 - block:
                    continue
                for mode, part in enumerate(self.parts):
                    here = program.add_columns([0.0], integer=True, highest=1.0)
                    program.enter(somewhere, here, 1.0)
                    program.enter(filled + position, here, 1.0)
                    for chunk in range(position, chunks - 1):
                        if block < blocks - 1:
                            program.enter(behind[block, chunk], here, 1.0)
                        if block:
                            program.enter(behind[block - 1, chunk], here, -1.0)
                    first = {}
                    for choice in part.choices[template]:
                        size = len(self.modes[mode].tables.choices[choice].options)
                        first[choice] = program.add_columns(
                            np.zeros(size), integer=True, highest=1.0
                        )
                        row = program.add_rows(1, 0.0, 0.0)
                        program.enter(row, first[choice] + np.arange(size), 1.0)
                        program.enter(row, here, -1.0)
                    self.cells.append(
                        Cell(
                            block=block,
                            template=template,
                            position=position,
                            mode=mode,
                            here=here,
                            first=first,
                        )
                    )

    def _add_handovers(self) -> None:
        """Let every block of a template make what it hands over in the one way taken."""
        program = self.program
        names: dict[str, None] = {}
        for part in self.parts:
            for (tensor, state), _ in part.handed.items():
                names[tensor] = None
                if (tensor, state) not in self.handed:
                    self.handed[tensor, state] = program.add_columns(
                        [0.0], integer=True, highest=1.0
                    )
        for tensor in names:
            columns = [column for (name, _), column in self.handed.items() if name == tensor]
            program.enter(program.add_rows(1, 1.0, 1.0), columns, 1.0)
        for block in range(len(self.templates)):
            rows: dict[tuple[str, int], int] = {}
            for cell in self.cells:
                if cell.block != block:
                    continue
                for (tensor, state), (choice, options) in self.parts[cell.mode].handed.items():
                    if choice in cell.first:
                        for other_state in (
                            state_ for name, state_ in self.handed if name == tensor
                        ):
                            if (tensor, other_state) not in rows:
                                rows[tensor, other_state] = program.add_rows(1, 0.0, 0.0)
                                program.enter(
                                    rows[tensor, other_state],
                                    self.handed[tensor, other_state],
                                    -1.0,
                                )
                        program.enter(rows[tensor, state], cell.first[choice] + options, 1.0)
