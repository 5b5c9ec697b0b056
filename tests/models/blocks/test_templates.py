"""Blocks that are equal share a template, blocks that differ in anything do not."""

from collections.abc import Callable

import pytest

from millrace.models.blocks import merge_templates
from millrace.models.builder import GraphBuilder, dense
from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec, graph_spec
from millrace.models.training import training_graph
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import build, build_training, model_spec
from millrace.planner.clusters import local_cluster
from tests.models.blocks.cases import WIDTH, assert_promise_kept, ended, started
from tests.plan_requests import plan_of

Layer = Callable[[GraphBuilder, str, str], str]


def plain(builder: GraphBuilder, name: str, x: str) -> str:
    product = dense(builder, f"{name}fc", x, "b k, k n -> b n", {"n": WIDTH})
    active = builder.apply("relu", f"{name}act", (product,), "b n -> b n")
    return builder.apply("add", f"{name}sum", (x, active), "b n, b n -> b n")


def other_kind(builder: GraphBuilder, name: str, x: str) -> str:
    product = dense(builder, f"{name}fc", x, "b k, k n -> b n", {"n": WIDTH})
    active = builder.apply("tanh", f"{name}act", (product,), "b n -> b n")
    return builder.apply("add", f"{name}sum", (x, active), "b n, b n -> b n")


def other_labels(builder: GraphBuilder, name: str, x: str) -> str:
    product = dense(builder, f"{name}fc", x, "b k, n k -> b n", {"n": WIDTH})
    active = builder.apply("relu", f"{name}act", (product,), "b n -> b n")
    return builder.apply("add", f"{name}sum", (x, active), "b n, b n -> b n")


def other_attribute(builder: GraphBuilder, name: str, x: str) -> str:
    product = dense(builder, f"{name}fc", x, "b k, k n -> b n", {"n": WIDTH}, std=0.5)
    active = builder.apply("relu", f"{name}act", (product,), "b n -> b n")
    return builder.apply("add", f"{name}sum", (x, active), "b n, b n -> b n")


def other_wiring(builder: GraphBuilder, name: str, x: str) -> str:
    product = dense(builder, f"{name}fc", x, "b k, k n -> b n", {"n": WIDTH})
    active = builder.apply("relu", f"{name}act", (product,), "b n -> b n")
    return builder.apply("add", f"{name}sum", (active, x), "b n, b n -> b n")


def other_source(builder: GraphBuilder, name: str, x: str) -> str:
    product = dense(builder, f"{name}fc", x, "b k, k n -> b n", {"n": WIDTH})
    builder.apply("relu", f"{name}act", (product,), "b n -> b n")
    return builder.apply("add", f"{name}sum", (x, product), "b n, b n -> b n")


def hand_written(layers: list[Layer], names: list[str], widths: int = WIDTH) -> Graph:
    """Blocks `part0` …, each a template of its own, between a stem and a head."""
    builder, x = started()
    x = dense(builder, "into", x, "b k, k n -> b n", {"n": widths})
    for index, (layer, name) in enumerate(zip(layers, names, strict=True)):
        builder.begin_block(f"part{index}")
        x = layer(builder, name, x)
    builder.begin_block("end")
    return ended(builder, x)


def test_blocks_of_equal_structure_get_the_template_of_the_first() -> None:
    graph = hand_written([plain, plain, plain], ["", "", ""])
    tied = merge_templates(graph)
    assert tied.templates == {
        "model": "model",
        "part0": "part0",
        "part1": "part0",
        "part2": "part0",
        "end": "end",
    }
    assert (tied.ops, tied.tensors) == (graph.ops, graph.tensors)
    assert_promise_kept(tied)


def test_where_inner_names_differ_the_ops_are_renamed_alike() -> None:
    tied = merge_templates(hand_written([plain, plain, plain], ["a.", "b.", "c."]))
    assert_promise_kept(check_graph(tied))
    assert [op.name for op in tied.ops if op.block == "part1"] == [
        "part1.fc.weight",
        "part1.fc.bias",
        "part1.fc.weight.repeat",
        "part1.fc.matmul",
        "part1.fc.bias.repeat",
        "part1.fc",
        "part1.act",
        "part1.sum",
    ]


