"""A model read from an ONNX file is planned, compiled and run in parallel as on one device."""

import msgspec
import pytest

from millrace.executor.data import open_dataset
from millrace.executor.reference import run_reference
from millrace.models.graph import to_json
from millrace.models.importers.opening import open_model
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from tests.models.importers.onnx_files import attention_text, parsed, saved, with_weights
from tests.parallel_runs import assert_trains_as_one_device
from tests.plan_requests import searched

STEPS = 2


@pytest.mark.parametrize("pins", [{"dp": 2, "tp": 1}, {"dp": 1, "tp": 2}], ids=["dp", "tp"])
def test_an_onnx_model_trains_on_two_ranks_as_on_one(tmp_path, pins):
    text = attention_text("where").replace("20", "256")  # bytes of text
    path = saved(with_weights(parsed(text)), tmp_path / "tiny.onnx")
    spec = open_model(str(path), 8, "fp64")
    path.unlink()
    training = TrainingSpec(learning_rate=0.01)
    plan = searched(spec, "local:2", 4, training=training, micro_batch=2, **pins)
    assert msgspec.json.decode(to_json(plan), type=Plan) == plan
    graph = build_training(spec, training, plan.batch)
    expected = run_reference(
        graph,
        microbatches=plan.microbatches,
        steps=STEPS,
        dataset=open_dataset(None, spec, 0),
        keep_parameters=(STEPS,),
    )
    assert_trains_as_one_device(plan, graph, compile_plan(plan), expected, STEPS)
