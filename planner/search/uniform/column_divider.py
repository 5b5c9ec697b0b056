"""Column divider: figures of the columns of uniform candidates, and their layers dealt out."""

from collections.abc import Sequence

import numpy as np

from millrace.models.arrays import Bools, Ints
from millrace.planner.frameworks.capabilities import MODES
from millrace.planner.search.blocks.solver import Solution
from millrace.planner.search.evaluation import Evaluator, Solved
from millrace.planner.search.programs import FiguresKey, Shape
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.search_log import SearchLog
from millrace.planner.search.stages import Division, in_order
from millrace.planner.search.stages.even_layers import EvenFigures, variant_rows
from millrace.planner.search.uniform.branches import Opened, Point, PricedBranch
from millrace.planner.search.uniform.pricing import BlockPool


class ColumnDivider:
    """Divider of the columns that block programs have given so far.

    Parameters
    ----------
    evaluator : Evaluator
    record : SearchLog
        Counts divisions.
    templates : tuple of str
        Those of the model's blocks, in the order of figures [T, F].
    """

    def __init__(self, evaluator: Evaluator, record: SearchLog, templates: tuple[str, ...]) -> None:
        self.evaluator = evaluator
        self.record = record
        self.templates = templates
        self._pools: dict[tuple[Shape, str], BlockPool] = {}

    def pool(self, shape: Shape, mode: str) -> BlockPool:
        """Cuts and columns of a shape in a mode."""
        return self._pools.setdefault((shape, mode), BlockPool())

    def read(self, branches: Sequence[tuple[Opened, PricedBranch]], best_ns: float) -> None:
        """Read the figures of all columns that these branches have not tried yet together."""
        programs = self.evaluator.programs
        new = {
            (number, mode): self._untried(opened, mode)
            for number, (opened, branch) in enumerate(branches)
            for mode in branch.modes
        }
        programs.read(
            self._key(branches[number][0], mode, options)
            for (number, mode), columns in new.items()
            for options in columns
        )
        programs.read(
            self._key(branches[number][0], MODES[-1], options)
            for (number, mode), columns in new.items()
            if columns and mode == MODES[0] and len(branches[number][1].modes) > 1
            for options in columns
            if self._is_recomputed(branches[number][0], mode, options, best_ns)
        )

    def _untried(self, opened: Opened, mode: str) -> list[tuple[int, ...]]:
        pool = self.pool(opened.shape, mode)
        return [options for options in pool.columns if (mode, options) not in opened.tried]

    def _is_recomputed(
        self, opened: Opened, mode: str, options: tuple[int, ...], best_ns: float
    ) -> bool:
        """True if some layers of a column may be recomputed: it is fast, and does not fit."""
        figures = opened.even.figures(self._rows(opened, mode, options)[None, None])
        return bool(_may_recompute(opened, figures, best_ns).any())

    def _key(self, opened: Opened, mode: str, options: tuple[int, ...]) -> FiguresKey:
        return opened.shape, mode, options, opened.pipeline.defers_weight_gradients

    def _rows(self, opened: Opened, mode: str, options: tuple[int, ...]) -> Ints:
        """Figures [T, F] of a block of every template in a column."""
        key = mode, options
        if key not in opened.rows:
            figures = self.evaluator.programs.block_figures(*self._key(opened, mode, options))
            opened.rows[key] = variant_rows([figures[template] for template in self.templates])
        return opened.rows[key]

    def divide(self, opened: Opened, branch: PricedBranch, best_ns: float) -> None:
        """Divide the columns of a branch's modes that were not tried yet, in every way."""
        for mode in branch.modes:
            new = self._untried(opened, mode)
            if not new:
                continue
            opened.tried.update((mode, options) for options in new)
            plain = np.array([[self._rows(opened, mode, options) for options in new]])
            figures = opened.even.figures(plain)
            over = (figures.stage_bytes - opened.limits).max(axis=-1)
            columns = [(mode, options) for options in new]
            for way in range(len(opened.even.ways)):
                dealt = figures.step_ns[way].tolist(), over[way].tolist(), plain[0], columns
                opened.points.setdefault((mode, way), []).extend(map(Point, *dealt))
            self._note(opened, mode, new, figures)
            some = np.flatnonzero(_may_recompute(opened, figures, best_ns).any(axis=0))
            if len(some) and len(branch.modes) > 1 and mode == MODES[0]:
                options = [new[place] for place in some.tolist()]
                again = np.array([[self._rows(opened, MODES[-1], each) for each in options]])
                figures = opened.even.fitted(plain[:, some], again, opened.limits)
                self._note(opened, mode, options, figures)

    def _note(
        self, opened: Opened, mode: str, columns: list[tuple[int, ...]], figures: EvenFigures
    ) -> None:
        """Keep the best of some divisions [C, V] if it is better than what is known."""
        step_ns, recomputed = figures.step_ns, figures.recomputed
        beyond = figures.stage_bytes - opened.limits
        over = beyond.max(axis=-1)
        self.record.count("divisions", over.size)
        limit = int(opened.limits.min()) + opened.besides
        needed_bytes = limit + int(over.min())
        if opened.short is None or opened.short.needed_bytes > needed_bytes:
            stage = beyond.reshape(-1, beyond.shape[-1])[over.argmin()].argmax()
            opened.short = MemoryLimitError(needed_bytes, limit, int(stage))
        fits = np.where(over <= 0, step_ns, np.inf)
        best_ns = opened.best_ns
        for place in np.argsort(fits, axis=None, kind="stable").tolist():
            way, column = divmod(place, len(columns))
            if fits[way, column] >= best_ns:
                break
            layers = int(recomputed[way, column])
            used = [(mode, columns[column])]
            if layers:
                used.append((MODES[-1], columns[column]))
            division = Division(
                chunks=opened.even.chunks(way, 0, 1 if layers else None, layers),
                step_ns=float(fits[way, column]),
                memory_bytes=int(limit + over[way, column]),
                bound_ns=float(fits[way, column]),
            )
            group = [Solved(mode_, self.solution(opened, mode_, o)) for mode_, o in used]
            runs = self.evaluator.runs(opened.candidate, group)
            division = in_order(division, runs, opened.pipeline, self.evaluator.overlap)
            if division.step_ns < best_ns:
                opened.best, opened.used, best_ns = division, tuple(used), division.step_ns

    def solution(self, opened: Opened, mode: str, options: tuple[int, ...]) -> Solution:
        """A column of a mode, or of the plain one whose options are recomputed."""
        pools = [self.pool(opened.shape, mode), self.pool(opened.shape, MODES[0])]
        return next(pool.columns[options] for pool in pools if options in pool.columns)


def _may_recompute(opened: Opened, figures: EvenFigures, best_ns: float) -> Bools:
    """Mask [C, V] of divisions that do not fit, and are faster than the best plan so far."""
    short = np.any(figures.stage_bytes > opened.limits, axis=-1)
    useful: Bools = short & (figures.step_ns < min(best_ns, opened.best_ns))
    return useful
