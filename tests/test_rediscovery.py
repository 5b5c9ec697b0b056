"""Schemes that people found by thought the search finds by arithmetic, with no template or pin.

Each model and cluster is one on which the known scheme is the cheapest by the cost model; what is
asserted is read off the signatures, the roles and the collectives of the plan. A pin names the mesh
where one scheme is looked at alone (ZeRO: replicas only).
"""

from functools import cache
from math import prod

from millrace.models.graph import Graph
from millrace.models.labels import BATCH, EXPERT
from millrace.models.spec import Config, ModelSpec
from millrace.planner.compile import compile_plan
from millrace.planner.parallel_degrees import axis_roles, roles
from millrace.planner.plan import OpSignature, Plan
from millrace.planner.signatures import split_labels
from tests.plan_requests import plan_of
from tests.small_models import gpt_of

GPT, DEEPER = (
    gpt_of(layers, 8192, 64, vocab=51200, positions=2048, precision="bf16") for layers in (2, 4)
)
REPLICATED = gpt_of(12, 4096, 32, vocab=8192, positions=1024, precision="bf16")
EXPERTS = ModelSpec(
    name="decoder", family="decoder", seq_len=2048, precision="bf16",
    config={
        "layers": 2, "hidden": 2048, "vocab": 8192, "positions": 2048, "heads": 16, "kv_heads": 16,
        "head_dim": 128, "ffn_hidden": 7168, "rotary_dims": 128, "experts": 8,
        "experts_per_token": 2, "expert_hidden": 7168,
    },
)  # fmt: skip
FACES = ModelSpec(
    name="face", family="face",
    config={
        "network": "iresnet", "depths": (1, 1), "widths": (64, 128), "classes": 1_000_000,
    },
)  # fmt: skip
GIB = 2**30


def planned(
    model: ModelSpec, cluster: str, batch: int, *, max_gap: float = 0.1, **choices: object
) -> tuple[Plan, Graph]:
    plan = plan_of(model, cluster, batch, max_gap=max_gap, **choices)
    return plan, plan.graph


def signature(plan: Plan, template: str, op: str) -> OpSignature:
    """Signature of an op, the same in every block of a template."""
    signatures = {v.signatures[op] for v in plan.variants if v.template == template}
    assert len(signatures) == 1, (template, op, signatures)
    return signatures.pop()


@cache
def megatron() -> Plan:
    """Plan for one sample on two devices: there is no batch to split."""
    return planned(GPT, "h100-sxm-80gb:2x1", 1, max_gap=0)[0]


def test_megatrons_column_and_row_split() -> None:
    plan = megatron()
    assert plan.stages == 1
    for name in ("q", "k", "v"):  # k, k h d: by heads
        assert signature(plan, "h", f"attn.{name}.matmul").inputs == ("B", "S(1)")
    assert signature(plan, "h", "attn.core").inputs == ("S(2)", "S(2)", "S(2)")
    out = signature(plan, "h", "attn.out.matmul")
    assert (out.inputs, out.outputs) == (("S(2)", "S(0)"), ("P(sum)",))
    assert signature(plan, "h", "mlp.fc1.matmul").inputs == ("B", "S(1)")
    assert signature(plan, "h", "mlp.gelu").inputs == ("S(2)",)
    down = signature(plan, "h", "mlp.fc2.matmul")
    assert (down.inputs, down.outputs) == (("S(2)", "S(0)"), ("P(sum)",))


def test_megatrons_sequence_parallelism() -> None:
    plan = megatron()
    for norm in ("ln1", "ln2"):
        assert signature(plan, "h", norm).inputs[0] == "S(1)"
    assert signature(plan, "h", "mlp.residual").inputs == ("S(1)", "S(1)")
    role_degrees = roles(plan, plan.graph)
    assert role_degrees["tp"] == 2
    assert role_degrees["sequence_parallel"] is True


def test_an_embedding_and_a_loss_parallel_over_the_vocabulary() -> None:
    plan = megatron()
    tokens = signature(plan, "embedding", "tokens")
    assert (tokens.inputs, tokens.outputs) == (("B", "S(0)"), ("P(sum)",))
    logits = signature(plan, "head", "logits")
    assert (logits.inputs, logits.outputs) == (("B", "S(0)"), ("S(2)",))
    assert signature(plan, "head", "loss").expansion == "vocabulary_parallel"


