"""Attention on a ring: the numbers of one device, and two blocks of others at most.

`tests/test_same_mathematics.py` trains a plan with a ring beside those of other kinds.
"""

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.executor.data import open_dataset
from millrace.executor.reference import run_reference
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.actors.graph import ActorGraph, Program
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from tests.in_process import KernelWork, execute_in_process
from tests.parallel_runs import assert_trains_as_one_device, initial_states, run
from tests.plan_requests import plan_of
from tests.small_models import small

TRAINING = TrainingSpec(learning_rate=1e-2, warmup_steps=3, decay_steps=30, clip_norm=0.5)
BATCH, STEPS = 4, 2


def model(name: str, seq_len: int) -> ModelSpec:
    """A small model in float64 on longer sequences, as many positions as it needs."""
    spec = small(name, "fp64")
    config = {"layers": 2} | ({"positions": seq_len} if "positions" in spec.config else {})
    return replace(spec, seq_len=seq_len, config={**spec.config, **config})


@cache
def planned(spec_name: str, seq_len: int, ranks: int, pins: tuple[tuple[str, object], ...]) -> Plan:
    defaults = {"dp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "ring": True}
    return plan_of(
        model(spec_name, seq_len), ranks, BATCH, training=TRAINING, **defaults | dict(pins)
    )


CASES = [
    ("gpt", 16, 2, {"cp": 2}),
    ("gpt", 24, 3, {"cp": 3}),
    ("gpt", 300, 5, {"cp": 5}),  # blocks of 60: less than the kernels' blocks of queries
    ("gpt", 24, 6, {"cp": 6}),
    ("llama", 16, 4, {"cp": 4}),  # grouped queries
    ("mistral", 24, 4, {"cp": 4}),  # a window of less than one block: later rounds see nothing
    ("mpt", 16, 4, {"cp": 4}),  # scores that fall with the distance
    ("gpt-oss", 16, 4, {"cp": 4}),  # sinks
    ("bert", 18, 3, {"cp": 3}),  # not causal
    ("deepseek", 16, 4, {"cp": 4}),  # values narrower than keys
    ("gpt", 16, 8, {"cp": 4, "tp": 2}),
    ("llama", 16, 4, {"cp": 2, "dp": 2, "zero": 3}),
    ("gpt", 24, 6, {"cp": 3, "pp": 2, "schedule": "zb-h1"}),
    ("gpt", 16, 4, {"cp": 4, "recompute": "full"}),
]


@pytest.mark.parametrize(("name", "seq_len", "ranks", "pins"), CASES)
def test_gradients_and_parameters_on_a_ring_equal_a_single_device(
    name: str, seq_len: int, ranks: int, pins: dict[str, object]
) -> None:
    plan = planned(name, seq_len, ranks, tuple(pins.items()))
    plain = build_training(plan.model, plan.training, plan.batch)
    expected = run_reference(
        plain,
        microbatches=plan.microbatches,
        steps=STEPS,
        dataset=open_dataset(None, plan.model, 0),
        keep_parameters=(STEPS,),
    )
    graph = plan.graph
    actors = compile_plan(plan)
    kinds = {actor.kind for program in actors.programs for actor in program.actors}
    assert kinds >= {"rotate", "attention_round", "attention_grad_round"}
    assert_trains_as_one_device(plan, graph, actors, expected, STEPS)


def test_a_ring_has_the_same_bits_whatever_the_timing() -> None:
    plan = planned("llama", 16, 4, (("cp", 4),))
    graph = plan.graph
    actors = compile_plan(plan)
    one_by_one = run(plan, graph, actors, STEPS)
    for _ in range(3):
        at_once = initial_states(plan, graph, actors)
        work = KernelWork(at_once)
        execute_in_process(actors, STEPS, work, work.meet, spans=False)
        for sequential, threaded in zip(one_by_one, at_once, strict=True):
            assert sequential.run_state.totals == threaded.run_state.totals
            for index, register in enumerate(sequential.program.registers):
                if register.initial:
                    content = threaded.arena.views[index][0]
                    np.testing.assert_array_equal(content, sequential.arena.views[index][0])


def travelling(program: Program, name: str) -> list[int]:
    """Registers of the blocks of one operand of one op that rotations bring."""
    return [
        actor.outputs[0].register
        for actor in program.actors
        if actor.kind == "rotate" and actor.name.startswith(f"{name}: round ")
    ]


@cache
def eight_rounds(recompute: str) -> ActorGraph:
    return compile_plan(planned("llama", 16, 8, (("cp", 8), ("recompute", recompute))))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("op", ["core", "core.recompute", "core.grad_input"])
def test_two_places_hold_all_blocks_that_travel(op: str, recompute: str) -> None:
    (program,) = eight_rounds(recompute).programs
    travelling_blocks = [travelling(program, f"h.1.attn.{op}.in{operand}") for operand in (1, 2)]
    if op == "core.recompute" and recompute == "none":
        assert travelling_blocks == [[], []]
        return
    for blocks in travelling_blocks:
        assert len(blocks) == 7
        registers = [program.registers[block] for block in blocks]
        assert len({register.offset_bytes for register in registers}) == 2
        assert {register.memory_kind for register in registers} == {"temporary"}
        assert {register.slots for register in registers} == {1}


def test_a_block_is_handed_on_while_it_is_worked_on() -> None:
    (program,) = eight_rounds("none").programs
    names = [actor.name for actor in program.actors]
    core = "h.0.attn.core"
    order: list[str] = []
    run_to_completion(eight_rounds("none"), visit=lambda _, fire: order.append(names[fire.actor]))
    for number in range(1, 7):
        # With nothing to wait for, a rotation begins as soon as the one before has brought its
        # block and the round that had its place is done: before the round on that block.
        rotation = order.index(f"{core}.in1: round {number} -> {number + 1}")
        assert rotation < order.index(f"{core}: round {number + 1}")
    waits = {
        actor.name: [program.registers[port.register].name for port in actor.inputs]
        for actor in program.actors
    }
    assert waits[f"{core}.in1: round 4 -> 5"] == [
        f"{core}.in1 of round 4",
        f"{core}.out1 of round 3",
    ]
