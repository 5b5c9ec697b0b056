"""Breakdown: what the planner's step time of a plan is made of.

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
from millrace.planner.roles import label_role
from millrace.planner.search.blocks.space import Net as SpaceNet
from millrace.planner.search.blocks.space import Space
from millrace.planner.search.blocks.states import digits
from millrace.planner.search.blocks.tables import DEFERRABLE, MICROBATCH, STEP, Net
from millrace.planner.search.evaluation import Evaluator, Found
from millrace.planner.search.programs import Programs, Shape
from millrace.planner.search.stages.shape import deferred_ns

COMPUTE, RECOMPUTE, UPDATE = "compute", "recomputation", "optimizer update"
BUBBLE, UNEVEN, SENDS = "pipeline bubble", "uneven stages", "sends between stages"
NAMES = {"dp": "data", "tp": "tensor", "cp": "context", "ep": "expert"}
Parts = dict[str, float]
Blocks = dict[str, tuple[Parts, Parts]]  # per template: of a microbatch, of a step


def breakdown(evaluator: Evaluator, found: Found) -> Parts:
    """Return nanoseconds of the step by what they go to; they sum up to `division.step_ns`."""
    pipeline = evaluator.sends.pipeline(found.candidate)
    shape = evaluator.shape(found.candidate)
    templates = evaluator.graph.templates
    programs = evaluator.programs
    solved = [(one.mode, one.solution.options) for one in found.solved]
    figures = [[programs.block_figures(part, *one) for one in solved] for part in shape.parts]
    shares = [[block_parts(programs, part, *one) for one in solved] for part in shape.parts]
    busy, update = [0.0] * (pipeline.stages * pipeline.rows), [0.0] * pipeline.stages
    work: Parts = {}
    once: Parts = {}
    deferred = 0.0
    for position, chunk in enumerate(found.division.chunks):
        stage = pipeline.stage_of(position)
        kind = pipeline.kinds[stage]
        for block, variant in chunk:
            template = templates[block]
            one = figures[kind][variant][template]
            busy[pipeline.place_of(position)] += one.microbatch_ns
            update[stage] += one.step_ns
            deferred += deferred_ns(one, pipeline)
            for sums, mine in zip((work, once), shares[kind][variant][template], strict=True):
                for name, time in mine.items():
                    sums[name] = sums.get(name, 0.0) + time
    mean, ramp = sum(busy) / pipeline.stages, pipeline.ramp
    parts = _scaled(work, pipeline.microbatches * mean)
    for name, time in _scaled(once, max(update)).items():
        parts[name] = parts.get(name, 0.0) + time
    parts[BUBBLE] = ramp * ((pipeline.stages - 1) * mean - deferred)
    paces = pipeline.microbatches - ramp
    alone = replace(pipeline, sent_ns=0).pace(busy)
    parts[UNEVEN] = paces * (alone - mean)
    parts[SENDS] = paces * (pipeline.pace(busy) - alone) + pipeline.sent_ns
    # What the order takes beyond that, stages wait for what is sent.
    parts[SENDS] += max(found.division.step_ns - sum(parts.values()), 0.0)
    return {name: time for name, time in parts.items() if time}


def busy_ns(parts: Parts) -> float:
    """The time of a step in which a device computes."""
    return sum(parts.get(name, 0.0) for name in (COMPUTE, RECOMPUTE, UPDATE))


def _scaled(parts: Parts, total: float) -> Parts:
    whole = sum(parts.values())
    return {name: time * total / whole for name, time in parts.items()} if whole else {}


def block_parts(programs: Programs, shape: Shape, mode: str, options: tuple[int, ...]) -> Blocks:
    """Return what the blocks of every template spend, of all blocks together."""
    space = programs.space(shape, mode)
    tables, row = programs.priced(shape, mode)
    plain, plain_row = programs.priced(shape, "none")
    home = [programs.graph.templates[choice.ops[0].op.block] for choice in space.choices]
    found: Blocks = {template: ({}, {}) for template in home}
    times = dict.fromkeys(home, 0)
    for choice, template in zip(tables.choices, home, strict=True):
        times[template] = max(times[template], choice.count)

    def add(template: str, step: bool, name: str, time: float) -> None:
        if time:
            parts = found[template][step]
            parts[name] = parts.get(name, 0.0) + time / times[template]

    for at, (choice, template) in enumerate(zip(tables.choices, home, strict=True)):
        mine = choice.count * choice.figures[:, options[at], row]
        without = choice.count * plain.choices[at].figures[:, options[at], plain_row]
        again = max(0, int(mine[MICROBATCH] - without[MICROBATCH]))
        add(template, False, COMPUTE, int(mine[MICROBATCH] + mine[DEFERRABLE]) - again)
        add(template, False, RECOMPUTE, again)
        add(template, True, UPDATE, int(mine[STEP]))
    named = _axis_names(space, options)
    for net in tables.nets:
        template = home[net.uses[0].choice]
        for name, time in _moves(space, space.nets[net.number], net, options, row, named):
            add(template, net.figure == STEP, name, net.count * time)
    return found


def _axis_names(space: Space, options: tuple[int, ...]) -> list[str]:
    """The role of every axis: what most products split over it."""
    found = []
    for axis in range(space.axes):
        split: Counter[str] = Counter()
        for choice, option in zip(space.choices, options, strict=True):
            for one in choice.ops:
                role = label_role(one.base[one.taken[axis, option]].label)
                if role and op_kind(one.op.kind).products:
                    split[role] += choice.count
        found.append(max(sorted(split), key=lambda role: split[role]) if split else "dp")
    return found


def _moves(
    space: Space, whole: SpaceNet, net: Net, options: tuple[int, ...], row: int, named: list[str]
) -> list[tuple[str, int]]:
    """Name and time of every boxing of a net."""
    source = int(net.makes[options[net.producer]])
    readers: dict[int, int] = {}
    for use in net.uses:
        readers.setdefault(int(use.wants[options[use.choice]]), use.choice)
    found = []
    for target, reader in readers.items():
        time = int(net.duration_ns[source, target, row])
        if not time:
            continue
        before = digits(whole.sources[source : source + 1], space.axes)[:, 0]
        after = digits(whole.targets[target : target + 1], space.axes)[:, 0]
        roles = set()
        for axis in np.flatnonzero(before != after).tolist():
            ends = (net.producer, reader)
            experts = any(_label(space, end, options, axis) == EXPERT for end in ends)
            roles.add("ep" if experts else named[axis])
        words = "- and ".join(NAMES[role] for role in sorted(roles)) or "other"
        found.append((f"{words}-parallel communication", time))
    return found


def _label(space: Space, choice: int, options: tuple[int, ...], axis: int) -> str | None:
    first = space.choices[choice].ops[0]
    label: str | None = first.base[int(first.taken[axis, options[choice]])].label
    return label