def test_names_without_meaning_become_kind_and_place() -> None:
    def swapped(builder: GraphBuilder, name: str, x: str) -> str:
        active = builder.apply("relu", "one" if name else "two", (x,), "b n -> b n")
        return builder.apply("tanh", "two" if name else "one", (active,), "b n -> b n")

    tied = merge_templates(hand_written([swapped, swapped], ["", "x"]))
    assert_promise_kept(tied)
    assert [op.name for op in tied.ops if op.block == "part1"] == ["part1.relu.0", "part1.tanh.1"]


@pytest.mark.parametrize(
    "layer", [other_kind, other_labels, other_attribute, other_wiring, other_source]
)
def test_any_difference_keeps_blocks_apart(layer: Layer) -> None:
    tied = merge_templates(hand_written([plain, layer, plain, layer], [""] * 4))
    assert [tied.templates[f"part{index}"] for index in range(4)] == [
        "part0",
        "part1",
        "part0",
        "part1",
    ]


def test_a_block_that_reads_data_differs_from_one_that_reads_what_is_trained() -> None:
    builder, x = started()  # the first layer's backward pass stops at the data
    for index in range(3):
        builder.begin_block(f"part{index}")
        x = plain(builder, "", x)
    builder.begin_block("end")
    tied = merge_templates(ended(builder, x))
    assert [tied.templates[f"part{index}"] for index in range(3)] == ["part0", "part1", "part1"]


def test_blocks_that_only_share_a_template_by_mistake_are_parted() -> None:
    builder, x = started()
    x = dense(builder, "into", x, "b k, k n -> b n", {"n": WIDTH})
    for index, layer in enumerate([plain, other_kind]):
        builder.begin_block(f"part{index}", template="part")
        x = layer(builder, "", x)
    builder.begin_block("end")
    tied = merge_templates(ended(builder, x))
    assert (tied.templates["part0"], tied.templates["part1"]) == ("part", "part1")


@pytest.mark.parametrize("names", [["", ""], ["a.", "b."]])
def test_tying_before_or_after_the_gradients_is_the_same(names: list[str]) -> None:
    graph = hand_written([plain, plain], names)
    after = merge_templates(training_graph(graph, TrainingSpec()))
    assert after == training_graph(merge_templates(graph), TrainingSpec())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "name", ["gpt-demo", "mlp", "resnet-18", "arcface-r100", "arcface-mobilefacenet"]
)
def test_blocks_of_the_zoo_that_share_a_template_are_equal_and_stay_as_they_are(
    name: str, precision: str
) -> None:
    spec = model_spec(name, precision=precision)
    graph = build(spec, 2)
    assert merge_templates(graph) is graph
    assert len(set(graph.templates.values())) < len(graph.blocks)
    training = build_training(spec, TrainingSpec(), 2)
    assert merge_templates(training) is training


def test_blocks_with_ops_of_their_own_in_the_backward_pass_are_parted() -> None:
    """The stem reads first what it gives `part0`, so the gradients are added up in the stem."""
    builder, x = started()
    x = dense(builder, "into", x, "b k, k n -> b n", {"n": WIDTH})
    early = builder.apply("tanh", "early", (x,), "b n -> b n")
    for index in range(3):
        builder.begin_block(f"part{index}", template="part")
        x = plain(builder, "", x)
    builder.begin_block("end")
    x = builder.apply("add", "late", (x, early), "b n, b n -> b n")
    forward = ended(builder, x)
    assert merge_templates(forward) is forward
    graph = training_graph(forward, TrainingSpec())
    titles = [graph.templates[f"part{index}"] for index in range(3)]
    assert titles == ["part", "part1", "part1"]
    cluster = local_cluster(2, cores=1, memory_bytes=2**30)
    assert plan_of(graph_spec(forward, "fp32"), cluster, 2 * forward.batch, tp=2).stages == 1
