"""Unfused attention over several devices: the numbers of one device, with flash attention."""

from functools import cache

import numpy as np
import pytest

from millrace.executor.data import open_dataset
from millrace.executor.reference import ReferenceResult, run_reference
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from tests.parallel_runs import run
from tests.plan_requests import plan_of
from tests.small_models import small

GLOBAL_BATCH, MICROBATCHES, STEPS = 8, 2, 3
UNFUSED = TrainingSpec(attention="unfused", warmup_steps=2)
WAYS: dict[str, tuple[int, dict[str, object]]] = {
    "heads": (2, {"dp": 1, "tp": 2, "pp": 1}),
    "batch and heads, selective": (4, {"dp": 2, "tp": 2, "pp": 1, "recompute": "selective"}),
    "queries": (2, {"dp": 1, "tp": 1, "pp": 1, "cp": 2}),
}


def planned(name: str, way: str) -> Plan:
    ranks, pins = WAYS[way]
    dp = pins["dp"]
    assert isinstance(dp, int)
    return plan_of(
        small(name, "fp64"), ranks, GLOBAL_BATCH, training=UNFUSED,
        **{"micro_batch": GLOBAL_BATCH // MICROBATCHES // dp} | pins,
    )  # fmt: skip


@cache
def of_one_device(name: str) -> ReferenceResult:
    spec = small(name, "fp64")
    flash = TrainingSpec(warmup_steps=2)
    return run_reference(
        build_training(spec, flash, GLOBAL_BATCH // MICROBATCHES),
        microbatches=MICROBATCHES,
        steps=STEPS,
        dataset=open_dataset(None, spec, 0),
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["gpt", "llama", "mpt"])
def test_losses_and_norms_equal_those_of_one_device_with_flash(name: str, way: str) -> None:
    plan = planned(name, way)
    assert plan.training.attention == "unfused"
    graph = build_training(plan.model, plan.training, plan.batch)
    for state in run(plan, graph, compile_plan(plan), STEPS):
        totals, expected = state.run_state.totals, of_one_device(name).totals
        np.testing.assert_allclose(totals, expected, rtol=1e-8)
