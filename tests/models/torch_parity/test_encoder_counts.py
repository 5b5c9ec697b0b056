"""Configurations of BERT, T5 and ViT have exactly the parameters that transformers gives them."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.models.errors import ModelError
from millrace.models.importers.huggingface import read_config
from millrace.models.zoo.catalogue import build
from tests.extras import optional

torch = optional("torch")
transformers = optional("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

CLASSES = {
    "BertForPreTraining": "BertConfig",
    "BertForMaskedLM": "BertConfig",
    "T5ForConditionalGeneration": "T5Config",
    "ViTForImageClassification": "ViTConfig",
}
EXAMPLES = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

BERT_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
VIT_HUGE = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "intermediate_size": 5120,
    "patch_size": 14,
    "num_labels": 1000,
}


def t5(layers: int, hidden: int, heads: int, ffn_hidden: int, **others: Any) -> dict[str, Any]:
    return {
        "num_layers": layers,
        "d_model": hidden,
        "num_heads": heads,
        "d_ff": ffn_hidden,
        **others,
    }


def counted(architecture: str, values: dict[str, Any]) -> int:
    """Count the parameters of the class, shared ones once."""
    config = getattr(transformers, CLASSES[architecture])(**values)
    with torch.device("meta"):
        model = getattr(transformers, architecture)(config)
    return sum(parameter.numel() for parameter in model.parameters())


def written(architecture: str, values: dict[str, Any], folder: Path, *, named: bool = True) -> Path:
    """Write a configuration as a person would: what is given and no more."""
    model_type = CLASSES[architecture].removesuffix("Config").lower()
    names = {"architectures": [architecture]} if named else {}
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **names, **values}))
    return path


def assert_same_count(architecture: str, values: dict[str, Any], folder: Path) -> None:
    spec = read_config(written(architecture, values, folder))
    assert build(spec, 1).parameter_count == counted(architecture, values)


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("BertForPreTraining", {}),
        ("BertForMaskedLM", {}),
        ("BertForPreTraining", BERT_LARGE),
        ("BertForMaskedLM", BERT_LARGE),
        ("T5ForConditionalGeneration", {}),
        ("T5ForConditionalGeneration", t5(12, 768, 12, 3072)),
        ("T5ForConditionalGeneration", t5(24, 1024, 16, 4096)),
        ("T5ForConditionalGeneration", t5(24, 1024, 32, 16384, d_kv=128)),
        ("T5ForConditionalGeneration", t5(24, 1024, 128, 65536, d_kv=128)),
        ("T5ForConditionalGeneration", t5(24, 2048, 32, 5120, feed_forward_proj="gated-gelu")),
        ("ViTForImageClassification", {}),
        ("ViTForImageClassification", VIT_HUGE),
    ],
)
def test_published_sizes_have_exactly_the_parameters_of_transformers(
    architecture: str, values: dict[str, Any], tmp_path: Path
) -> None:
    assert_same_count(architecture, values, tmp_path)


SMALL = st.integers(1, 9)


@EXAMPLES
@given(
    architecture=st.sampled_from(["BertForPreTraining", "BertForMaskedLM"]),
    heads=SMALL,
    per_head=SMALL,
    others=st.fixed_dictionaries(
        {"num_hidden_layers": st.integers(1, 3)},
        optional={
            "vocab_size": st.integers(1, 50),
            "intermediate_size": SMALL,
            "max_position_embeddings": SMALL,
            "type_vocab_size": SMALL,
            "tie_word_embeddings": st.booleans(),
            "hidden_act": st.sampled_from(["gelu", "gelu_new", "relu", "silu"]),
            "pad_token_id": st.none(),
        },
    ),
)
def test_bert_of_any_size_has_as_many_parameters(
    architecture: str, heads: int, per_head: int, others: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"hidden_size": heads * per_head, "num_attention_heads": heads}
    assert_same_count(architecture, sizes | others, tmp_path)


@EXAMPLES
@given(
    values=st.fixed_dictionaries(
        {"num_layers": st.integers(1, 3), "num_heads": SMALL, "d_model": SMALL},
        optional={
            "num_decoder_layers": st.none() | st.integers(1, 3),
            "d_kv": SMALL,
            "d_ff": SMALL,
            "vocab_size": st.integers(1, 50),
            "feed_forward_proj": st.sampled_from(
                ["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"]
            ),
            "tie_word_embeddings": st.booleans(),
            "relative_attention_num_buckets": st.integers(4, 40),
        },
    )
)
def test_t5_of_any_size_has_as_many_parameters(values: dict[str, Any], tmp_path: Path) -> None:
    assert_same_count("T5ForConditionalGeneration", values, tmp_path)


SIDES = st.integers(16, 40) | st.tuples(st.integers(16, 40), st.integers(16, 40)).map(list)
PATCHES = st.integers(1, 8) | st.tuples(st.integers(1, 8), st.integers(1, 8)).map(list)


@EXAMPLES
@given(
    heads=st.integers(1, 4),
    values=st.fixed_dictionaries(
        {"num_hidden_layers": st.integers(1, 3), "hidden_size": st.integers(4, 20)},
        optional={
            "intermediate_size": SMALL,
            "image_size": SIDES,
            "patch_size": PATCHES,
            "num_channels": SMALL,
            "qkv_bias": st.booleans(),
            "head_dim": SMALL,
            "num_labels": st.integers(2, 30),
        },
    ),
)
def test_vit_of_any_size_has_as_many_parameters(
    heads: int, values: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"num_attention_heads": heads}
    assert_same_count("ViTForImageClassification", sizes | values, tmp_path)


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("BertForPreTraining", {}),
        ("T5ForConditionalGeneration", {}),
        ("ViTForImageClassification", {}),
    ],
)
def test_without_architectures_the_class_with_all_its_heads_is_meant(
    architecture: str, values: dict[str, Any], tmp_path: Path
) -> None:
    spec = read_config(written(architecture, values, tmp_path, named=False))
    assert build(spec, 1).parameter_count == counted(architecture, values)


def test_the_names_of_classes_go_before_their_number(tmp_path: Path) -> None:
    values = {"id2label": {"0": "cat", "1": "dog", "2": "owl"}, "num_hidden_layers": 1}
    assert_same_count("ViTForImageClassification", values, tmp_path)


EXTRA = ["architectures", "head_dim", "num_labels", "position_embedding_type", "problem_type"]


def keys(model_type: str) -> list[str]:
    """Every key that the library writes for a model type, and a few more."""
    written_keys = transformers.AutoConfig.for_model(model_type).to_dict()
    return sorted({*written_keys, *EXTRA} - {"model_type"})


ODD = (
    st.none()
    | st.booleans()
    | st.integers(-5, 12)
    | st.sampled_from([2**31, 2**63, 10**40, -(2**70)])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["gelu", "gated-gelu", "relative_key", "single_label_classification"])
    | st.lists(st.integers(-2, 30), max_size=3)
    | st.dictionaries(st.text(max_size=2), st.integers(), max_size=3)
)


@settings(EXAMPLES, max_examples=200)
@given(
    case=st.sampled_from(["bert", "t5", "vit"]).flatmap(
        lambda kind: st.tuples(
            st.just(kind), st.dictionaries(st.sampled_from(keys(kind)), ODD, max_size=4)
        )
    )
)
def test_no_configuration_gives_anything_but_a_model_or_a_complaint(
    case: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    kind, values = case
    layers = "num_layers" if kind == "t5" else "num_hidden_layers"
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, layers: 1, **values}))
    with suppress(ModelError):
        assert build(read_config(path), 1).parameter_count > 0
