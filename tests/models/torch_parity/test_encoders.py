"""BERT, T5 and ViT against transformers: the same loss and the same gradient of every parameter."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from millrace.models.importers.huggingface import read_config
from millrace.models.ops import model_flops
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.training import training_graph
from millrace.models.zoo.catalogue import build
from tests.extras import optional
from tests.models.torch_parity import encoder_weights
from tests.models.torch_parity.encoder_weights import Table
from tests.models.torch_parity.machinery import Arrays, assert_same

torch = optional("torch")
attention = optional("torch.nn.attention")
flop_counter = optional("torch.utils.flop_counter")
transformers = optional("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

BATCH, SEQ_LEN, MASKED = 3, 12, 2


def imported(config: Any, architecture: str, folder: Path, seq_len: int | None) -> ModelSpec:
    """Return the specification that the importer makes of a configuration of transformers."""
    config.architectures = [architecture]
    path = folder / "config.json"
    path.write_text(config.to_json_string())
    return read_config(path, seq_len=seq_len)


def compare(
    model: Any,
    spec: ModelSpec,
    table: Table,
    inputs: Arrays,
    given: dict[str, NDArray[Any]],
    count: int,
) -> None:
    """Hold loss, gradients and FLOPs of a graph to those of a module with the same weights.

    `given` are the module's arguments; its loss is the mean over `count` predictions.
    """
    arguments = {name: torch.tensor(values) for name, values in given.items()}
    # The fused backward of attention would find the scores, and count them, a second time.
    with flop_counter.FlopCounterMode(display=False) as forward, math_attention():
        loss = model(**arguments).loss
    with flop_counter.FlopCounterMode(display=False) as backward, math_attention():
        (loss * count).backward()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    named = {id(parameters[parameter.name]) for parameter in table.values()}
    assert named == {id(parameter) for parameter in model.parameters()}
    graph = build(spec, BATCH)
    flops = forward.get_total_flops()
    assert model_flops(graph) == flops
    assert model_flops(training_graph(graph, TrainingSpec())) == flops + backward.get_total_flops()
    values, gradients = {}, {}
    for ours, (name, transposed, unused) in table.items():
        shape = graph.tensor(ours).shape
        theirs = parameters[name]
        # Nothing reads one bias of untied BERT, so it has no gradient.
        gradient = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        values[ours] = np.roll(moved(theirs, transposed, shape), -unused, axis=0)
        gradients[ours] = np.roll(moved(gradient, transposed, shape), -unused, axis=0)
    assert_same(graph, values, inputs, loss.item() * count, gradients)


def math_attention() -> Any:
    return attention.sdpa_kernel(attention.SDPBackend.MATH)


def moved(tensor: Any, transposed: bool, shape: tuple[int, ...]) -> NDArray[Any]:
    values = tensor.detach()
    if values.ndim == 4:
        values = values.permute(0, 2, 3, 1)
    return np.asarray((values.T if transposed else values).reshape(shape))


def lively(model: Any) -> Any:
    """Give every parameter random values, norms and biases too, so that none is idle."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "orm" in name and name.endswith("weight") else 0.0
            parameter.copy_(centre + 0.2 * torch.randn_like(parameter))
    return model.eval()


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


PADDING = 1
BERT: dict[str, Any] = {
    "vocab_size": 23,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 15,
    "layer_norm_eps": 1e-5,
}


def masked_samples() -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Samples of masked tokens, none of which is that for padding, and a module's arguments."""
    draw = generator()
    targets = np.full((BATCH, SEQ_LEN), -1)
    for row in targets:
        row[draw.permutation(SEQ_LEN)[:MASKED]] = draw.integers(0, 23, MASKED)
    samples: dict[str, NDArray[Any]] = {
        "masked_tokens": draw.integers(PADDING + 1, 23, (BATCH, SEQ_LEN)),
        "masked_targets": targets,
        "segments": draw.integers(0, 2, (BATCH, SEQ_LEN)),
        "next_sentence": draw.integers(0, 2, BATCH),
    }
    given: dict[str, NDArray[Any]] = {
        "input_ids": samples["masked_tokens"],
        "token_type_ids": samples["segments"],
        "labels": np.where(targets < 0, -100, targets),
    }
    return samples, given


