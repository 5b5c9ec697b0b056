"""Counts from the forward graph against those of the training graph."""

import pytest

from millrace.models.counting import splits, training_flops
from millrace.models.ops import model_flops
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from millrace.models.zoo.catalogue import FAMILIES, build, model_spec


def smallest_of_each_family() -> list[str]:
    found = []
    for family in FAMILIES.values():
        graphs = {name: build(model_spec(name), 1) for name in family.models}
        found.append(min(graphs, key=lambda name: len(graphs[name].ops)))
    return found


@pytest.mark.parametrize("name", smallest_of_each_family())
def test_flops_from_the_forward_graph_equal_those_of_the_training_graph(name: str) -> None:
    forward = build(model_spec(name), 2)
    assert training_flops(forward) == model_flops(training_graph(forward, TrainingSpec()))


def test_a_gpt_can_be_split_by_batch_sequence_and_weights_but_has_no_experts() -> None:
    found = splits(build(model_spec("gpt2-small"), 1))
    assert found == {
        "blocks": 14,
        "experts": 0,
        "batch": True,
        "sequence": True,
        "tensor": True,
        "sequence_parallel": True,
    }
