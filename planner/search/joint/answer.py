"""Answers: the joint program of a candidate asked, and its plan as solutions that stages mix."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.graph import scaled
from planner.errors import InfeasibleError
from planner.search.joint.parts import Mode
from planner.search.joint.program import JointProgram, Taken
from planner.search.programs import Programs, Shape
from planner.search.stages import Pipeline

TOLERANCE = 1e-6  # of the integer program: its answers are as exact as that, as a share


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAnswer:
    """Solutions (mode, options of the space) of which the best plan is mixed, and its bound.

    No solutions: no plan that fits is within the cutoff. `rounding_ns` is by how much figures that
    are rounded up may raise the step time.
    """

    solutions: tuple[tuple[str, tuple[int, ...]], ...]
    bound_ns: float
    rounding_ns: float


def solve_jointly(
    programs: Programs,
    shape: Shape,
    modes: Sequence[str],
    pipeline: Pipeline,
    limit_bytes: int | None,
    cutoff_ns: float,
) -> JointAnswer | None:
    """Return the best plan of one shape and the bound of all; None where it is too large.

    Parameters
    ----------
    programs : Programs
    shape : Shape
    modes : sequence of str
        Modes of recomputation that blocks may take.
    pipeline : Pipeline
    limit_bytes : int or None
        Memory of a stage; None: as if there were no limit.
    cutoff_ns : float
        No plan that takes longer is wanted.
    """
    graph = programs.graph
    templates = [graph.templates[block] for block in graph.blocks]
    offered: list[Mode] = []
    for name in modes:
        try:
            tables = programs.tables(shape, name)
        except InfeasibleError:
            continue
        folded = programs.folded(name)
        tensors = {
            tensor: scaled(one, folded.graph.batch, shape.batch)
            for tensor, one in folded.graph.tensors_by_name.items()
        }
        offered.append(
            Mode(name=name, space=programs.space(shape, name), tables=tables, tensors=tensors)
        )
    rounding_ns = len(templates) * (2.0 * (pipeline.microbatches + 1) + 1)
    if not offered:
        return JointAnswer(solutions=(), bound_ns=float("inf"), rounding_ns=rounding_ns)
    if len(templates) < pipeline.positions or not JointProgram.fits(offered, templates, pipeline):
        return None
    program = JointProgram(offered, templates, pipeline, shape.sizes, limit_bytes, cutoff_ns)
    found = program.solve()
    solutions = () if found.taken is None else _whole(offered, templates, found.taken)
    return JointAnswer(
        solutions=solutions,
        bound_ns=min(found.bound_ns * (1 - TOLERANCE), cutoff_ns),
        rounding_ns=rounding_ns,
    )


def _whole(
    modes: Sequence[Mode], templates: Sequence[str], taken: Sequence[Taken]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Every block's options as a solution for all templates; which others it holds is all the same.

    All hand over alike, and only this block's own template is read off it. Modes have the same
    choices: what is run twice chooses as it does the first time.
    """
    anyone: dict[int, int] = {}
    for one in taken:
        anyone = one.options | anyone
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    for one in taken:
        options = anyone | one.options
        found[modes[one.mode].name, tuple(options[choice] for choice in sorted(options))] = None
    return tuple(found)
