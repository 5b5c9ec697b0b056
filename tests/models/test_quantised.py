"""Products in 8 bits: which ones, what they read and what is kept for their gradients."""

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.models.errors import ModelError
from millrace.models.fp8 import ARITHMETIC
from millrace.models.graph import Graph, Op, Phase
from millrace.models.model_counts import master_weights, training_flops
from millrace.models.ops import model_flops
from millrace.models.recompute import with_recompute
from millrace.models.spec import TrainingSpec
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import build, build_training
from tests.models.oracle import random_values, run
from tests.small_models import small

NAMES = ("gpt", "llama", "mixtral", "deepseek", "bert", "t5", "vit")


def trained(name: str, precision: str = "fp8", **training: str) -> Graph:
    spec = small(name, precision)
    return check_graph(build_training(spec, TrainingSpec(**training), 2))  # type: ignore[arg-type]


def narrow(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if ARITHMETIC in op.attributes]


@pytest.mark.parametrize("name", NAMES)
def test_products_with_weights_between_the_ends_compute_in_8_bits_and_no_others(name: str) -> None:
    graph = build(small(name, "fp8"), 2)
    makers = {tensor: op for op in graph.ops for tensor in op.outputs}
    for op in graph.ops:
        inner = op.block not in (graph.blocks[0], graph.blocks[-1])
        of_weight = any(makers[tensor].kind == "repeat" for tensor in op.inputs)
        chosen = op.kind == "matmul" and inner and of_weight and "router" not in op.name
        assert (op.attributes.get(ARITHMETIC) == "fp8") == chosen, op.name


@pytest.mark.parametrize("name", NAMES)
def test_such_a_product_and_both_gradients_read_8_bits_and_weights_stay_in_16(name: str) -> None:
    graph = trained(name)
    tensors = graph.tensors_by_name
    phases = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT), 0)
    for op in narrow(graph):
        phases[op.phase] += 1
        read = {tensors[tensor].dtype for tensor in op.inputs}
        of_weight = op.phase is Phase.BACKWARD_WEIGHT
        assert read == ({"float8"} if of_weight else {"float8", "bfloat16"}), op.name
        assert tensors[op.outputs[0]].dtype == "bfloat16"
    assert len(set(phases.values())) == 1
    assert phases[Phase.FORWARD] > 0
    read_by = {tensor: op for op in graph.ops for tensor in op.inputs}
    for op in graph.ops:
        if op.kind == "quantise":
            assert ARITHMETIC in read_by[op.outputs[0]].attributes


def test_products_of_one_tensor_share_its_narrow_copy_which_alone_is_kept() -> None:
    graph = trained("llama")
    first_inputs = {op.name: op.inputs[0] for op in graph.ops if op.kind in ("matmul", "quantise")}
    assert first_inputs["h.1.attn.q"] == first_inputs["h.1.attn.k"] == first_inputs["h.1.attn.v"]
    assert first_inputs["h.1.attn.q"] == "h.1.attn.q.quantised"
    backward = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    later = {tensor for op in graph.ops if op.phase in backward for tensor in op.inputs}
    assert "h.1.attn.q.quantised" in later
    assert first_inputs["h.1.attn.q.quantised"] not in later  # what the norm made


@pytest.mark.parametrize("name", NAMES)
def test_but_for_rounding_it_is_the_model_in_16_bits(name: str) -> None:
    graphs = [trained(name, precision) for precision in ("bf16", "fp8")]
    values = random_values(graphs[0], 1)
    runs = [run(graph, values) for graph in graphs]
    for op in graphs[0].ops:
        if op.kind == "squared_sum":
            expected, quantised = (tensors[op.inputs[0]] for tensors in runs)
            np.testing.assert_allclose(expected, quantised, rtol=1e-9, atol=1e-12)
    assert model_flops(graphs[0]) == model_flops(graphs[1])
    forward = [build(small(name, precision), 2) for precision in ("bf16", "fp8")]
    assert training_flops(forward[0]) == training_flops(forward[1])
    assert master_weights(graphs[0]) == master_weights(graphs[1])


def test_scores_of_unfused_attention_stay_in_16_bits() -> None:
    graph = trained("gpt", attention="unfused")
    by_name = {op.name: op for op in graph.ops}
    assert ARITHMETIC not in by_name["h.1.attn.core.scores"].attributes
    assert graph.tensor("h.1.attn.core.probabilities").dtype == "bfloat16"


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_narrow_copies_are_made_again_where_a_block_recomputes(mode: str) -> None:
    graph = trained("llama")
    again = check_graph(with_recompute(graph, {"h.1": mode}))
    clones = [op for op in again.ops if op.phase is Phase.RECOMPUTE]
    assert "h.1.attn.q.quantised.recompute" in [op.name for op in clones]
    assert all(
        again.tensor(op.outputs[0]).dtype == "float8" for op in clones if op.kind == "quantise"
    )


@pytest.mark.parametrize("other", ["mxfp8", "mxfp4", "nvfp4"])
def test_other_narrow_formats_are_written_alike(other: str) -> None:
    ways = [trained("gpt", precision) for precision in ("fp8", other)]
    assert {op.attributes[ARITHMETIC] for op in narrow(ways[1])} == {other}
    plain = [
        replace(graph, ops=tuple(replace(op, attributes={}) for op in graph.ops)) for graph in ways
    ]
    assert plain[0] == plain[1]


def test_attention_and_head_are_narrow_where_asked_for_and_rounding_is_all_that_changes() -> None:
    ways = []
    for parts in ("", "attention head"):
        spec = small("deepseek", "nvfp4")
        spec = replace(spec, config=spec.config | {"narrow_parts": parts})
        ways.append(check_graph(build_training(spec, TrainingSpec(), 2)))
    plain, asked = ({op.name: op for op in graph.ops} for graph in ways)
    for name, arithmetic in (("h.1.attn.core", "fp8"), ("head.logits", "nvfp4")):
        assert ARITHMETIC not in plain[name].attributes
        assert asked[name].attributes[ARITHMETIC] == arithmetic
    grad = asked["h.1.attn.core.grad_input"]
    read = [ways[1].tensor(tensor).dtype for tensor in grad.inputs]
    assert read == [*["float8"] * 3, "bfloat16", "float32", "float8"]
    assert {ways[1].tensor(tensor).dtype for tensor in grad.outputs} == {"bfloat16"}
    assert [op.kind for op in ways[0].ops] == [
        op.kind for op in ways[1].ops if op.kind != "quantise" or op.name in plain
    ]


def test_a_model_without_linear_layers_says_what_to_use() -> None:
    with pytest.raises(ModelError, match="no linear layer between its first and last block"):
        build(small("resnet", "fp8"), 1)
