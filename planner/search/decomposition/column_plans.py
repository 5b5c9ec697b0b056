"""Column plans: the plan of a candidate that is mixed of columns, by linear and integer programs.

The relaxed plan program says which variants are worth mixing, in any shares. Blocks that lie side
by side have to hand tensors on alike, so that the states in which most blocks do it are taken, and
blocks are asked once more for variants that keep to them. All of these are then divided over the
chunks (`division.py`).
"""

from dataclasses import replace

from millrace.planner.search.blocks.solver import Solution
from millrace.planner.search.blocks.space import Space
from millrace.planner.search.blocks.variants import Handover, Options, handover
from millrace.planner.search.decomposition.block_oracle import BlockOracle, Column, PriceAsk
from millrace.planner.search.decomposition.bound_program import relaxation
from millrace.planner.search.decomposition.division import Pools, divide_by_program
from millrace.planner.search.decomposition.loop import SPREAD, Loop, Open, price_vectors, spread
from millrace.planner.search.decomposition.plan_program import PlanProgram, plan_program
from millrace.planner.search.evaluation import Evaluator, Found, Solved

ROUNDS = 3  # of asking for variants that hand on alike


def column_plan(evaluator: Evaluator, loop: Loop, one: Open) -> Found | None:
    """The best plan that is found of a candidate's columns; None where none fits.

    Parameters
    ----------
    evaluator : Evaluator
    loop : Loop
        In which the candidate was raised.
    one : Open
    """
    pools = _alike(loop, one)
    if not all(pool.columns for pool in pools.values()):
        return None
    solved = _solved(evaluator, one, pools)
    runs, pipeline = evaluator.runs(one.candidate, solved), one.problem.pipeline
    beside = evaluator.sends.buffer_bytes(one.candidate)
    with evaluator.dividing():
        limit_bytes, overlap = one.problem.limit_bytes, evaluator.overlap
        division = divide_by_program(runs, pipeline, limit_bytes, beside, overlap, loop.paths)
    if division is None:
        return None
    division = replace(division, bound_ns=min(one.mixed_ns, division.step_ns))
    used = sorted({at for chunk in division.chunks for _, at in chunk})
    chunks = tuple(
        tuple((block, used.index(at)) for block, at in chunk) for chunk in division.chunks
    )
    return Found(
        candidate=one.candidate,
        division=replace(division, chunks=chunks),
        bound_ns=min(one.bound_ns, division.step_ns),
        solved=tuple(solved[at] for at in used),
    )


def _solved(evaluator: Evaluator, one: Open, pools: Pools) -> list[Solved]:
    """Each column as a solution of all templates: its own, and any of the others'."""
    home = _homes(evaluator.programs.space(one.shape, evaluator.modes[0]))
    anyone = {template: next(iter(pool.columns)).options for template, pool in pools.items()}
    unit = evaluator.unit(one.candidate)
    found: dict[Column, Solved] = {}
    for template, pool in pools.items():
        for column in pool.columns:
            options = anyone | {template: column.options}
            merged = tuple(options[template][at] for at, template in enumerate(home))
            solution = Solution(
                options=merged, figures=(), cost=one.mixed_ns / unit, bound=one.bound_ns / unit
            )
            found.setdefault(Column(column.mode, merged), Solved(column.mode, solution))
    return list(found.values())


def _alike(loop: Loop, one: Open) -> Pools:
    """Columns that hand tensors on as most blocks of the relaxed plan program do."""
    problem, oracle = one.problem, loop.oracle
    known = loop.pools(one)
    plan = plan_program(problem, known)
    mixed = relaxation(plan.rows, loop.paths)
    if mixed.prices is None:
        return known
    space = oracle.programs.space(one.shape, oracle.modes[0])
    alike = _handover(space, plan, plan.held(mixed.values))
    own = BlockOracle(oracle.programs, oracle.modes, handover=tuple(alike.items()))
    pools = {template: own.pool(one.shape, template) for template in known}
    for template, pool in pools.items():
        for column, figures in known[template].columns.items():
            handed = _handed(space, template, column.options)
            if all(alike.get(tensor, state) == state for tensor, state in handed.items()):
                pool.columns[column] = figures
    for _ in range(ROUNDS):
        wanted = spread(price_vectors(problem, mixed), 2 * SPREAD)
        asks = [PriceAsk(one.shape, t, vector) for vector in wanted for t in pools]
        if not own.ask(asks) or not all(pool.columns for pool in pools.values()):
            break
        mixed = relaxation(plan_program(problem, pools).rows, loop.paths)
        if mixed.prices is None:
            break
    oracle.solved += own.solved
    return pools


def _handover(
    space: Space, plan: PlanProgram, held: dict[tuple[int, int], dict[Column, float]]
) -> dict[str, int]:
    """States in which most blocks make what they hand on, those of the most blocks first."""
    amounts: dict[str, dict[Column, float]] = {}
    for (_, run), columns in held.items():
        mine = amounts.setdefault(plan.rows.problem.runs[run][0], {})
        for column, amount in columns.items():
            mine[column] = mine.get(column, 0.0) + amount
    found: dict[str, int] = {}
    for template in sorted(amounts, key=lambda one: -sum(amounts[one].values())):
        columns = amounts[template]
        for column in sorted(columns, key=lambda one: -columns[one]):
            handed = _handed(space, template, column.options)
            if all(found.get(tensor, state) == state for tensor, state in handed.items()):
                found |= handed
                break
    return found


def _handed(space: Space, template: str, options: Options) -> dict[str, int]:
    """States of what a template's blocks hand on, or read from others."""
    home = _homes(space)
    touched = {
        net.tensor
        for net in space.nets
        if template in {home[at] for at in (net.producer, *(use.choice for use in net.uses))}
    }
    states: Handover = handover(space, options)
    return {tensor: state for tensor, state in states if tensor in touched}


def _homes(space: Space) -> list[str]:
    """The template of every choice."""
    templates = space.folded.graph.templates
    return [templates[choice.ops[0].op.block] for choice in space.choices]
