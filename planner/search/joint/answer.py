"""Answers: the joint program of a candidate asked, and its plan as solutions that stages mix."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace.models.graph import scaled
from millrace.planner.errors import InfeasibleError
from millrace.planner.search.joint.joint_program import JointProgram, TemplateChoice
from millrace.planner.search.joint.parts import Mode
from millrace.planner.search.programs import Programs, Shape
from millrace.planner.search.stages import Pipeline

TOLERANCE = 1e-6  # relative, of the integer program's answers


Solutions = tuple[tuple[str, tuple[int, ...]], ...]
"""Modes with options of their spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAnswer:
    """Solutions of which the best plan is mixed, and its bound.

    No solutions: no plan that fits is within the cutoff. `rounding_ns` is by how much figures that
    are rounded up may raise the step time.
    """

    solutions: Solutions
    bound_ns: float
    rounding_ns: float


def joint_solutions(
    programs: Programs,
    shape: Shape,
    modes: Sequence[str],
    pipeline: Pipeline,
    limits: tuple[int, float],
    step_ns: Callable[[Solutions], float],
) -> tuple[Solutions, float] | None:
    """Solutions of which the best plan is mixed, and the bound; None if too large.

    Memory is left out at first: without it no block gains by running anything twice.

    Parameters
    ----------
    programs : Programs
    shape : Shape
    modes : sequence of str
        Modes of recomputation that blocks may take; the first runs nothing twice.
    pipeline : Pipeline
    limits : tuple of int and float
        Memory of a stage, and the step time up to which plans are wanted.
    step_ns : callable
        Step time of the best division with some solutions; infinite where none fits.
    """
    limit_bytes, cutoff_ns = limits
    solutions: Solutions = ()
    bound = 0.0
    for some, limit in ((modes[:1], None), (modes, limit_bytes)):
        answer = solve_jointly(programs, shape, some, pipeline, limit, cutoff_ns)
        if answer is None:
            return None
        bound = max(bound, answer.bound_ns)
        if not answer.solutions:
            return solutions, bound
        solutions = (*solutions, *answer.solutions)
        slack = 10 * TOLERANCE * answer.bound_ns + answer.rounding_ns
        if step_ns(answer.solutions) <= answer.bound_ns + slack:
            break
    return solutions, bound


def solve_jointly(
    programs: Programs,
    shape: Shape,
    modes: Sequence[str],
    pipeline: Pipeline,
    limit_bytes: int | None,
    cutoff_ns: float,
) -> JointAnswer | None:
    """Best plan of one shape and the bound of all; None where it is too large to solve.

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
            tensor_name: scaled(tensor, folded.graph.batch, shape.batch)
            for tensor_name, tensor in folded.graph.tensors_by_name.items()
        }
        offered.append(
            Mode(
                name=name,
                space=programs.space(shape, name),
                tables=tables,
                tensors=tensors,
                sizes=shape.sizes,
            )
        )
    rounding_ns = len(templates) * (2.0 * (pipeline.microbatches + 1) + 1)
    if not offered:
        return JointAnswer(solutions=(), bound_ns=float("inf"), rounding_ns=rounding_ns)
    if len(templates) < pipeline.positions or not JointProgram.fits(offered, templates, pipeline):
        return None
    program = JointProgram(offered, templates, pipeline, limit_bytes, cutoff_ns)
    best_plan = program.solve()
    if best_plan is None:
        return None
    solutions = (
        ()
        if best_plan.block_choices is None
        else _completed_solutions(offered, best_plan.block_choices)
    )
    return JointAnswer(
        solutions=solutions,
        bound_ns=min(best_plan.bound_ns * (1 - TOLERANCE), cutoff_ns),
        rounding_ns=rounding_ns,
    )


def _completed_solutions(modes: Sequence[Mode], taken: Sequence[TemplateChoice]) -> Solutions:
    """Solutions for all templates, each one block's options completed by those of any other.

    All hand over alike, and only this block's own template is read off it. Modes have the same
    choices: what is run twice chooses as it does the first time.
    """
    any_options: dict[int, int] = {}
    for block in taken:
        any_options = block.options | any_options
    solutions: dict[tuple[str, tuple[int, ...]], None] = {}
    for block in taken:
        options = any_options | block.options
        solutions[modes[block.mode].name, tuple(options[choice] for choice in sorted(options))] = (
            None
        )
    return tuple(solutions)
