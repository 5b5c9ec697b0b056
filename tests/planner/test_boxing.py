"""Boxing equals gather-then-reshard, and moves the bytes that its table says."""

from itertools import accumulate, product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millrace.executor.kernels.context import RunState
from millrace.executor.rank import RankState
from millrace.planner.actors.graph import ActorGraph, Meeting, Port
from millrace.planner.boxing import (
    BoxingStep,
    boxing_path,
    crossing,
    message_bytes,
    step_bytes,
)
from millrace.planner.compile.queue_orders import unordered
from millrace.planner.compile.stage_ir import BEGIN, ActorIR, StageIR
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.mesh import Axis
from millrace.planner.sbp import (
    BROADCAST,
    PARTIAL_MAX,
    PARTIAL_SUM,
    NdSbp,
    format_nd_sbp,
    local_shape,
    parse_nd_sbp,
    shard_offsets,
    split,
)
from tests.in_process import KernelWork, execute_lockstep

NAMES = ("outer", "middle", "inner")


def coordinates(sizes):
    return list(product(*map(range, sizes)))


def shards_of(tensor, sbp, sizes, rng):
    """Shards of all devices when the tensor lies as `sbp`, written from the definition."""
    shards = []
    for coordinate in coordinates(sizes):
        offsets = shard_offsets(tensor.shape, sbp, sizes, coordinate)
        local = local_shape(tensor.shape, sbp, sizes)
        region = tuple(slice(o, o + n) for o, n in zip(offsets, local, strict=True))
        shards.append(tensor[region].copy())
    for axis, axis_sbp in enumerate(sbp):
        if not axis_sbp.is_partial:
            continue
        for index, coordinate in enumerate(coordinates(sizes)):
            if coordinate[axis] == 0:
                group = [
                    i
                    for i, other in enumerate(coordinates(sizes))
                    if other[:axis] + other[axis + 1 :]
                    == coordinate[:axis] + coordinate[axis + 1 :]
                ]
                parts = rng.integers(-50, 50, (len(group), *shards[index].shape)).astype(float)
                if axis_sbp == PARTIAL_SUM:
                    parts[0] = shards[index] - parts[1:].sum(axis=0)
                else:
                    parts = np.minimum(parts, shards[index])
                    parts[rng.integers(len(group))] = shards[index]
                for member, part in zip(group, parts, strict=True):
                    shards[member] = part
    return shards


def combined(shards, shape, sbp, sizes):
    """The tensor rebuilt, by reducing partial axes and placing every shard."""
    kinds = {axis_sbp.reduction for axis_sbp in sbp if axis_sbp.is_partial}
    tensor = np.full(shape, -np.inf if kinds == {"max"} else 0.0)
    for shard, coordinate in zip(shards, coordinates(sizes), strict=True):
        if any(axis_sbp == BROADCAST and c for axis_sbp, c in zip(sbp, coordinate, strict=True)):
            continue
        offsets = shard_offsets(shape, sbp, sizes, coordinate)
        region = tuple(slice(o, o + n) for o, n in zip(offsets, shard.shape, strict=True))
        if kinds == {"max"}:
            tensor[region] = np.maximum(tensor[region], shard)
        else:
            tensor[region] += shard
    return tensor


def chain(path: tuple[BoxingStep, ...], shape, sizes, source: NdSbp) -> ActorGraph:
    """An actor graph whose only work is to take one register along a boxing path."""
    draft = StageIR(sizes)
    register = draft.add_register(
        name="source", tensor="x", shape=shape, dtype="float64", sbp=source,
        memory_kind="activation", initial=1,
    )  # fmt: skip
    for number, step in enumerate(path):
        after = draft.add_register(
            name=f"after {number}", tensor="x", shape=shape, dtype="float64", sbp=step.after,
            memory_kind="activation",
        )  # fmt: skip
        meeting = None
        if step.kind not in ("slice", "pad"):
            meeting = Meeting(
                key=f"step {number}",
                kind=step.kind,
                axes=tuple(NAMES[axis] for axis in step.axes),
                reduction=step.before[step.axes[0]].reduction,
                message_bytes=message_bytes(step, shape, 8, sizes),
            )
        draft.add_actor(
            ActorIR(
                name=f"step {number}", kind=step.kind, section=BEGIN, firings=1,
                inputs=(Port(register=register),), outputs=(Port(register=after),),
                meeting=meeting, lane="compute" if meeting is None else "lane",
            )
        )  # fmt: skip
        register = after
    program = unordered(draft, "stage 0", 0, ())
    ends = accumulate((register.slot_bytes for register in program.registers), initial=0)
    registers = tuple(
        replace(register, offset_bytes=begin)
        for register, begin in zip(program.registers, ends, strict=False)
    )
    axes = tuple(Axis(name=name, size=n) for name, n in zip(NAMES, sizes, strict=False))
    return ActorGraph(name="boxing", axes=axes, programs=(replace(program, registers=registers),))


@st.composite
def cases(draw):
    sizes = tuple(draw(st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=3)))
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.sampled_from((6, 12, 36)), min_size=ndim, max_size=ndim)))
    reduction = draw(st.sampled_from((PARTIAL_SUM, PARTIAL_MAX)))
    states = [BROADCAST, reduction, *(split(dim) for dim in range(ndim))]
    goals = [BROADCAST, PARTIAL_SUM, *(split(dim) for dim in range(ndim))]
    source = tuple(draw(st.sampled_from(states)) for _ in sizes)
    target = tuple(draw(st.sampled_from(goals)) for _ in sizes)
    return sizes, shape, source, target, draw(st.integers(0, 2**32 - 1))


