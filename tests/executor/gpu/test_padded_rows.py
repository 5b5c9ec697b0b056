"""Logits of an odd vocabulary lie in rows that begin where wide loads can, and train as others.

Products over it are cut, so that all but a few of its tokens are divided by such loads.
"""

from functools import cache

import pytest
from msgspec.structs import replace

from millrace.executor.cuda.call_listing import rank_listing
from millrace.executor.streams import command_buffer, find_races
from millrace.models.zoo.catalogue import build_training
from millrace.planner.compile import compile_plan
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.plans import MICROBATCHES, TRAINING, execute_on_device, loading, runs_of
from tests.executor.gpu.rounding import assert_off_by_rounding_alone, losses_and_norms
from tests.plan_requests import plan_of
from tests.small_models import small

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

STEPS = 2  # fired eagerly, captured and replayed
VOCABULARY = 1027
CHANGES = (("layers", 2), ("vocab", VOCABULARY))


@cache
def planned():
    return plan_of(
        replace(spec := small("gpt", "bf16"), config=spec.config | dict(CHANGES)),
        "h100-sxm-80gb:1x1", training=TRAINING, micro_batch=4, fusion="full",
    )  # fmt: skip


@pytest.mark.parametrize("option", [0, -1], ids=["cut", "whole"])
def test_a_plan_with_padded_rows_trains_as_others_and_touches_only_what_is_allocated(option):
    plan = planned()
    actors = compile_plan(plan)
    pitches = {r.name: r.pitch for r in actors.programs[0].registers if r.pitch}
    assert pitches == {"head.logits": 1088, "head.loss.grad_input": 1088}
    runs = runs_of(plan, actors)
    graph = build_training(plan.model, plan.training, plan.batch)
    device = EmulatedDevice(3, checked=True, option=option)
    run, _ = execute_on_device(device, actors, runs, loading(graph), STEPS)
    assert_off_by_rounding_alone(losses_and_norms(runs[0].totals), "gpt", "bf16", CHANGES)
    names = [register.name for register in actors.programs[0].registers]
    assert run.values[0].value(names.index("head.logits"), 0).shape == (4, 16, VOCABULARY)


def test_the_three_products_over_an_odd_vocabulary_are_cut_inside_their_commands():
    plan = planned()
    actors = compile_plan(plan)
    assert find_races(actors, command_buffer(actors, (0,))) == []
    products = [line.strip() for line in rank_listing(plan, 0).splitlines() if ": product" in line]
    sizes = [line.partition(" batch")[0] for line in products]
    microbatch = [
        "1: product m 64 n 3 k 32", "1: product m 64 n 1024 k 32", "2: product m 64 n 1027 k 32",
        "1: product m 64 n 32 k 3", "1: product m 64 n 32 k 1024", "2: product m 64 n 32 k 1027",
        "1: product m 3 n 32 k 64", "1: product m 1024 n 32 k 64", "2: product m 1027 n 32 k 64",
    ]  # fmt: skip
    assert [size for size in sizes if size in microbatch] == MICROBATCHES * microbatch
    along_k = [" += " in line for line in products if " k 3 " in line or " k 1024 " in line]
    assert along_k == MICROBATCHES * [False, True]  # the large part adds to the remainder
