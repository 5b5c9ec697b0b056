"""Plans for a framework: what comes of the search can run there, and pins beyond it are refused."""

from dataclasses import replace as replaced
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.models.graph import Phase
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.clusters import framework, local_cluster, parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import EVERYTHING, Capabilities, layer_counts
from millrace.planner.frameworks.experts import overlaps
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.peak_memory import needed_memory
from millrace.planner.frameworks.runnable import unrunnable
from millrace.planner.memory import plan_memory
from millrace.planner.parallel_degrees import roles
from millrace.planner.plan import recompute_modes
from millrace.planner.search import SearchRequest, search
from tests.plan_requests import NEAR, request_of
from tests.small_models import gpt_of

GPT = gpt_of(6, 32, 4, vocab=64, positions=16)
RESTRICTED = ("megatron-core", "megatron-2021", "torchtitan", "deepspeed", "nanotron", "jax-xla")


def asked(name: str, devices: int = 8, **choices: Any) -> SearchRequest:
    """Request for a plan that a framework runs."""
    cluster = replace(local_cluster(devices, cores=2, memory_bytes=2**33), software=framework(name))
    return request_of(GPT, cluster, 16, runs=capabilities(name), **{"max_gap": NEAR, **choices})


@pytest.mark.parametrize("name", RESTRICTED)
def test_a_plan_for_a_framework_can_run_there(name: str) -> None:
    plan = search(asked(name, 4))
    assert not unrunnable(plan, capabilities(name))
    assert None not in roles(plan, plan.graph).values()


@pytest.mark.parametrize(
    "pins",
    [
        {"pp": 2, "tp": 2, "dp": 2, "interleave": 2, "schedule": "interleaved-1f1b"},
        {"pp": 4, "dp": 2},
        {"cp": 2, "tp": 2, "dp": 2},
        {"tp": 4, "zero": 1},
    ],
)
def test_pins_leave_the_rest_uniform(pins: dict[str, Any]) -> None:
    runs = capabilities("megatron-core")
    plan = search(asked("megatron-core", **pins))
    plan_roles = roles(plan, plan.graph)
    assert not unrunnable(plan, runs)
    assert {name: plan_roles[name] for name in pins if name in plan_roles} == {
        name: value for name, value in pins.items() if name in plan_roles
    }


