"""Breakdown: the parts of the planner's step time of a plan.

With m microbatches, p stages of times t, and the ramp r and paces of `stages.shape`::

    step = m mean(t) + (m - r)(pace of times - mean(t)) + r((p - 1) mean(t) - deferred)
           work        uneven stages                      pipeline bubble
           + (m - r)(pace - pace of times) + sent + max(update)
             sends between stages                   once a step

Work and what is done once a step are shared out over computing, recomputing, and communication by
the role of the mesh axes that it crosses.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from millrace.models.labels import EXPERT
from millrace.models.ops import op_kind
from millrace.planner.formatting import percent
from millrace.planner.parallel_degrees import label_role
from millrace.planner.search.blocks.cost_tables import DEFERRABLE, MICROBATCH, STEP, EdgeCosts
from millrace.planner.search.blocks.sbp_codes import digits
from millrace.planner.search.blocks.strategies import ReshardingEdge, StrategySpace
from millrace.planner.search.evaluation import Evaluator, SolvedPlan
from millrace.planner.search.programs import Programs, Shape
from millrace.planner.search.stages.shape import deferred_ns

COMPUTE, RECOMPUTE, UPDATE = "compute", "recomputation", "optimizer update"
BUBBLE, UNEVEN, SENDS = "pipeline bubble", "uneven stages", "sends between stages"
NAMES = {"dp": "data", "tp": "tensor", "cp": "context", "ep": "expert"}
Parts = dict[str, float]
Blocks = dict[str, tuple[Parts, Parts]]  # per template: of a microbatch, of a step


def breakdown(evaluator: Evaluator, best_plan: SolvedPlan) -> Parts:
    """Nanoseconds of the step by what they go to; they sum up to `division.step_ns`.

    Parameters
    ----------
    evaluator : Evaluator
        That of the search, which has solved the plan's block programs.
    best_plan : SolvedPlan
        Division of the blocks, and the solutions that it numbers.

    Returns
    -------
    dict of str to float
        Parts that are 0 are left out.
    """
    pipeline = evaluator.sends.pipeline(best_plan.candidate)
    shape = evaluator.shape(best_plan.candidate)
    templates = evaluator.graph.templates
    programs = evaluator.programs
    solved = [(solved_mode.mode, solved_mode.solution.options) for solved_mode in best_plan.solved]
    figures = [
        [programs.block_figures(part, *mode_options) for mode_options in solved]
        for part in shape.parts
    ]
    shares = [
        [block_parts(programs, part, *mode_options) for mode_options in solved]
        for part in shape.parts
    ]
    busy, update = [0.0] * (pipeline.stages * pipeline.rows), [0.0] * pipeline.stages
    work: Parts = {}
    once: Parts = {}
    deferred = 0.0
    for position, chunk in enumerate(best_plan.division.chunks):
        stage = pipeline.stage_of(position)
        kind = pipeline.kinds[stage]
        for block, variant in chunk:
            template = templates[block]
            block_ns = figures[kind][variant][template]
            busy[pipeline.place_of(position)] += block_ns.microbatch_ns
            update[stage] += block_ns.step_ns
            deferred += deferred_ns(block_ns, pipeline)
            for sums, times in zip((work, once), shares[kind][variant][template], strict=True):
                for name, time in times.items():
                    sums[name] = sums.get(name, 0.0) + time
    mean, ramp = sum(busy) / pipeline.stages, pipeline.ramp
    parts = _scaled(work, pipeline.microbatches * mean)
    for name, time in _scaled(once, max(update)).items():
        parts[name] = parts.get(name, 0.0) + time
    parts[BUBBLE] = ramp * ((pipeline.stages - 1) * mean - deferred)
    paces = pipeline.microbatches - ramp
    alone = float(replace(pipeline, sent_ns=0).pace(busy))
    parts[UNEVEN] = paces * (alone - mean)
    parts[SENDS] = paces * (float(pipeline.pace(busy)) - alone) + pipeline.sent_ns
    # Time that the order takes beyond that is spent waiting for what is sent.
    parts[SENDS] += max(best_plan.division.step_ns - sum(parts.values()), 0.0)
    return {name: time for name, time in parts.items() if time}


def cause(parts: Parts, other_parts: Parts, effect: float, objective_ns: float) -> str:
    """Part that makes another plan slower; with the one that shrinks where it grows by far more.

    Parameters
    ----------
    parts, other_parts : dict of str to float
        Breakdowns of the chosen plan and of the other.
    effect : float
        Share of the chosen plan's step that the other takes longer.
    objective_ns : float
        The chosen plan's step.
    """
    more = growth(parts, other_parts)
    largest = max(more, key=lambda name: more[name])
    if more[largest] <= 1.5 * effect * objective_ns:
        return largest
    gained = min(more, key=lambda name: more[name])
    return (
        f"{largest} +{percent(more[largest] / objective_ns)}, "
        f"{gained} {percent(more[gained] / objective_ns)}"
    )


def growth(parts: Parts, other_parts: Parts) -> Parts:
    """Nanoseconds by which every part of another plan's step is longer.

    Parameters
    ----------
    parts, other_parts : dict of str to float
        Breakdowns of the one plan and of the other.
    """
    return {
        name: other_parts.get(name, 0.0) - parts.get(name, 0.0) for name in {**parts, **other_parts}
    }


def busy_ns(parts: Parts) -> float:
    """Nanoseconds of a step in which a device computes."""
    return sum(parts.get(name, 0.0) for name in (COMPUTE, RECOMPUTE, UPDATE))


def _scaled(parts: Parts, total: float) -> Parts:
    parts_sum = sum(parts.values())
    return {name: time * total / parts_sum for name, time in parts.items()} if parts_sum else {}


def block_parts(programs: Programs, shape: Shape, mode: str, options: tuple[int, ...]) -> Blocks:
    """Nanoseconds that a block of every template spends by what they go to, on average."""
    space = programs.space(shape, mode)
    tables, row = programs.priced(shape, mode)
    plain, plain_row = programs.priced(shape, "none")
    home = [programs.graph.templates[choice.ops[0].op.block] for choice in space.choices]
    parts_by_template: Blocks = {template: ({}, {}) for template in home}
    times = dict.fromkeys(home, 0)
    for choice, template in zip(tables.choices, home, strict=True):
        times[template] = max(times[template], choice.count)

    def add(template: str, step: bool, name: str, time: float) -> None:
        if time:
            parts = parts_by_template[template][step]
            parts[name] = parts.get(name, 0.0) + time / times[template]

    for number, (choice, template) in enumerate(zip(tables.choices, home, strict=True)):
        figures = choice.count * choice.figures[:, options[number], row]
        without = choice.count * plain.choices[number].figures[:, options[number], plain_row]
        recompute_ns = max(0, int(figures[MICROBATCH] - without[MICROBATCH]))
        add(template, False, COMPUTE, int(figures[MICROBATCH] + figures[DEFERRABLE]) - recompute_ns)
        add(template, False, RECOMPUTE, recompute_ns)
        add(template, True, UPDATE, int(figures[STEP]))
    named = _axis_names(space, options)
    for edge in tables.edges:
        template = home[edge.uses[0].choice]
        for name, time in _moves(space, space.edges[edge.number], edge, options, row, named):
            add(template, edge.figure == STEP, name, edge.count * time)
    return parts_by_template


def _axis_names(space: StrategySpace, options: tuple[int, ...]) -> list[str]:
    """Role of every axis: the one that most products are split for over it."""
    roles = []
    for axis in range(space.axes):
        split: Counter[str] = Counter()
        for choice, option in zip(space.choices, options, strict=True):
            for op_options in choice.ops:
                role = label_role(op_options.base[op_options.base_indices[axis, option]].label)
                if role and op_kind(op_options.op.kind).products:
                    split[role] += choice.count
        roles.append(max(sorted(split), key=lambda role: split[role]) if split else "dp")
    return roles


def _moves(
    space: StrategySpace,
    space_edge: ReshardingEdge,
    edge: EdgeCosts,
    options: tuple[int, ...],
    row: int,
    named: list[str],
) -> list[tuple[str, int]]:
    """Name and time of every boxing of an edge."""
    source = int(edge.source_of[options[edge.producer]])
    readers: dict[int, int] = {}
    for use in edge.uses:
        readers.setdefault(int(use.target_of[options[use.choice]]), use.choice)
    moves = []
    for target, reader in readers.items():
        time = int(edge.duration_ns[source, target, row])
        if not time:
            continue
        before = digits(space_edge.sources[source : source + 1], space.axes)[:, 0]
        after = digits(space_edge.targets[target : target + 1], space.axes)[:, 0]
        roles = set()
        for axis in np.flatnonzero(before != after).tolist():
            ends = (edge.producer, reader)
            experts = any(_label(space, end, options, axis) == EXPERT for end in ends)
            roles.add("ep" if experts else named[axis])
        words = "- and ".join(NAMES[role] for role in sorted(roles)) or "other"
        moves.append((f"{words}-parallel communication", time))
    return moves


def _label(space: StrategySpace, choice: int, options: tuple[int, ...], axis: int) -> str | None:
    first = space.choices[choice].ops[0]
    label: str | None = first.base[int(first.base_indices[axis, options[choice]])].label
    return label
