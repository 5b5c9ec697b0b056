"""Configurations without a reader are read through their class of transformers, layer by layer.

The graph with copied layers is the one of a trace of all layers, op by op, and computes what
PyTorch computes.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.importers.opening import open_model
from tests.extras import optional

torch = optional("torch")
transformers = optional("transformers")

from millrace.importing import check  # noqa: E402
from millrace.models.importers.torch_export.classes import class_import  # noqa: E402
from millrace.models.importers.torch_export.classes.class_import import (  # noqa: E402
    ClassRequest,
    import_class,
)

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 1024,
    "pad_token_id": None,
}
PLAIN = SIZES | {"model_type": "olmo2", "num_hidden_layers": 5}
WINDOWS = SIZES | {"model_type": "olmo3", "num_hidden_layers": 7, "sliding_window": 6}
MIXTURE = SIZES | {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 6,
    "decoder_sparse_step": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
IDLE = {
    "model_type": "bart",
    "decoder_layers": 4,
    "d_model": 32,
    "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}


def request(values: dict[str, Any], tokens: int | None = 16) -> ClassRequest:
    return ClassRequest(values=values, name="model", seq_len=tokens)


def facts(graph: Graph) -> tuple[Any, ...]:
    ops = {
        (op.name, op.kind, op.inputs, op.outputs, op.labels, op.block, op.phase, str(op.attributes))
        for op in graph.ops
    }
    return ops, set(graph.tensors), graph.blocks, graph.templates


def module_of(values: dict[str, Any]) -> Any:
    config = transformers.models.auto.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("values", [PLAIN, WINDOWS, MIXTURE, IDLE], ids=lambda x: x["model_type"])
def test_copied_layers_are_those_of_a_whole_trace(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_kinds = import_class(request(values))
    monkeypatch.setattr(class_import, "shorten", lambda module: ())
    layer_by_layer = import_class(request(values))
    assert "were traced" in by_kinds.notes[0]
    assert "were traced" not in layer_by_layer.notes[0]
    assert facts(by_kinds.graph) == facts(layer_by_layer.graph)
    assert by_kinds.parameters == layer_by_layer.parameters


@pytest.mark.parametrize("values", [PLAIN, WINDOWS], ids=lambda x: x["model_type"])
def test_a_class_computes_what_pytorch_computes(values: dict[str, Any]) -> None:
    imported, module = import_class(request(values)), module_of(values)
    tensors = dict(module.named_parameters())
    filled = replace(
        imported,
        values={
            name: source.read(tensors[source.fqn].detach().numpy())
            for name, source in imported.parameters.items()
        },
    )
    ids = {"input_ids": torch.zeros(1, 16, dtype=torch.int64)}
    distance = check(filled, module, ids)
    assert distance.loss_error < 1e-6
    assert distance.gradient_error < 1e-4


def test_two_short_lengths_tell_the_graph_at_a_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    restated = import_class(request(WINDOWS, 1024)).graph
    monkeypatch.setattr(class_import, "CHUNK_STEP", 1024)
    assert facts(restated) == facts(import_class(request(WINDOWS, 1024)).graph)
    assert restated.tokens_per_sample == 1024


def test_a_hundred_layers_have_the_parameters_of_the_module() -> None:
    imported = import_class(request(PLAIN | {"num_hidden_layers": 100}))
    assert imported.graph.blocks[-2] == "layer.99"
    names = {source.fqn for source in imported.parameters.values()}
    module = module_of(PLAIN | {"num_hidden_layers": 100})
    assert names == {name for name, _ in module.named_parameters()}


def test_parameters_without_a_gradient_are_held_and_said() -> None:
    imported = import_class(request(IDLE))
    module = module_of(IDLE)
    expected = sum(tensor.numel() for tensor in module.parameters())
    assert imported.graph.parameter_count == expected > imported.graph.trained_count
    (note,) = (note for note in imported.notes if "encoder_attn" in note)
    assert "held in memory, not computed with or trained" in note


def written(folder: Path, values: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_a_model_type_without_a_reader_is_opened_by_its_class(tmp_path: Path) -> None:
    notes: list[str] = []
    spec = open_model(written(tmp_path, IDLE), 16, told=notes.append)
    assert (spec.family, spec.seq_len) == ("graph", 16)
    release = transformers.__version__
    assert f"read through BartForCausalLM of transformers {release}; of the 4 layers" in notes[0]


def test_infinity_reaches_the_class(tmp_path: Path) -> None:
    path = written(tmp_path, IDLE | {"time_step_limit": [0.0, float("inf")]})
    assert open_model(path, 16).graph is not None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "mamba-9"}, "no reader knows it; by its class: transformers "),
        (PLAIN | {"num_hidden_layers": 10**6}, "`num_hidden_layers` is 1,000,000; at most 10,000"),
        (PLAIN | {"hidden_size": "wide"}, "cannot be made of it"),
        (PLAIN | {"architectures": ["Olmo2ForTokenClassification"]}, "Olmo2ForCausalLM is import"),
        ({"model_type": "clip"}, "has no causal language model `clip`"),
        (PLAIN | {"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}, "is not run"),
    ],
)
def test_what_no_class_is_made_of_is_refused(
    tmp_path: Path, values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(reason)):
        open_model(written(tmp_path, values), 16)


def test_without_transformers_the_refusal_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ModelError, match=re.escape("needs transformers: pip install '.[torch]'")):
        open_model(written(tmp_path, IDLE))
