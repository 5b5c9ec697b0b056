"""Fusion of ops: when it happens, when not, and what it costs, on graphs of models and by hand."""

import pytest
from msgspec.structs import replace

from millrace.executor.streams import command_buffer
from millrace.executor.streams.races import find_races
from millrace.models.spec import ModelSpec
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.compile.listing import fused_ops
from millrace.planner.costs import durations
from millrace.planner.fusion import FusionNode, FusionTensor, fused_groups, shares_of, written
from millrace.planner.memory import plan_memory
from millrace.planner.plan import FUSED, UNFUSED, Plan
from millrace.planner.search import Pins
from millrace.simulator import predict
from tests.plan_requests import plan_of
from tests.small_models import small

SHAPE = (64, 32)
ROW = FusionTensor(shape=SHAPE, dtype="bfloat16")
WEIGHT = FusionTensor(shape=(32, 32), dtype="bfloat16")


def planned(model: ModelSpec, devices: int = 1, *, max_gap: float = 5.0, **pins: object) -> Plan:
    """A plan for GPUs that our own executor drives; by default the first that there is."""
    cluster = parse_cluster(f"h100-sxm-80gb:{devices}x1")
    return plan_of(
        model, replace(cluster, software=framework("millrace")), 16, max_gap=max_gap, **pins
    )


def node(
    name: str, kind: str, inputs: str, output: str, labels: str, section: str = "F"
) -> FusionNode:
    return FusionNode(
        name=name,
        kind=kind,
        labels=labels,
        inputs=tuple(inputs.split()),
        outputs=(output,),
        section=section,
    )


PRODUCT, SUM, GELU = "t k, k n -> t n", "t n, t n -> t n", "t n -> t n"


def groups_of(*nodes: FusionNode, **values: FusionTensor) -> set[tuple[str, ...]]:
    every = {name for op in nodes for name in (*op.inputs, *op.outputs)}
    fusion_graph = fused_groups(nodes, {name: values.get(name, ROW) for name in every})
    return {tuple(nodes[index].name for index in group) for group in fusion_graph.groups.values()}


def test_a_gpt_block_is_fused_around_its_products_and_norms():
    groups = fused_ops(planned(small("gpt", "bf16"), dp=1, tp=1, pp=1))["h"]
    assert set(groups) >= {
        ("attn.q.matmul", "attn.q", "attn.k.matmul", "attn.k", "attn.v.matmul", "attn.v"),
        ("attn.out.matmul", "attn.out", "attn.residual"),
        ("mlp.fc1.matmul", "mlp.fc1", "mlp.gelu"),
        ("mlp.fc2.matmul.grad_input", "mlp.gelu.grad_input"),
        ("mlp.fc1.matmul.grad_weight", "mlp.fc1.weight.repeat.accumulate"),
        ("mlp.fc1.grad_weight", "mlp.fc1.bias.repeat.accumulate"),
        (
            *("attn.v.matmul.grad_input", "attn.k.matmul.grad_input"),
            *("attn.q.matmul.grad_input", "attn.q.matmul.grad_sum"),
        ),
        (
            *("ln2.grad_input", "ln2.grad_weight", "ln2.bias.repeat.accumulate"),
            *("ln2.weight.repeat.accumulate", "ln2.grad_sum"),
        ),
    }


def test_weights_of_a_norm_stay_apart_where_a_schedule_defers_them():
    plan = planned(small("gpt", "bf16"), 2, dp=1, tp=1, pp=2, schedule="zb-h1")
    groups = fused_ops(plan)["h"]
    assert ("ln2.grad_input", "ln2.grad_sum") in groups
    assert (
        "ln2.grad_weight", "ln2.bias.repeat.accumulate", "ln2.weight.repeat.accumulate",
    ) in groups  # fmt: skip


def test_what_ranks_have_to_sum_first_ends_a_product():
    groups = fused_ops(planned(small("gpt", "bf16"), 2, dp=1, tp=2, pp=1))["h"]
    assert not any("attn.out.matmul" in group for group in groups)
    assert ("mlp.fc1.matmul", "mlp.fc1", "mlp.gelu") in groups


def test_what_another_reads_is_not_added_to_before_it_is_written():
    product = node("p", "matmul", "x w", "y", PRODUCT)
    add = node("a", "add", "y z", "s", SUM)
    assert groups_of(product, add, w=WEIGHT) == {("p", "a")}
    other = node("o", "gelu", "y", "g", GELU)
    assert groups_of(product, other, add, w=WEIGHT) == {("p", "o")}  # y is kept beside it