def test_where_memory_is_short_the_first_layers_of_every_chunk_are_recomputed() -> None:
    runs = capabilities("megatron-core")
    free = asked("megatron-core", 2, pp=2, micro_batch=4, max_gap=0.05)
    fullest = [
        max(stage.total_bytes for stage in needed_memory(search(request)))
        for request in (free, replaced(free, pins=replaced(free.pins, recompute="full")))
    ]
    plan = search(replaced(free, memory_limit_bytes=(2 * fullest[0] + fullest[1]) // 3))
    assert not unrunnable(plan, runs)
    modes = {plan.variants[block.variant].recompute for c in plan.chunks for block in c.blocks}
    assert modes == {"none", "full"}
    assert unrunnable(plan, replace(runs, recompute_some=False))


@pytest.mark.parametrize("name", [*RESTRICTED, "any"])
def test_no_trainer_makes_the_embedding_or_the_loss_again(name: str) -> None:
    plan = search(asked(name, 2, recompute="full", pp=2))
    assert list(recompute_modes(plan)) == [f"h.{layer}" for layer in range(6)]
    assert roles(plan, plan.graph)["recompute"] == "full"


def test_a_single_layer_is_what_recomputes() -> None:
    single = gpt_of(1, 32, 4, vocab=64, positions=16)
    plan = search(replaced(asked("megatron-core", 1, recompute="full"), model=single))
    assert roles(plan, plan.graph)["recompute"] == "full"


@pytest.mark.parametrize(
    ("name", "zero"), [("torchtitan", 3), ("deepspeed", 2), ("megatron-core", 1)]
)
def test_any_number_of_ranks_shares_the_state_where_a_framework_pads(name: str, zero: int) -> None:
    request = replaced(asked(name, 3, dp=3, zero=zero), global_batch=12)
    plan, unshared = (
        search(replaced(request, pins=replaced(request.pins, zero=level))) for level in (zero, 0)
    )
    assert roles(plan, plan.graph)["zero"] == zero
    (shared,), (alone,) = plan_memory(plan), plan_memory(unshared)
    assert 1 / 3 < shared.optimizer_bytes / alone.optimizer_bytes < 0.4


def test_plans_are_held_to_what_their_framework_needs() -> None:
    """Wide logits, of which torchtitan has 14 bytes each, decide between microbatches."""
    model = gpt_of(2, 128, 4, vocab=32768, positions=512, precision="bf16")
    cluster = replace(parse_cluster("a100:2x1"), software=framework("torchtitan"))
    choices = {"dp": 2, "tp": 1, "pp": 1, "zero": 3, "recompute": "none", "max_gap": NEAR}
    request = request_of(model, cluster, 16, runs=capabilities("torchtitan"), **choices)
    free = search(request)
    (needed,), (laid_out,) = needed_memory(free), plan_memory(free)
    assert needed.total_bytes > 1.2 * laid_out.total_bytes
    between = (needed.total_bytes + laid_out.total_bytes) // 2
    plan = search(replaced(request, memory_limit_bytes=between))
    assert plan.batch < free.batch
    assert needed_memory(plan)[0].total_bytes <= between


def test_sharing_that_a_framework_does_not_have_is_refused_with_hints_that_hold() -> None:
    request = replaced(asked("jax-xla", 3, dp=3, zero=3), global_batch=13)
    with pytest.raises(InfeasibleError, match="do not divide the global batch") as refusal:
        search(request)
    assert "--global-batch" not in str(refusal.value)  # storage does not divide either


@pytest.mark.parametrize("name", ["torchtitan", "deepspeed"])
def test_where_memory_is_short_all_layers_have_one_mode(name: str) -> None:
    free = asked(name, 2, dp=2, tp=1, micro_batch=8, zero=0)
    fullest = [
        max(stage.total_bytes for stage in needed_memory(search(request)))
        for request in (free, replaced(free, pins=replaced(free.pins, recompute="full")))
    ]
    plan = search(replaced(free, memory_limit_bytes=(2 * fullest[0] + fullest[1]) // 3))
    assert not unrunnable(plan, capabilities(name))


@pytest.mark.parametrize("name", ["megatron-core", "torchtitan"])
def test_experts_are_split_over_whole_axes(name: str) -> None:
    plan = search(replaced(asked(name, 4), model=model_spec("mixtral-demo")))
    assert not unrunnable(plan, capabilities(name))


EXPERTS = parse_cluster("h100-sxm-80gb:4x1")


def asked_of_experts(name: str, **choices: Any) -> SearchRequest:
    """Request for a mixture of experts on devices that have every dispatcher."""
    cluster = replace(EXPERTS, software=framework(name))
    model = model_spec("mixtral-demo", precision="bf16")
    return request_of(model, cluster, 8, runs=capabilities(name), **{"max_gap": NEAR, **choices})


@pytest.mark.parametrize(
    ("name", "pins", "overlap"),
    [
        ("megatron-core", {"pp": 1}, True),
        ("megatron-core", {"pp": 2, "schedule": "1f1b"}, False),
        ("megatron-core", {"pp": 2, "interleave": 2}, True),
        ("megatron-core", {"pp": 2, "interleave": 1}, False),
        ("megatron-core", {"recompute": "full"}, False),
        ("torchtitan", {"pp": 1}, False),
        ("torchtitan", {"pp": 2, "schedule": "dualpipe-v"}, True),
    ],
)
def test_experts_exchange_beside_products_where_the_framework_can(
    name: str, pins: dict[str, Any], overlap: bool
) -> None:
    plan = search(asked_of_experts(name, **({"expert_overlap": True} if overlap else {}), **pins))
    assert overlaps(plan.cluster.software) is overlap
    assert not unrunnable(plan, capabilities(name))


@pytest.mark.parametrize(
    ("name", "ep", "again", "never"),
    [
        ("torchtitan", 1, {"experts.dispatch", "experts.down", "attn.k"}, {"attn.core", "attn.v"}),
        ("torchtitan", 2, {"experts.gate", "experts.up"}, {"experts.dispatch", "experts.down"}),
        ("megatron-core", 2, {"ln1", "experts.active"}, {"attn.core", "experts.gate", "attn.k"}),
    ],
)
def test_selective_makes_again_what_a_framework_does(
    name: str, ep: int, again: set[str], never: set[str]
) -> None:
    plan = search(asked_of_experts(name, recompute="selective", ep=ep, tp=1, pp=1))
    clones = {op.name for op in plan.graph.ops if op.phase is Phase.RECOMPUTE}
    layer = {op.removeprefix("h.1.").removesuffix(".recompute") for op in clones}
    assert again <= layer
    assert not never & layer


def test_of_both_ways_to_exchange_the_faster_is_taken() -> None:
    free, by_itself, beside = (
        search(asked_of_experts("megatron-core", pp=1, max_gap=0.02, **pins))
        for pins in ({}, {"expert_overlap": False}, {"expert_overlap": True})
    )
    evidence = [plan.evidence for plan in (free, by_itself, beside)]
    steps = [each.objective_s for each in evidence if each is not None]
    assert steps[0] <= min(steps[1:]) * 1.02
    assert evidence[0] is not None
    other = evidence[0].alternatives[-1]
    assert "exchange" in other["plan"]
    assert 0 < other["loss"] <= max(steps[1:]) / steps[0] - 1 + 1e-9


@pytest.mark.parametrize(
    ("name", "pins"),
    [
        ("megatron-core", {"pp": 2, "schedule": "1f1b"}),
        ("megatron-core", {"recompute": "full"}),
        ("torchtitan", {"pp": 2, "schedule": "1f1b"}),
    ],
)
def test_an_overlap_that_the_framework_has_not_is_refused(name: str, pins: dict[str, Any]) -> None:
    with pytest.raises(InfeasibleError, match="--expert-overlap"):
        search(asked_of_experts(name, expert_overlap=True, **pins), remedies=False)


def test_a_plan_that_overlaps_where_it_cannot_is_told() -> None:
    plan = search(asked_of_experts("any", pp=2, schedule="1f1b", expert_overlap=True))
    (fault,) = [
        fault for fault in unrunnable(plan, capabilities("megatron-core")) if "schedule" in fault
    ]
    assert "interleaved-1f1b" in fault


@pytest.mark.parametrize(
    ("name", "pins", "words"),
    [
        ("megatron-core", {"schedule": "zb-v"}, "--schedule zb-v: schedule is 1f1b or"),
        ("megatron-core", {"zero": 3}, "--zero 3: zero is 0 or 1 in megatron-core"),
        ("ngc-pytorch", {"tp": 2}, "--tp 2: degrees above one are dp"),
        ("deepspeed", {"pp": 2, "zero": 2}, "--zero 2: zero is 0 or 1"),
        ("nanotron", {"recompute": "selective"}, "--recompute selective"),
        ("deepspeed", {"sequence_parallel": True}, "--sequence-parallel: there is none"),
        ("torchtitan", {"tp": 2, "sequence_parallel": False}, "--no-sequence-parallel"),
        ("deepspeed", {"cp": 2, "ring": True}, "--cp 2"),
        ("nanotron", {"offload": "optimizer"}, "--offload optimizer"),
    ],
)
def test_pins_beyond_a_framework_are_refused(name: str, pins: dict[str, Any], words: str) -> None:
    with pytest.raises(InfeasibleError, match=words) as refusal:
        asked(name, **pins)
    assert "--framework" in str(refusal.value)


def test_what_a_framework_cannot_run_is_named() -> None:
    plan = search(request_of(GPT, 4, 16, pp=4, schedule="zb-h1", max_gap=NEAR))
    runs = capabilities("megatron-core")
    assert any(fault.startswith("schedule zb-h1") for fault in unrunnable(plan, runs))
    assert not unrunnable(plan, EVERYTHING)


def test_a_record_that_names_nothing_there_is_says_so() -> None:
    wrong = Capabilities(zero=("4",), layers="odd", sequence_parallel="maybe")
    assert [fault.partition(":")[0] for fault in wrong.faults()] == [
        "zero",
        "layers",
        "sequence_parallel",
    ]


def test_layers_that_do_not_divide_are_fewer_on_the_ends() -> None:
    assert layer_counts(61, 16, "even") == []
    for counts in layer_counts(61, 16, "ends"):
        assert sum(counts) == 61
        assert len(set(counts[1:-1])) == 1
        assert max(counts[0], counts[-1]) <= counts[1]
    assert layer_counts(8, 1, "ends") == [(8,)]
    assert layer_counts(5, 2, "ends") == [(2, 3), (3, 2)]


def test_where_nothing_fits_the_answer_says_what_is_short() -> None:
    cluster = replace(parse_cluster("a100:1x1"), software=framework("megatron-core"))
    runs = capabilities("megatron-core")
    request = request_of(model_spec("gpt2-small"), cluster, 64, runs=runs, max_gap=NEAR)
    with pytest.raises(InfeasibleError, match=r"It fits with"):
        search(replaced(request, memory_limit_bytes=2**30))


@pytest.mark.parametrize(("name", "offload"), [("megatron-core", "optimizer"), ("nanotron", "")])
def test_state_goes_to_the_host_only_where_the_framework_can(name: str, offload: str) -> None:
    cluster = replace(parse_cluster("a100:1x1"), software=framework(name))
    model = replace(model_spec("gpt2-small"), precision="bf16")
    request = request_of(
        model, cluster, 64, runs=capabilities(name), memory_limit_bytes=2**31, max_gap=NEAR
    )
    if offload:
        plan = search(request)
        assert plan.offload == offload
        assert any("offload" in fault for fault in unrunnable(plan, capabilities("nanotron")))
        return
    with pytest.raises(InfeasibleError, match="no plan fits the memory"):
        search(request)
