"""Buckets change how many messages carry gradients and weights, and no bit of what they carry."""

import numpy as np
import pytest

from millrace.executor.streams.commands import command_buffer
from millrace.executor.streams.races import find_races
from millrace.executor.streams.validate import validate
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.memory import plan_memory
from tests.bucketed_plans import CASES, compiled, searched
from tests.parallel_runs import run
from tests.test_agreement import executed, simulated

STEPS = 2


def parameters(name: str, actors: ActorGraph) -> dict[tuple[int, str], np.ndarray]:
    """Variables and optimizer states of every rank after some steps, by rank and name."""
    plan, graph = searched(name)
    return {
        (state.rank, register.name): state.arena.views[index][slot].copy()
        for state in run(plan, graph, actors, STEPS)
        for index, register in enumerate(state.program.registers)
        if register.initial
        for slot in range(register.slots)
    }


@pytest.mark.parametrize("name", CASES)
def test_training_in_buckets_is_to_the_bit_that_without(name: str) -> None:
    alone, together = (parameters(name, actors) for actors in compiled(name))
    assert alone.keys() == together.keys()
    for key, value in alone.items():
        np.testing.assert_array_equal(together[key], value, err_msg=str(key))


@pytest.mark.parametrize("name", CASES)
def test_streams_of_buckets_have_no_races(name: str) -> None:
    _, actors = compiled(name)
    for ranks in ((0,), tuple(range(actors.ranks))):
        buffer = validate(actors, command_buffer(actors, ranks))
        assert find_races(actors, buffer) == []


@pytest.mark.parametrize("name", ["ZeRO 3", "dp with pp"])
def test_both_clocks_show_the_same_firings_of_buckets(name: str) -> None:
    _, actors = compiled(name)
    assert any(actor.meeting and actor.meeting.parts > 1 for actor in actors.programs[0].actors)
    on_paper, in_life = simulated(actors, 1), executed(actors, 1)
    assert on_paper.records == in_life.records
    assert on_paper.slots == in_life.slots


@pytest.mark.parametrize("name", CASES)
def test_the_formula_of_memory_knows_what_buckets_hold(name: str) -> None:
    alone, together = compiled(name)
    predicted = [stage.arena_bytes for stage in plan_memory(searched(name)[0])]
    assert predicted == [program.memory_bytes for program in together.programs]
    before = [program.memory_bytes for program in alone.programs]
    assert all(now <= then for now, then in zip(predicted, before, strict=True))
