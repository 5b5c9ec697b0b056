"""Unfused attention: the same mathematics as flash's, with the probabilities kept."""

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Op, Phase
from millrace.models.model_counts import training_flops
from millrace.models.ops import model_flops
from millrace.models.recompute import SUFFIX, with_recompute
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from millrace.models.training.unfused_attention import unfused
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import build, build_training, model_spec
from tests.models.oracle import random_values, run
from tests.small_models import small

NAMES = ("gpt", "llama", "mistral", "mpt", "mixtral", "gpt-oss", "deepseek", "bert", "t5", "vit")
UNFUSED = TrainingSpec(attention="unfused")


@cache
def both(name: str) -> tuple[Graph, Graph]:
    spec = small(name, "fp64")
    return build_training(spec, TrainingSpec(), 2), build_training(spec, UNFUSED, 2)


def ops_of(graph: Graph, kind: str) -> list[Op]:
    return [op for op in graph.ops if op.kind == kind]


def saved_tensors(graph: Graph, block: str) -> set[str]:
    """Forward tensors of a block that its backward ops or clones read."""
    forward_tensors = {t for op in graph.ops if op.phase is Phase.FORWARD for t in op.outputs}
    later = (Phase.RECOMPUTE, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    read = {t for op in graph.ops if op.phase in later and op.block == block for t in op.inputs}
    return {
        t.removeprefix(f"{block}.") for t in forward_tensors & read if t.startswith(f"{block}.")
    }


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_are_those_of_flash_attention(name: str) -> None:
    flash, apart = both(name)
    values = random_values(flash, 1)
    expected, actual = run(flash, values), run(check_graph(apart), values)
    compared = 0
    for op in flash.ops:
        if op.kind in ("squared_sum", "step_totals"):
            for tensor in op.inputs:
                np.testing.assert_allclose(actual[tensor], expected[tensor], rtol=1e-8, atol=1e-10)
                compared += 1
    assert compared > 2
    assert not any("attention" in op.kind for op in apart.ops)


@pytest.mark.parametrize("name", NAMES)
def test_flops_are_those_of_full_attention(name: str) -> None:
    flash, apart = both(name)
    assert model_flops(apart) == model_flops(flash)
    forward = build(small(name, "fp64"), 2)
    assert training_flops(unfused(forward)) == training_flops(forward)


def test_probabilities_are_kept_in_the_arithmetic_of_the_model_and_scores_are_not() -> None:
    graph = build_training(model_spec("gpt2-small", precision="bf16"), UNFUSED, 2)
    weights = graph.tensor("h.0.attn.core.probabilities")
    assert (weights.shape, weights.dtype) == ((2, 12, 1024, 1024), "bfloat16")
    assert weights.batch_dim == 0
    names = saved_tensors(graph, "h.0")
    assert "attn.core.probabilities" in names
    assert not {"attn.core.scores", "attn.core.logsumexp"} & names


@pytest.mark.parametrize("name", ["gpt", "llama", "t5"])
def test_selective_makes_scores_and_probabilities_again_and_keeps_what_lies_around(
    name: str,
) -> None:
    _, graph = both(name)
    block = {"t5": "decoder.1"}.get(name, "h.1")
    names = saved_tensors(with_recompute(graph, {block: "selective"}), block)
    assert not {"attn.core.probabilities", "attn.core.scores"} & names
    assert "attn.core" in names  # the context, which the projection reads
    assert {f"attn.{part}" for part in "qkv"} <= {n.removesuffix(".matmul") for n in names}


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("name", ["gpt", "gpt-oss", "t5"])
def test_recomputation_changes_no_number(name: str, mode: str) -> None:
    _, graph = both(name)
    again = check_graph(with_recompute(graph, dict.fromkeys(graph.blocks, mode)))
    assert any(op.name.endswith(f"core.scores{SUFFIX}") for op in again.ops)
    values = random_values(graph, 1)
    expected, actual = run(graph, values), run(again, values)
    for op in ops_of(graph, "squared_sum"):
        assert np.array_equal(actual[op.inputs[0]], expected[op.inputs[0]])


def test_what_is_added_to_scores_is_not_scaled() -> None:
    forward = build(small("t5", "fp64"), 2)
    scaled = (
        replace(op, attributes=op.attributes | {"scale": 0.5}) if "attention" in op.kind else op
        for op in forward.ops
    )
    forward = replace(forward, ops=tuple(scaled))
    values = random_values(forward, 3)
    expected, actual = (
        run(variant, values)["head.loss_sum"] for variant in (forward, unfused(forward))
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_blocks_of_one_template_stay_equal() -> None:
    graph = build_training(small("gpt"), UNFUSED, 1)
    inner = [
        [(op.name.removeprefix(f"{b}."), op.kind, op.labels) for op in graph.ops if op.block == b]
        for b in ("h.0", "h.1")
    ]
    assert inner[0] == inner[1]


def test_bad_questions_say_what_to_do() -> None:
    with pytest.raises(ModelError, match="no attention `fused`; choose flash or unfused"):
        build_training(small("gpt"), TrainingSpec(attention="fused"), 1)
    with pytest.raises(ModelError, match="small-resnet` has no attention"):
        training_graph(build(small("resnet"), 1), UNFUSED)
