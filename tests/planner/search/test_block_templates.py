"""Block templates: a graph of a few blocks folds to what the whole graph does."""

import pytest

from millrace.models.recompute import MODES, with_recompute
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.search.blocks.block_templates import deduplicated, fold

# Numbers of blocks that are left; in T5 every block of the decoder reads the encoder.
LEFT = {"gpt3-125m": 8, "bert-large": 8, "mixtral-8x7b": 8, "resnet-101": 19, "t5-small": 15}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LEFT)
def test_a_shortened_graph_folds_to_the_same(name: str, mode: str) -> None:
    graph = build_training(model_spec(name), TrainingSpec(), 4)
    short = deduplicated(graph)
    assert len(short.graph.blocks) == LEFT[name]
    assert sum(short.often.values()) == len(graph.blocks)
    folded = fold(with_recompute(graph, dict.fromkeys(graph.blocks, mode)))
    few = with_recompute(short.graph, dict.fromkeys(short.graph.blocks, mode))
    folded_short = fold(few, often=short.often)
    assert folded_short.ops == folded.ops
    assert list(folded_short.counts.items()) == list(folded.counts.items())
    assert folded_short.edges == folded.edges
