"""Transfer: a plan on another cluster, by another framework, in another precision."""

import pytest
from msgspec.structs import replace

import millrace
from millrace.files import write_document
from millrace.models.spec import graph_spec
from millrace.models.zoo.catalogue import build
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.plan import FUSED, UNFUSED
from millrace.requested_cluster import with_software
from millrace.transfer import in_precision, on_cluster, software_kept
from tests.plan_requests import searched

PINS = {"tp": 2, "pp": 2, "micro_batch": 2, "zero": 1}


@pytest.fixture(scope="module")
def h100_plans():
    """Plans of a small GPT in fp32, bf16 and fp8, with equal pins."""
    on = millrace.cluster("h100-sxm-80gb:4x2", framework="megatron-core")
    return {
        name: searched("gpt-demo", on, 16, precision=name, **PINS)
        for name in ("fp32", "bf16", "fp8")
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [("fp32", "bf16"), ("bf16", "fp32"), ("fp32", "fp8"), ("fp8", "bf16"), ("bf16", "fp16")],
)
def test_a_plan_in_another_precision_compiles_and_is_as_fast_as_one_searched_in_it(
    h100_plans, before, after
):
    changed = in_precision(h100_plans[before], after)
    assert changed.model.precision == after
    assert changed.figures == {}
    assert changed.evidence is None
    compile_plan(changed)
    direct = h100_plans.get(after, h100_plans["bf16"])
    step_s = millrace.simulate(changed).step_time_s
    assert step_s == pytest.approx(direct.figures["step_time_s"], rel=0.05)


def test_there_and_back_the_plan_is_the_same(h100_plans):
    plan = h100_plans["bf16"]
    assert in_precision(plan, "bf16") is plan
    again = in_precision(in_precision(plan, "fp16"), "bf16")
    assert again.digest() == plan.digest()


def test_a_precision_that_is_none_or_that_an_import_fixed_is_refused(h100_plans):
    plan = h100_plans["fp32"]
    with pytest.raises(PlanError, match="--precision fp5: there is no such precision"):
        in_precision(plan, "fp5")
    imported = replace(plan, model=graph_spec(build(plan.model, 1), "fp32"))
    with pytest.raises(InfeasibleError, match="as it was imported in fp32"):
        in_precision(imported, "bf16")


def test_a_memory_limit_keeps_its_share_of_the_device(h100_plans):
    plan = replace(h100_plans["bf16"], memory_limit_bytes=2**34)
    larger = millrace.cluster("h200-sxm:4x2")
    memory = larger.device.memory_bytes, plan.cluster.device.memory_bytes
    changed = on_cluster(plan, larger)
    assert changed.memory_limit_bytes == 2**34 * memory[0] // memory[1]
    assert changed.cluster is larger
    assert on_cluster(h100_plans["bf16"], larger).memory_limit_bytes == pytest.approx(
        h100_plans["bf16"].memory_limit_bytes * memory[0] / memory[1]
    )


def test_the_framework_stays_unless_another_is_named_and_decides_on_fusion(h100_plans):
    plan = h100_plans["bf16"]
    joined = software_kept(plan, millrace.cluster("h200-sxm:4x2"))
    assert joined.software == plan.cluster.software
    local = millrace.cluster("local:2", measured=False)
    assert software_kept(plan, local) is local
    ours = on_cluster(plan, with_software(plan.cluster, "millrace"))
    assert (plan.fusion, ours.fusion) == (UNFUSED, FUSED)
    pinned = replace(plan, pins=plan.pins | {"fusion": "none"})
    assert on_cluster(pinned, ours.cluster).fusion == UNFUSED


def test_simulate_tries_a_plan_elsewhere_and_says_what_it_was(answer, call, tmp_path, h100_plans):
    path = tmp_path / "plan.json"
    write_document(path, h100_plans["bf16"])
    code, before = answer("simulate", path)
    assert code == 0
    assert before["planned_step_time_s"] is None
    code, after = answer("simulate", path, "--cluster", "a100-sxm-80gb:4x2", "--precision", "tf32")
    assert code == 0
    assert after["planned_step_time_s"] == h100_plans["bf16"].figures["step_time_s"]
    assert (after["cluster"], after["precision"]) == ("a100-sxm-80gb:4x2", "tf32")
    assert after["framework"] == before["framework"]
    assert after["cost_usd_per_mtoken"] > 0
    code, out, _ = call("simulate", path, "--framework", "megatron-core")
    assert code == 0
    assert "tried                         h100-sxm-80gb:4x2, bf16, megatron-core\n" in out
    assert "per million tokens" in out
    code, out, _ = call("simulate", path, "--cluster", "a800-sxm-80gb:4x2")
    assert code == 0
    assert "no price is known" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("--cluster", "h200:8x2"),
            1,
            "16 devices, and the plan was made for 8: name h200-sxm:8x1",
        ),
        (("--cluster", "h200:3x2"), 1, "name a cluster of 8 devices, or search"),
        (("--cluster", "h200:4x3"), 1, "name h200-sxm:4x2, or search"),
        (("--cluster", "h1000:4x2"), 2, "no device `h1000`"),
        (("--cluster", "a100:4x2", "--precision", "fp8"), 2, "has no fp8 arithmetic"),
        (("--framework", "megatron-cor"), 2, "--framework megatron-cor"),
    ],
)
def test_what_cannot_be_tried_names_the_fix(call, tmp_path, h100_plans, arguments, code, said):
    path = tmp_path / "plan.json"
    write_document(path, h100_plans["bf16"])
    ended, out, err = call("simulate", path, *arguments)
    assert (ended, out) == (code, "")
    assert said in err


def test_memory_that_no_longer_fits_ends_with_1_beside_the_figures(answer, tmp_path, h100_plans):
    path, plan = tmp_path / "plan.json", h100_plans["fp32"]
    for limit_bytes, expected in ((0, 0), (plan.figures["memory_bytes_max"], 1)):
        write_document(path, replace(plan, memory_limit_bytes=limit_bytes))
        code, document = answer("simulate", path, "--cluster", "v100-sxm-16gb:4x2")
        assert code == expected
        assert document["memory_bytes_max"] > 0
