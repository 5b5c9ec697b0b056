"""Logits of an odd vocabulary lie in rows that begin where wide loads can, and train as others."""

import numpy as np
import pytest
from msgspec.structs import replace

from executor.data import open_dataset
from executor.reference import run_reference
from models.zoo.catalogue import build_training
from planner.clusters import parse_cluster
from planner.compile import compile_plan
from planner.search import Pins, SearchRequest, search
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.plans import MICROBATCHES, TRAINING, execute_on_device, loading, runs_of
from tests.small_models import small

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

STEPS, VOCABULARY = 3, 259


def spec(precision: str):
    found = small("gpt", precision)
    return replace(found, config=found.config | {"vocab": VOCABULARY})


@pytest.mark.parametrize("option", [0, -1])
def test_a_plan_with_padded_rows_trains_as_the_reference(option):
    plan = search(
        SearchRequest(
            model=spec("bf16"),
            training=TRAINING,
            cluster=parse_cluster("h100-sxm-80gb:1x1"),
            global_batch=8,
            pins=Pins(micro_batch=4, fusion="full"),
        )
    )
    actors = compile_plan(plan)
    pitches = {r.name: r.pitch for r in actors.programs[0].registers if r.pitch}
    assert pitches == {"head.logits": 320, "head.loss.grad_input": 320}
    runs = runs_of(plan, actors)
    graph = build_training(plan.model, plan.training, plan.batch)
    device = EmulatedDevice(3, checked=True, option=option)
    run, _ = execute_on_device(device, actors, runs, loading(graph), STEPS)
    found = np.array([loss / count for loss, count, _ in runs[0].totals])
    expected = run_reference(
        build_training(spec("fp32"), TRAINING, 4),
        microbatches=MICROBATCHES,
        steps=STEPS,
        dataset=open_dataset(None, spec("fp32"), 0),
    )
    np.testing.assert_allclose(found, expected.losses, atol=2e-2, rtol=0)
    names = [register.name for register in actors.programs[0].registers]
    assert run.values[0].value(names.index("head.logits"), 0).shape == (4, 16, VOCABULARY)