@pytest.mark.parametrize(
    ("next_sentence", "changes"),
    [
        (True, {}),
        (False, {}),
        (False, {"hidden_act": "relu", "tie_word_embeddings": False, "type_vocab_size": 3}),
    ],
)
def test_bert_trains_as_in_transformers(
    next_sentence: bool, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = transformers.BertConfig(**BERT, pad_token_id=None, **changes)
    architecture = "BertForPreTraining" if next_sentence else "BertForMaskedLM"
    model = lively(getattr(transformers, architecture)(config))
    spec = imported(config, architecture, tmp_path, SEQ_LEN)
    spec = msgspec.structs.replace(spec, config=spec.config | {"masked": MASKED})
    samples, given = masked_samples()
    if next_sentence:
        given["next_sentence_label"] = samples["next_sentence"]
    tied = changes.get("tie_word_embeddings", True)
    table = encoder_weights.bert(2, next_sentence=next_sentence, tied=tied)
    compare(model, spec, table, samples, given, BATCH * MASKED)


@pytest.mark.parametrize(
    ("model_type", "prefix"),
    [
        ("camembert", "roberta"),
        ("data2vec-text", "data2vec_text"),
        ("ernie", "ernie"),
        ("roberta", "roberta"),
        ("xlm-roberta", "roberta"),
    ],
)
def test_kin_of_bert_train_as_in_transformers(model_type: str, prefix: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(model_type, **BERT, pad_token_id=PADDING)
    model = lively(transformers.AutoModelForMaskedLM.from_config(config))
    spec = imported(config, type(model).__name__, tmp_path, SEQ_LEN)
    spec = msgspec.structs.replace(spec, config=spec.config | {"masked": MASKED})
    table = encoder_weights.roberta(2, prefix, padding=PADDING)
    if model_type == "ernie":
        bert = encoder_weights.bert(2, next_sentence=False).items()
        table = {ours: row._replace(name=row.name.replace("bert.", "ernie.")) for ours, row in bert}
    compare(model, spec, table, *masked_samples(), BATCH * MASKED)


@pytest.mark.parametrize("architecture", ["PreTraining", "MaskedLM"])
def test_megatrons_bert_trains_as_in_transformers(architecture: str, tmp_path: Path) -> None:
    config = transformers.MegatronBertConfig(**BERT, pad_token_id=None)
    name, paired = f"MegatronBertFor{architecture}", architecture == "PreTraining"
    model = lively(getattr(transformers, name)(config))
    spec = imported(config, name, tmp_path, SEQ_LEN)
    spec = msgspec.structs.replace(spec, config=spec.config | {"masked": MASKED})
    samples, given = masked_samples()
    if paired:
        given["next_sentence_label"] = samples["next_sentence"]
    table = encoder_weights.bert(2, next_sentence=paired)
    table = {ours: row for ours, row in table.items() if not ours.startswith("embedding.ln")}
    names = {"attention.output.LayerNorm": "attention.ln", "output.LayerNorm": "ln"}
    table = encoder_weights.with_norms_before(table, "bert.encoder.ln", names)
    compare(model, spec, table, samples, given, BATCH * MASKED)


def test_roberta_with_norms_before_its_parts_trains_as_in_transformers(tmp_path: Path) -> None:
    config = transformers.RobertaPreLayerNormConfig(**BERT, pad_token_id=PADDING)
    model = lively(transformers.RobertaPreLayerNormForMaskedLM(config))
    spec = imported(config, type(model).__name__, tmp_path, SEQ_LEN)
    spec = msgspec.structs.replace(spec, config=spec.config | {"masked": MASKED})
    prefix = "roberta_prelayernorm"
    names = {"attention.output.LayerNorm": "attention.LayerNorm"}
    names["output.LayerNorm"] = "intermediate.LayerNorm"
    table = encoder_weights.roberta(2, prefix, padding=PADDING)
    table = encoder_weights.with_norms_before(table, f"{prefix}.LayerNorm", names)
    compare(model, spec, table, *masked_samples(), BATCH * MASKED)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"feed_forward_proj": "gelu", "relative_attention_num_buckets": 6},
    ],
)
def test_t5_trains_as_in_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.T5Config(
        **{
            "vocab_size": 23,
            "d_model": 12,
            "d_kv": 5,
            "d_ff": 18,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 3,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 10,
            "decoder_start_token_id": 0,
            **changes,
        }
    )
    model = lively(transformers.T5ForConditionalGeneration(config))
    spec = imported(config, "T5ForConditionalGeneration", tmp_path, 17)
    draw = generator()
    targets = draw.integers(0, 23, (BATCH, 17))
    before = np.concatenate([np.zeros((BATCH, 1), int), targets[:, :-1]], 1)
    source = draw.integers(0, 23, (BATCH, 17))
    samples = {"source_tokens": source, "decoder_tokens": before, "decoder_targets": targets}
    given = {"input_ids": source, "labels": targets}
    table = encoder_weights.t5(2, 3, gated="gated" in config.feed_forward_proj)
    compare(model, spec, table, samples, given, targets.size)


@pytest.mark.parametrize(
    "changes",
    [{}, {"qkv_bias": False, "image_size": [13, 10], "patch_size": [4, 3], "num_channels": 1}],
)
def test_vit_trains_as_in_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        **{
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 20,
            "image_size": 9,
            "patch_size": 3,
            "num_labels": 5,
            "layer_norm_eps": 1e-5,
            **changes,
        }
    )
    model = lively(transformers.ViTForImageClassification(config))
    spec = imported(config, "ViTForImageClassification", tmp_path, None)
    draw = generator()
    rows, columns = changes.get("image_size", (9, 9))
    images = draw.normal(size=(BATCH, changes.get("num_channels", 3), rows, columns))
    samples = {"images": images.astype(np.float32), "classes": draw.integers(0, 5, BATCH)}
    given = {"pixel_values": samples["images"], "labels": samples["classes"]}
    table = encoder_weights.vit(2, qkv_bias=changes.get("qkv_bias", True))
    compare(model, spec, table, samples, given, BATCH)