@given(cases())
@settings(max_examples=150, deadline=None)
def test_boxing_equals_gather_then_reshard(case):
    sizes, shape, source, target, seed = case
    rng = np.random.default_rng(seed)
    try:
        local_shape(shape, source, sizes), local_shape(shape, target, sizes)
        path = boxing_path(source, target, sizes, shape)
    except (InfeasibleError, PlanError):
        return
    tensor = rng.integers(-50, 50, shape).astype(float)
    graph = chain(path, shape, sizes, source)
    states = []
    for rank, shard in enumerate(shards_of(tensor, source, sizes, rng)):
        run = RunState(seed=0, dataset=None, global_batch=1, microbatches=1, batch=1)
        state = RankState(graph, rank, run)
        state.arena.views[0][0][...] = shard
        states.append(state)
    work = KernelWork(states)
    execute_lockstep(graph, 1, work, work.meet)
    after = path[-1].after if path else source
    shards = [state.arena.views[-1][0] for state in states]
    np.testing.assert_array_equal(combined(shards, shape, after, sizes), tensor)
    for axis_sbp, wanted, size in zip(after, target, sizes, strict=True):
        assert axis_sbp == wanted or size == 1


@given(cases())
@settings(max_examples=200, deadline=None)
def test_the_bytes_of_a_step_are_those_that_a_device_lacks(case):
    sizes, shape, source, target, _ = case
    try:
        local_shape(shape, source, sizes), local_shape(shape, target, sizes)
        path = boxing_path(source, target, sizes, shape)
    except (InfeasibleError, PlanError):
        return
    for step in path:
        group = prod(sizes[axis] for axis in step.axes)
        for coordinate in coordinates(sizes):
            before = elements(shape, step.before, sizes, coordinate)
            after = elements(shape, step.after, sizes, coordinate)
            if step.kind in ("slice", "pad"):
                lacks = 0
                assert step.kind == "pad" or after <= before
            elif step.kind == "reduce_scatter":
                lacks = (group - 1) * len(after)
            elif step.kind == "all_reduce":
                lacks = 2 * (group - 1) * len(after) // group
            else:
                lacks = len(after - before)
            assert step_bytes(step, shape, 1, sizes) == lacks


def elements(shape, sbp, sizes, coordinate):
    """Flat indexes of the elements that the device at a coordinate holds (partial or whole)."""
    offsets = shard_offsets(shape, sbp, sizes, coordinate)
    local = local_shape(shape, sbp, sizes)
    grid = np.arange(prod(shape)).reshape(shape)
    region = tuple(slice(o, o + n) for o, n in zip(offsets, local, strict=True))
    return frozenset(grid[region].ravel().tolist())


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ("S(0)", "B", ["all_gather"]),
        ("P(sum)", "B", ["all_reduce"]),
        ("P(max)", "B", ["all_reduce"]),
        ("P(sum)", "S(1)", ["reduce_scatter"]),
        ("S(0)", "S(1)", ["all_to_all"]),
        ("B", "S(0)", ["slice"]),
        ("B", "P(sum)", ["pad"]),
        ("S(1)", "P(sum)", ["pad"]),
    ],
)
def test_one_axis_takes_one_step(source, target, kinds):
    path = boxing_path(parse_nd_sbp(source), parse_nd_sbp(target), (4,), (8, 8))
    assert [step.kind for step in path] == kinds


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        ("(S(0), S(0))", "(B, B)", "all_gather"),
        ("(S(1), S(1))", "(B, B)", "all_gather"),
        ("(P(sum), P(sum))", "(B, B)", "all_reduce"),
        ("(P(sum), P(sum))", "(S(0), S(0))", "reduce_scatter"),
        ("(P(sum), P(sum))", "(S(1), S(1))", "reduce_scatter"),
    ],
)
def test_axes_that_lie_alike_take_one_step_together(source, target, kind):
    (step,) = boxing_path(parse_nd_sbp(source), parse_nd_sbp(target), (2, 4), (16, 16))
    assert (step.kind, step.axes) == (kind, (0, 1))


def test_sums_are_not_scattered_at_once_around_an_axis_that_splits_the_same_dim():
    # The outer axis cuts what the middle one cut already: shards would lie in another order.
    source, target = parse_nd_sbp("(P(sum), S(0), P(sum))"), parse_nd_sbp("(S(0), S(0), S(0))")
    path = boxing_path(source, target, (2, 2, 2), (8,))
    assert all(step.axes != (0, 2) for step in path)
    assert path[-1].after == target


def test_a_maximum_cannot_become_a_sum():
    with pytest.raises(InfeasibleError, match=r"no boxing from B to P\(max\)"):
        boxing_path((BROADCAST,), (PARTIAL_MAX,), (2,), (4,))


def test_a_partial_value_is_reduced_before_it_crosses_stages():
    way = crossing(parse_nd_sbp("P(sum)"), parse_nd_sbp("S(0)"), (4,), (8, 8))
    assert [step.kind for step in way.before] == ["reduce_scatter"]
    assert format_nd_sbp(way.carried) == "S(0)"
    assert way.after == ()
