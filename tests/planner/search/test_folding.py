"""Folding: a graph of a few blocks folds to what the whole graph does."""

import pytest

from millrace.models.recompute import MODES, with_recompute
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.search.blocks.folding import fold, shortened

# With how many blocks are left; in T5 every block of the decoder reads the encoder.
LEFT = {"gpt3-125m": 8, "bert-large": 8, "mixtral-8x7b": 8, "resnet-101": 19, "t5-small": 15}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LEFT)
def test_a_shortened_graph_folds_to_the_same(name: str, mode: str) -> None:
    graph = build_training(model_spec(name), TrainingSpec(), 4)
    short = shortened(graph)
    assert len(short.graph.blocks) == LEFT[name]
    assert sum(short.often.values()) == len(graph.blocks)
    whole = fold(with_recompute(graph, dict.fromkeys(graph.blocks, mode)))
    few = with_recompute(short.graph, dict.fromkeys(short.graph.blocks, mode))
    found = fold(few, often=short.often)
    assert found.ops == whole.ops
    assert list(found.counts.items()) == list(whole.counts.items())
    assert found.nets == whole.nets