def test_nothing_waits_for_what_it_makes_itself():
    product = node("p", "matmul", "x w", "y", PRODUCT)
    between = node("r", "relu", "y", "z", GELU)
    add = node("a", "add", "y z", "s", SUM)
    assert groups_of(product, between, add, w=WEIGHT) == set()
    first, second = (
        node(f"p{number}", "matmul", f"x w{number}", f"y{number}", PRODUCT) for number in (0, 1)
    )
    chained = replace_inputs(second, ("y0", "w1"))
    total = node("a", "add", "y0 y1", "s", SUM)
    weights = {"w0": WEIGHT, "w1": WEIGHT}
    assert groups_of(first, second, total, **weights) == {("p0", "p1", "a")}
    assert groups_of(first, chained, total, **weights) == {("p1", "a")}


def replace_inputs(op: FusionNode, inputs: tuple[str, ...]) -> FusionNode:
    return node(op.name, op.kind, " ".join(inputs), str(op.outputs[0]), op.labels)


def test_ops_of_two_parts_of_a_step_are_not_fused():
    product = node("p", "matmul", "x w", "y", PRODUCT)
    assert groups_of(product, node("a", "add", "y z", "s", SUM, section="B"), w=WEIGHT) == set()


def test_a_group_moves_what_it_reads_and_writes_once():
    nodes = [
        node("p", "matmul", "x w", "y", PRODUCT),
        node("b", "add", "y bias", "z", "t n, n -> t n"),
        node("r", "add", "z residual", "s", SUM),
    ]
    values = dict.fromkeys(("x", "y", "z", "residual", "s"), ROW)
    values |= {"w": WEIGHT, "bias": FusionTensor(shape=(32,), dtype="bfloat16")}
    fusion_graph = fused_groups(nodes, values)
    product, bias, residual = shares_of(nodes, values, written(fusion_graph, (0, 1, 2)))
    assert (product.inputs, product.outputs, product.follows) == ((2, 2), (4,), False)
    assert (bias.inputs, bias.outputs, bias.follows) == ((0, 2), (0,), True)
    assert (residual.inputs, residual.outputs, residual.follows) == ((0, 0), (0,), True)


MODELS = ("gpt", "llama", "bert", "resnet", "wide-deep", "mixtral", "t5", "face")
PARALLEL = [
    ("gpt", 4, {"dp": 2, "tp": 2, "pp": 1}),
    ("gpt", 2, {"dp": 2, "tp": 1, "pp": 1, "zero": 1}),
    ("gpt", 2, {"dp": 2, "tp": 1, "pp": 1, "zero": 3}),
    ("llama", 4, {"dp": 1, "tp": 2, "pp": 2, "sequence_parallel": True}),
    ("gpt", 2, {"dp": 1, "tp": 1, "pp": 2, "schedule": "zb-h1"}),
    ("gpt", 1, {"dp": 1, "tp": 1, "pp": 1, "recompute": "full"}),
]
ALL = [*((model, 1, {"dp": 1, "tp": 1, "pp": 1}) for model in MODELS), *PARALLEL]


@pytest.mark.parametrize(("model", "devices", "pins"), ALL, ids=str)
def test_fusion_saves_time_and_memory_and_leaves_no_race(model, devices, pins):
    plan = planned(small(model, "bf16"), devices, **pins)
    assert plan.fusion == FUSED
    fused, plain = (compile_plan(replace(plan, fusion=fusion)) for fusion in (FUSED, UNFUSED))
    for fused_program, plain_program in zip(fused.programs, plain.programs, strict=True):
        assert len(fused_program.actors) < len(plain_program.actors)
    spent = [
        sum(
            ns * actor.firings
            for program, row in zip(actors.programs, durations(actors, plan.cluster), strict=True)
            for actor, ns in zip(program.actors, row, strict=True)
            if actor.meeting is None
        )
        for actors in (fused, plain)
    ]
    assert spent[0] < spent[1]
    said = [stage.arena_bytes for stage in plan_memory(plan)]
    assert said == [program.memory_bytes for program in fused.programs]
    for rank in range(fused.ranks):
        assert not find_races(fused, command_buffer(fused, (rank,)))


@pytest.mark.parametrize("model", ["gpt2-small", "llama3-8b"])
def test_the_search_and_the_simulator_charge_fused_plans_alike(model):
    """Within 6 %, about as without fusion: how much communication is hidden is an estimate."""
    from millrace.models.zoo.catalogue import model_spec

    spec = replace(model_spec(model), precision="bf16", seq_len=1024)
    plan = planned(spec, 4, dp=2, tp=2, pp=1, micro_batch=4, max_gap=0.05)
    assert plan.evidence is not None
    assert predict(plan).step_time_ns / 1e9 == pytest.approx(plan.evidence.objective_s, rel=0.06)


def test_what_frameworks_drive_is_not_fused_unless_pinned():
    cluster = parse_cluster("h100-sxm-80gb:1x1")
    theirs = replace(cluster, software=framework("megatron-core"))
    assert plan_of(small("gpt", "bf16"), theirs, 16).fusion == UNFUSED
    assert Pins(fusion=FUSED).document == {"fusion": FUSED}
