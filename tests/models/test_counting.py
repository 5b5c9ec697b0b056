"""Counts from the forward graph against those of the training graph."""

import pytest
from msgspec.structs import replace

from millrace.models.model_counts import parallelism_limits, training_flops
from millrace.models.ops import model_flops
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from millrace.models.zoo.catalogue import FAMILIES, build, model_spec

DEMOS = [name for family in FAMILIES.values() for name in family.models if "-demo" in name]


@pytest.mark.parametrize("name", ["mlp", *DEMOS])
def test_flops_from_the_forward_graph_equal_those_of_the_training_graph(name: str) -> None:
    forward = build(model_spec(name), 2)
    assert training_flops(forward) == model_flops(training_graph(forward, TrainingSpec()))


def windowed() -> list[str]:
    specs = {name: model_spec(name) for family in FAMILIES.values() for name in family.models}
    windowed_specs = {name: spec for name, spec in specs.items() if spec.config.get("window")}
    # Every layer looks back as far: in others the layers in `full_layers` see all there is.
    return [name for name, spec in windowed_specs.items() if "full_layers" not in spec.config]


@pytest.mark.parametrize("name", windowed())
def test_within_a_window_attention_grows_with_the_sequence_not_with_its_square(name: str) -> None:
    spec = model_spec(name)
    window, config = spec.config["window"], spec.config
    short, long, longer = (
        training_flops(build(replace(spec, seq_len=tokens), 1)) / tokens
        for tokens in (window // 2, 2 * window, 4 * window)
    )
    assert long == longer
    met = 12 * config["layers"] * config["hidden"]  # forward and backward, per token and key
    assert long - short == met * (window - window // 2)


def test_a_window_both_ways_meets_the_keys_before_and_behind() -> None:
    def counted(causal: bool) -> int:
        graph = build(replace(model_spec("mistral-7b"), seq_len=8192), 1)
        ops = (
            replace(op, attributes={**op.attributes, "causal": causal})
            if "window" in op.attributes
            else op
            for op in graph.ops
        )
        return training_flops(replace(graph, ops=tuple(ops)))

    more = counted(causal=False) - counted(causal=True)
    assert more == 12 * 32 * 4096 * 8192 * (4096 - 1)


def test_a_gpt_can_be_split_by_batch_sequence_and_weights_but_has_no_experts() -> None:
    properties = parallelism_limits(build(model_spec("gpt2-small"), 1))
    assert properties == {
        "blocks": 14,
        "experts": 0,
        "batch": True,
        "sequence": True,
        "tensor": True,
        "sequence_parallel": True,
    }
