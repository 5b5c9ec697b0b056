"""One question, asked on the command line and in Python: the answers are the same."""

import pytest

import millrace
from millrace.files import load_plan, write_document

QUESTIONS = {
    "framework and precision by default": ("gpt-demo", "a100:4x1", (), {}),
    "a model without tokens": ("mlp", "a100:2x1", (), {}),
    "a torus": ("gpt-demo", "tpu-v4:2x2", ("--max-gap", "0.5"), {"max_gap": 0.5}),
    "pins and limits": (
        "gpt-demo",
        "h100:4x1",
        ("--tp", "2", "--zero", "1", "--framework", "any", "--memory-limit", "20GiB"),
        {
            "pins": millrace.Pins(tp=2, zero="1"),
            "framework": "any",
            "memory_limit_bytes": 20 * 2**30,
        },
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_same_question_has_the_same_plan(name, call, tmp_path):
    model, cluster, options, arguments = QUESTIONS[name]
    path = tmp_path / "plan.json"
    asked = ("plan", model, "--cluster", cluster, "--global-batch", "64", "-o", path)
    code, _, said = call(*asked, *options)
    assert code == 0, said
    planned = millrace.plan(model, cluster, global_batch=64, **arguments)
    assert planned.plan == load_plan(path)


def test_the_same_profile_of_this_machine_has_the_same_plan(call, tmp_path):
    path, profile = tmp_path / "plan.json", tmp_path / "device.json"
    write_document(profile, millrace.cluster("local:2", measured=False).device)
    asked = ("plan", "gpt-demo", "--cluster", "local:2", "--global-batch", "8", "--tp", "2")
    code, _, said = call(*asked, "--profile", profile, "-o", path)
    assert code == 0, said
    cluster = millrace.cluster("local:2", profile=profile)
    planned = millrace.plan("gpt-demo", cluster, global_batch=8, pins=millrace.Pins(tp=2))
    assert planned == millrace.load(path)


def test_the_same_sweep_has_the_same_rows(answer):
    code, printed = answer(
        *("scale", "mlp", "--cluster", "a100:2,h100:2", "--nodes", "1,2", "--global-batch", "8"),
        *("--mtbf-hours", "50000", "--tokens", "1e9", "--tp", "1", "--pp", "1"),
    )
    swept = millrace.scale(
        "mlp",
        ["a100:2", "h100:2"],
        nodes=[1, 2],
        global_batches=[8],
        tokens=1e9,
        failures=millrace.Failures(mtbf_hours=50000),
        pins=millrace.Pins(tp=1, pp=1),
    )
    assert code == 0
    assert swept.document == printed
    assert [list(row) for row in printed["rows"]] == [list(row.document) for row in swept]


def test_the_same_simulation_has_the_same_figures(call, answer, tmp_path):
    path = tmp_path / "plan.json"
    planned = millrace.plan("mlp", "a100:2x1", global_batch=8, pins=millrace.Pins(dp=2))
    planned.save(path)
    code, printed = answer("simulate", path, "--straggler", "1:1.5", "--cluster", "h200:2x1")
    assert code == 0
    figures = millrace.simulate(planned, cluster="h200:2x1", stragglers={1: 1.5}).document
    del figures["wall_time_s"]
    assert {name: printed[name] for name in figures} == figures
