"""Batch norms with what follows on them: which ops become one, and what they move then."""

from itertools import pairwise

import pytest

from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.fusion import (
    FusionNode,
    FusionTensor,
    fused_groups,
    shares_of,
    shares_of_graph,
    written,
)
from tests.small_models import small

LARGE = (4, 8, 8, 16)
SAME = "b y x c, b y x c -> b y x c"
NORM = "b y x c, c, c, c, c -> b y x c"
CHANNELS = ("sums", "squares", "gamma", "beta")
BF16_BYTES = 2


def node(
    kind: str, labels: str, inputs: tuple[str, ...], output: str, section: str = "F"
) -> FusionNode:
    return FusionNode(
        name=output, kind=kind, labels=labels, inputs=inputs, outputs=(output,), section=section
    )


def block(*, read_by_backward: str = "") -> list[FusionNode]:
    """A norm, the sum with a shortcut, relu, and what reads its result."""
    nodes = [
        node("batch_norm", NORM, ("x", *CHANNELS), "normed"),
        node("add", SAME, ("normed", "shortcut"), "total"),
        node("relu", "b y x c -> b y x c", ("total",), "y"),
        node("relu_grad", SAME, ("y", "dy"), "dtotal", "B"),
    ]
    if read_by_backward:
        nodes.append(node("relu_grad", SAME, (read_by_backward, "dy"), "other", "B"))
    return nodes


def values_of(nodes: list[FusionNode], **changes: FusionTensor) -> dict[str, FusionTensor]:
    names = {name for op in nodes for name in (*op.inputs, *op.outputs)}
    channels = dict.fromkeys(CHANNELS, FusionTensor(shape=LARGE[-1:], dtype="float32"))
    large = dict.fromkeys(names - set(CHANNELS), FusionTensor(shape=LARGE, dtype="bfloat16"))
    return {**large, **channels, **changes}


def test_a_norm_its_shortcut_and_relu_are_one() -> None:
    nodes = block()
    assert set(fused_groups(nodes, values_of(nodes)).groups.values()) == {(0, 1, 2)}


def test_what_is_missing_is_left_out() -> None:
    norm, add, relu, _ = block()
    alone = [norm, node("relu", "b y x c -> b y x c", ("normed",), "y")]
    for nodes in ([norm, add], alone):
        assert set(fused_groups(nodes, values_of(nodes)).groups.values()) == {(0, 1)}
    for nodes in (
        [norm],
        [norm, node("gelu", "b y x c -> b y x c", ("normed",), "y")],
        [add, relu],
    ):
        assert not fused_groups(nodes, values_of(nodes)).groups


def test_a_sum_that_is_read_elsewhere_is_kept() -> None:
    nodes = block(read_by_backward="total")
    fusion_graph = fused_groups(nodes, values_of(nodes))
    assert fusion_graph.groups[0] == (0, 1, 2)
    assert set(written(fusion_graph, fusion_graph.groups[0])) == {"total", "y"}


def test_a_norm_that_is_read_elsewhere_is_not_added_to() -> None:
    nodes = block(read_by_backward="normed")
    assert not fused_groups(nodes, values_of(nodes)).groups


@pytest.mark.parametrize(
    "other",
    [
        FusionTensor(shape=LARGE, dtype="float32"),
        FusionTensor(shape=(1, *LARGE[1:]), dtype="bfloat16"),
    ],
)
def test_only_alike_tensors_are_added(other: FusionTensor) -> None:
    nodes = block()
    assert not fused_groups(nodes, values_of(nodes, shortcut=other)).groups


def test_another_section_begins_a_kernel_of_its_own() -> None:
    norm, add, relu, gradient = block()
    elsewhere = FusionNode(
        name=relu.name, kind=relu.kind, labels=relu.labels, inputs=relu.inputs,
        outputs=relu.outputs, section="R",
    )  # fmt: skip
    nodes = [norm, add, elsewhere, gradient]
    assert set(fused_groups(nodes, values_of(nodes)).groups.values()) == {(0, 1)}


@pytest.mark.parametrize(("read_by_backward", "passes"), [("", 3), ("total", 4)])
def test_x_and_the_shortcut_are_read_and_y_is_written(read_by_backward: str, passes: int) -> None:
    nodes = block(read_by_backward=read_by_backward)
    values = values_of(nodes)
    fusion_graph = fused_groups(nodes, values)
    members = [fusion_graph.nodes[index] for index in fusion_graph.groups[0]]
    shares = shares_of(members, values, written(fusion_graph, fusion_graph.groups[0]))
    moved = sum(
        per_element * values[name].elements
        for member, share in zip(members, shares, strict=True)
        for names, row in ((member.inputs, share.inputs), (member.outputs, share.outputs))
        for name, per_element in zip(names, row, strict=True)
        if values[name].shape == LARGE
    )
    assert moved == passes * BF16_BYTES * values["x"].elements
    assert [share.follows for share in shares] == [False, True, True]


def test_every_norm_of_a_resnet_is_written_once_with_all_that_follows() -> None:
    graph = build_training(small("resnet", "bf16"), TrainingSpec(), 4)
    shares = shares_of_graph(graph)
    readers = {name: op for op in graph.ops for name in op.inputs if op.phase == "forward"}
    follow = {op.name for op in graph.ops if op.kind in ("relu", "add") and op.phase == "forward"}
    joined = 0
    for first, second in pairwise(op for op in graph.ops if op.phase == "forward"):
        if first.kind == "batch_norm" and second.name in follow and second.name in shares:
            assert readers[first.outputs[0]].name == second.name
            joined += shares[second.name].follows
    assert joined > 0
    assert all(shares[name].follows for name in follow if name in shares)


def test_the_gradient_of_relu_reads_its_result_unless_another_block_does() -> None:
    graph = build_training(small("resnet", "fp32"), TrainingSpec(), 4)
    makers = {name: op for op in graph.ops for name in op.outputs}
    gradients = [op for op in graph.ops if op.kind == "relu_grad"]
    assert {makers[op.inputs[0]].kind for op in gradients} == {"relu", "add"}
    for op in gradients:
        read = makers[op.inputs[0]]
        crosses = {
            reader.block for reader in graph.ops if not set(read.outputs).isdisjoint(reader.inputs)
        }
        assert crosses == {read.block}
