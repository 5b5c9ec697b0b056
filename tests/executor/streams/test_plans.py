"""Command buffers of plans of every family and kind of parallelism, one plan after another.

A plan costs more to search and compile than anything that is asked of its buffers, so one test asks
all of it.
"""

from functools import partial
from random import Random

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.streams import CommandBuffer, command_buffer, find_races, interpret, validate
from millrace.planner.actors.graph import ActorGraph, Leave
from millrace.planner.plan import Plan
from tests.executor.streams.buffers import FiredBy, plans, waits_of, without
from tests.in_process import KernelWork
from tests.parallel_runs import initial_states, run

STEPS = 2  # the second finds what the first has left
FEW, SAMPLED = 6, 3  # waits of a program
# These are every family, kind of parallelism, and case of recomputation and offload in one of both.
DEFAULT = (
    *("llama dp2 tp2", "mistral cp2 ringFalse", "mpt dp4 zero3-hybrid", "mixtral dp4 ep2"),
    *("deepseek dp2 pp2 ep2", "t5 tp2 pp2", "vit dp2 pp2", "resnet dp4", "wide-deep tp2"),
    *("face dp2 tp2", "gpt: pp", "gpt: gpipe", "gpt: zero bubble", "gpt: interleaved pp"),
    *("gpt: sequence-parallel tp", "gpt: ring", "gpt: vocabulary-parallel loss"),
    *("gpt: ZeRO 1 over two axes", "gpt: ZeRO 2", "gpt: ZeRO 3"),
    *("recomputed: 1f1b", "recomputed: sequence-parallel tp", "recomputed: experts"),
    *("offloaded: interleaved", "offloaded: dp with dropout", "offloaded: ZeRO 3"),
)
SPLIT = ("llama dp2 tp2", "t5 tp2 pp2", "gpt: zero bubble", "offloaded: ZeRO 3")
TRAINED = (
    *("gpt: pp", "gpt: interleaved pp", "mixtral dp4 ep2", "deepseek dp2 pp2 ep2", "resnet dp4"),
    *("wide-deep tp2", "recomputed: 1f1b", "recomputed: sequence-parallel tp"),
    *("offloaded: interleaved", "offloaded: ZeRO 3"),
)


def test_every_plan_that_is_named_is_there() -> None:
    assert set(DEFAULT) <= plans().keys()
    assert {*SPLIT, *TRAINED} <= set(DEFAULT)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in DEFAULT else pytest.mark.exhaustive)
        for name in plans()
    ],
)
def test_buffers_of_plans_are_valid_and_have_no_race_and_no_wait_too_many(name: str) -> None:
    plan, graph = plans()[name]()
    joint = validate(graph, command_buffer(graph, range(graph.ranks)))
    assert_no_races_with_all_waits_and_some_without_one(graph, name)
    if name in SPLIT:
        assert_ranks_have_the_same_commands_alone_as_among_others(graph, joint)
        assert_every_queue_that_waits_for_completion_is_a_stream(graph, joint)
    if name in TRAINED:
        assert_training_in_any_order_leaves_the_bits_of_lockstep(plan, graph, joint)


def assert_no_races_with_all_waits_and_some_without_one(graph: ActorGraph, name: str) -> None:
    """Require that every wait protects bytes, but for what a collective only waits for.

    All waits of a short program are tried, and a few of a long one.
    """
    random = Random(name)
    for program in graph.programs:
        buffer = command_buffer(graph, program.ranks[:1])
        assert [race.message for race in find_races(graph, buffer)] == []
        waits = waits_of(buffer)
        for number, wait in waits if len(waits) <= FEW else random.sample(waits, SAMPLED):
            less = without(buffer, number, wait)
            if not find_races(graph, less):
                assert len(program.actors[buffer.steps[0][number].actor].inputs) > 1
                with pytest.raises(ExecutorError, match="may begin before"):
                    validate(graph, less)


def rank_commands(buffer: CommandBuffer, rank: int) -> list[tuple[object, ...]]:
    """A rank's commands, with waits by actor and firing instead of numbers."""
    commands = buffer.steps[0]
    return sorted(
        (
            *command[:6],
            command.records,
            sorted((commands[other].actor, commands[other].firing) for other in command.waits),
        )
        for command in commands
        if command.rank == rank
    )


def assert_ranks_have_the_same_commands_alone_as_among_others(
    graph: ActorGraph, joint: CommandBuffer
) -> None:
    of = partial(command_buffer, graph)
    assert rank_commands(joint, 0) == rank_commands(of(range(graph.ranks), folded=True), 0)
    assert rank_commands(joint, 1) == rank_commands(of((1,), folded=False), 1)
    for rank in range(graph.ranks):
        assert rank_commands(joint, rank) == rank_commands(of((rank,)), rank)


def assert_every_queue_that_waits_for_completion_is_a_stream(
    graph: ActorGraph, joint: CommandBuffer
) -> None:
    queues = graph.programs[0].queues
    assert joint.streams[0] == tuple(
        queue.name for queue in queues if queue.leave is Leave.COMPLETED
    )
    assert "launch" not in joint.streams[0]


def assert_training_in_any_order_leaves_the_bits_of_lockstep(
    plan: Plan, graph: ActorGraph, joint: CommandBuffer
) -> None:
    states = initial_states(plan, plan.graph, graph)
    interpret(joint, FiredBy(KernelWork(states)), seed=len(joint.steps[0]), steps=STEPS)
    for state, expected in zip(states, run(plan, plan.graph, graph, STEPS), strict=True):
        assert len(state.run_state.totals) == STEPS
        assert state.run_state.totals == expected.run_state.totals
        for index, register in enumerate(state.program.registers):
            if register.initial:
                views = (rank_state.arena.views[index][0] for rank_state in (state, expected))
                np.testing.assert_array_equal(*views, err_msg=register.name)


def test_plans_that_are_trained_have_slots_that_begin_anew_every_step() -> None:
    """Where slots do not divide microbatches, the protocol's go on and the buffer's do not."""
    _, graph = plans()["gpt: pp"]()
    assert any(
        actor.firings // port.hold % program.registers[port.register].slots
        for program in graph.programs
        for actor in program.actors
        for port in actor.outputs
    )