def replicas(limit_gib: float | None) -> tuple[Plan, Graph]:
    # Nothing is run twice: that saves memory as well, and may cost less.
    return planned(
        REPLICATED, "h100-sxm-80gb:4x1", 64, dp=4, tp=1, pp=1, cp=1, micro_batch=1,
        recompute="none", memory_limit_bytes=None if limit_gib is None else int(limit_gib * GIB),
    )  # fmt: skip


def gathered(plan: Plan) -> list[set[str]]:
    """Names of the weights stored split and gathered as read, per transformer block in turn."""
    variants = [plan.variants[choice.variant] for chunk in plan.chunks for choice in chunk.blocks]
    return [
        {
            name
            for name, op_signature in variant.signatures.items()
            if name.endswith(".weight.repeat") and "S(" in op_signature.outputs[0]
        }
        for variant in variants
        if variant.template == "h"
    ]


def test_weights_are_gathered_per_microbatch_only_where_memory_forces_it() -> None:
    # Splitting the optimizer's state saves time as well; gathering in every microbatch costs it.
    ample, graph = replicas(None)
    assert roles(ample, graph)["zero"] in (1, 2)
    assert not any(gathered(ample))
    tight, _ = replicas(15.4)
    assert all(gathered(tight))
    assert ample.evidence
    assert tight.evidence
    assert tight.evidence.objective_s > ample.evidence.objective_s


def test_wide_and_deep_splits_tables_by_row_and_hidden_layers_by_sample() -> None:
    config: Config = {"vocab": 10**7, "embedding": 15}  # 15 columns do not divide
    model = ModelSpec(name="wide_deep", family="wide_deep", config=config)
    plan, graph = planned(model, "h100-sxm-80gb:8x1", 16384)
    for block in ("wide", "deep"):
        table = signature(plan, block, "table")
        every = len(plan.mesh.axes)
        assert table.inputs[1] == written("S(0)", every)
        assert table.outputs == (written("P(sum)", every),)
        variable = signature(plan, block, "table.weight")
        assert variable.outputs == (written("S(0)", every),)
    ops = {op.name: op for op in graph.ops}
    hidden = signature(plan, "hidden", "fc.matmul")
    assert set(split_labels(ops["hidden.0.fc.matmul"].labels, hidden)) == {BATCH}


def written(sbp: str, axes: int) -> str:
    return sbp if axes == 1 else "(" + ", ".join([sbp] * axes) + ")"


def test_face_recognition_splits_the_classifier_by_identity_and_the_network_by_sample() -> None:
    plan, graph = planned(FACES, "h100-sxm-80gb:8x1", 1024)
    ops = {op.name: op for op in graph.ops}
    for op, template, label in (
        ("head.cosine", "head", "s"),
        ("stem.conv", "stem", BATCH),
    ):
        inner = op.removeprefix(template + ".")
        labels = split_labels(ops[op].labels, signature(plan, template, inner))
        assert set(labels) == {label}, (op, labels)
    assert signature(plan, "head", "loss").expansion == "vocabulary_parallel"


def test_experts_are_split_and_tokens_exchanged_by_all_to_all() -> None:
    plan, graph = planned(EXPERTS, "h100-sxm-80gb:8x1", 64)
    role_degrees = roles(plan, graph)
    assert isinstance(role_degrees["ep"], int)
    assert role_degrees["ep"] > 1
    ops = {op.name: op for op in graph.ops}
    inner = signature(plan, "h.experts", "experts.up")
    cut = split_labels(ops["h.0.experts.up"].labels, inner)
    place = [axis for axis, label in enumerate(cut) if label == EXPERT]
    assert prod(plan.mesh.sizes[axis] for axis in place) == role_degrees["ep"]
    actors = compile_plan(plan)
    exchanged = {
        register.tensor
        for program in actors.programs
        for actor in program.actors
        if actor.kind == "all_to_all"
        for register in (program.registers[port.register] for port in actor.inputs)
    }
    # Activations go there and back, and so do their gradients.
    for name in ("experts.dispatch", "experts.down"):
        assert any(name in tensor for tensor in exchanged), sorted(exchanged)


def test_tensor_parallelism_stays_inside_the_nodes_nvlink() -> None:
    plan, graph = planned(DEEPER, "h100-sxm-80gb:4x2", 16)
    roles_by_axis = axis_roles(plan, graph)
    assert any("tp" in axis_role_names for axis_role_names in roles_by_axis)
    sizes = plan.mesh.sizes
    for axis, axis_role_names in enumerate(roles_by_axis):
        if "tp" in axis_role_names:
            assert prod(sizes[axis:]) <= plan.cluster.devices_per_node
