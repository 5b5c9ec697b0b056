"""BERT, T5 and the vision transformer: published parameter counts, shapes, what cannot be built."""

from typing import Any

import pytest

from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build, build_training, model_spec

# Parameters of the released checkpoints: google-bert/bert-{base,large}-uncased (the pre-training
# heads, and without the pooler and its classifier), google-t5/t5-*, google/t5-v1_1-*, and
# torchvision's vit_{b_16,l_16,h_14} (tables of its model pages).
PUBLISHED = {
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "bert-base-mlm": 109_514_298,
    "bert-large-mlm": 335_174_458,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "vit-b": 86_567_656,
    "vit-l": 304_326_632,
    "vit-h": 632_045_800,
}

SMALL = {"layers": 1, "hidden": 8, "heads": 2, "ffn_hidden": 12}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": SMALL | {"vocab": 20, "positions": 10},
    "t5": SMALL | {"vocab": 20, "head_dim": 3},
    "vit": SMALL | {"classes": 3, "image": (9, 12), "patch": (4, 3), "channels": 2},
}


def spec(family: str, seq_len: int | None = None, **changes: Any) -> ModelSpec:
    length = (1 if family == "vit" else 10) if seq_len is None else seq_len
    return ModelSpec(name="own", family=family, config=CONFIGS[family] | changes, seq_len=length)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_exactly_the_published_parameters(name: str) -> None:
    assert build(model_spec(name), 1).parameter_count == PUBLISHED[name]


def test_bert_adds_the_next_sentence_in_the_measure_of_the_masked_tokens() -> None:
    both = build(spec("bert", masked=4), 2)
    (weighted,) = (op for op in both.ops if op.kind == "scale")
    assert weighted.attributes["factor"] == 4
    assert kinds(both).count("count_valid") == 1
    alone = build(spec("bert", next_sentence=False), 2)
    assert "tanh" not in kinds(alone)
    assert {op.attributes["source"] for op in alone.ops if op.kind == "input"} == {
        "masked_tokens",
        "masked_targets",
        "segments",
    }


def test_bert_masks_fifteen_percent_where_nothing_else_is_said() -> None:
    (ids,) = (
        op
        for op in build(model_spec("bert-base"), 1).ops
        if op.attributes.get("source") == "masked_tokens"
    )
    assert (ids.attributes["masked"], ids.attributes["mask_id"]) == (77, 103)


def test_berts_head_reads_the_first_places_only_where_asked() -> None:
    full, part = (build(spec("bert", masked=4, first_places=n), 2) for n in (0, 5))
    tensors = part.tensors_by_name
    assert tensors["head.logits"].shape == (2, 5, full.tensors_by_name["head.logits"].shape[-1])
    (ids,) = (op for op in part.ops if op.attributes.get("source") == "masked_tokens")
    assert (ids.attributes["masked"], ids.attributes["among"]) == (4, 5)
    with pytest.raises(ModelError, match="`first_places` is 3; 4 places are masked"):
        build(spec("bert", masked=4, first_places=3), 2)


def test_all_blocks_of_a_t5_stack_read_one_table_of_distances() -> None:
    graph = build(spec("t5", layers=3, decoder_layers=2), 1)
    tables = [op for op in graph.ops if op.kind == "variable" and "distances" in op.name]
    assert [op.block for op in tables] == ["source", "targets"]
    assert kinds(graph).count("relative_bias") == 5
    assert kinds(graph).count("biased_attention") == 5
    assert kinds(graph).count("attention") == 2
    assert [block for block in graph.blocks if "coder" in block] == [
        "encoder.0",
        "encoder.1",
        "encoder.2",
        "decoder.0",
        "decoder.1",
    ]


def test_a_vision_transformer_reads_whole_patches_only() -> None:
    graph = build(spec("vit"), 2)
    assert graph.tensor("embedding.patches.conv").shape == (2, 2, 4, 8)
    assert graph.tensor("embedding.sum").shape == (2, 9, 8)


@pytest.mark.parametrize("family", CONFIGS)
def test_dropout_is_there_only_when_asked_for_and_knows_its_op(family: str) -> None:
    assert "dropout" not in kinds(build(spec(family), 1))
    graph = build_training(spec(family, dropout=0.1), TrainingSpec(), 1)
    names = [op.attributes["op"] for op in graph.ops if op.kind == "dropout"]
    assert len(set(names)) == len(names) / 2  # each once forward, once backward
    assert set(names) <= {op.name for op in graph.ops}


@pytest.mark.parametrize(
    ("family", "changes", "complaint"),
    [
        ("bert", {"heads": 3}, "hidden (8) is not divisible by heads (3)"),
        ("bert", {"seq_len": 11}, "has 10 positions: sequences of 11 tokens do not fit"),
        ("bert", {"masked": 11}, "a sequence of 10 tokens has 1 to 10 places to mask"),
        ("bert", {"mask_id": 20}, "`mask_id` is 20; expected an id, 0 to 19"),
        ("bert", {"activation": "step"}, "no activation `step`; choose one of gelu"),
        ("bert", {"epsilon": 0.0}, "expected 0 < epsilon < 1"),
        ("bert", {"dropout": 1.0}, "expected 0 <= dropout < 1"),
        ("t5", {"layers": 0}, "`layers` is 0, below 1"),
        ("t5", {"seq_len": 0}, "0 tokens do not fit"),
        ("t5", {"decoder_layers": -1}, "`decoder_layers` is -1"),
        ("t5", {"buckets": 3}, "`buckets` is 3, below 4"),
        ("t5", {"max_distance": 16}, "expected more than half of `buckets` (32)"),
        ("vit", {"patch": (10, 3)}, "holds no patch of 10 x 3"),
        ("vit", {"seq_len": 9}, "has no sequence: leave its length out, 9 was given"),
        ("vit", {"image": (1, 2, 3)}, "configuration of `vit`"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_fix(
    family: str, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError) as refused:
        build(spec(family, **changes), 1)
    assert complaint in str(refused.value)
