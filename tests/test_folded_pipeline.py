"""The V-shaped zero bubble computes what a single device computes, and sends less than a loop."""

import dataclasses
from collections.abc import Iterator
from functools import cache

import pytest
from msgspec.structs import replace

from millrace.executor.streams import command_buffer, find_races
from millrace.models.graph import Graph
from millrace.models.zoo.catalogue import build_training
from millrace.planner.actors.graph import ActorGraph, Program
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Chunk, Plan
from millrace.planner.schedules import SCHEDULES, stage_of
from millrace.planner.search.request import Pins
from millrace.simulator import predict
from tests.parallel_runs import assert_trains_as_one_device
from tests.plan_requests import plan_of
from tests.small_models import small
from tests.test_same_mathematics import (
    GLOBAL_BATCH,
    MICROBATCHES,
    STEPS,
    TRAINING,
    reference,
)


@cache
def planned(schedule: str, tp: int = 1) -> tuple[Plan, Graph, ActorGraph]:
    """Plan, graph and actors of the same four chunks on two stages: in a loop, or folded."""
    pins = Pins(dp=1, tp=tp, pp=2, schedule="interleaved-1f1b", interleave=2, micro_batch=4)
    plan = plan_of(small("gpt", "fp64"), 2 * tp, GLOBAL_BATCH, training=TRAINING, pins=pins)
    blocks = [chunk.blocks for chunk in plan.chunks]
    stages = [stage_of(schedule, k, 2) for k in range(4)]
    plan = replace(
        plan,
        schedule=schedule,
        interleave=len(blocks) // 2,
        chunks=tuple(Chunk(stage=s, blocks=b) for s, b in zip(stages, blocks, strict=True)),
        pins={},
    )
    graph = build_training(plan.model, plan.training, plan.batch)
    return plan, graph, compile_plan(plan)


@pytest.mark.parametrize(("schedule", "tp"), [("zb-v", 1), ("dualpipe-v", 1), ("dualpipe-v", 2)])
def test_the_v_trains_as_a_single_device(schedule, tp):
    assert MICROBATCHES > 2
    plan, graph, actors = planned(schedule, tp)
    assert_trains_as_one_device(plan, graph, actors, reference("fp64"), STEPS)


def wrongly_placed(program: Program) -> Iterator[Program]:
    """The program with one register moved: a version onto the next one, or into its neighbour."""
    for index, register in enumerate(program.registers):
        first, second, *others = register.places or (0, 0)
        onto = replace(register, places=(second, second, *others))
        beside = replace(register, within_bytes=register.within_bytes + register.slot_bytes // 2)
        for wrong in (onto, beside) if first != second else ():
            registers = [*program.registers]
            registers[index] = wrong
            yield replace(program, registers=tuple(registers))


def test_what_shares_places_is_not_there_at_once_and_a_wrong_place_is_found():
    _, _, actors = planned("zb-v")
    for number, program in enumerate(actors.programs):
        assert find_races(actors, command_buffer(actors, program.ranks)) == []
        wrong = list(wrongly_placed(program))
        assert wrong
        for misplaced in wrong[:: len(wrong) // 12]:
            programs = [*actors.programs]
            programs[number] = misplaced
            moved = replace(actors, programs=tuple(programs))
            assert find_races(moved, command_buffer(moved, program.ranks))


def test_slots_that_run_beside_one_another_share_no_place():
    _, _, actors = planned("dualpipe-v", 2)
    for program in actors.programs:
        assert find_races(actors, command_buffer(actors, program.ranks)) == []


def test_nothing_is_sent_where_the_v_turns_nor_between_its_ends():
    _, _, actors = planned("zb-v")
    _, _, loop = planned("interleaved-1f1b")

    def sends(graph: ActorGraph) -> int:
        return sum(actor.kind == "send" for p in graph.programs for actor in p.actors)

    # Activations and gradients between positions 1 and 2 stay on the last stage, and the tied
    # table and its gradient on the first.
    assert sends(actors) == sends(loop) - 4


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_any_number_of_microbatches_runs_to_its_end(schedule, microbatches):
    plan, _, _ = planned(schedule)
    plan = replace(plan, microbatches=microbatches)
    assert compile_plan(plan).ranks == 2


def test_a_pair_hides_what_either_of_its_slots_communicates(monkeypatch):
    """On GPUs, with products split over two ranks, for whose sums a stage would wait."""
    plan, _, _ = planned("dualpipe-v", 2)
    apart = dataclasses.replace(SCHEDULES["dualpipe-v"], name="apart", pairs=False)
    monkeypatch.setitem(SCHEDULES, apart.name, apart)
    on_gpus = replace(plan, cluster=parse_cluster("a100-sxm-80gb:4x1"), microbatches=8)
    paired_ns, apart_ns = (
        predict(replace(on_gpus, schedule=name), fidelity="op", spans=False).step_time_ns
        for name in ("dualpipe-v", apart.name)
    )
    assert paired_ns < 0.97 * apart_ns
