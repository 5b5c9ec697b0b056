"""Hybrids against transformers in float64: the same loss and gradient of every parameter."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.models.importers.huggingface import read_config
from millrace.models.zoo.catalogue import build, model_spec
from tests.extras import optional
from tests.models.torch_parity.decoder_cases import SEQ_LEN, VOCAB, imported, lively
from tests.models.torch_parity.hybrid_cases import FULL, HYBRIDS, LINEAR
from tests.models.torch_parity.hybrid_weights import translated
from tests.models.torch_parity.machinery import run_ours
from tests.models.torch_parity.test_decoders import numbers, summed

torch = optional("torch")
transformers = optional("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

NEAR = 1e-9  # of the largest value of a gradient, and of the loss


@pytest.fixture(autouse=True)
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Arithmetic in float64 where transformers asks for float32 whatever a module's dtype is."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    # The default of an argument is what it was when the module was imported.
    models = transformers.models.recurrent_gemma.modeling_recurrent_gemma
    scan = models.RecurrentGemmaRglru._rnn_scan
    monkeypatch.setattr(scan, "__defaults__", (torch.float64,))
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    monkeypatch.undo()
    torch.set_default_dtype(torch.float32)


def configuration(case: str) -> Any:
    model_type, values = HYBRIDS[case]
    config = transformers.AutoConfig.for_model(
        model_type, **{"pad_token_id": None, "vocab_size": VOCAB} | values
    )
    config._experts_implementation = "eager"  # the grouped product is not for float64
    return config


@pytest.mark.parametrize("case", HYBRIDS)
def test_a_hybrid_trains_as_in_transformers(case: str, tmp_path: Path) -> None:
    config = configuration(case)
    module = lively(config)
    changes = {"capacity_factor": 0.0} if getattr(config, "num_experts_per_tok", 0) else {}
    graph = imported(config, module, tmp_path, **changes)
    draw = np.random.default_rng(2)
    tokens, targets = draw.integers(0, VOCAB, (2, graph.batch, SEQ_LEN))
    targets[0, -2:] = -1
    loss = summed(module(input_ids=torch.tensor(tokens)), torch.tensor(targets))
    loss.backward()
    named = dict(module.named_parameters())
    values = {name: numbers(parameter) for name, parameter in named.items()}
    slopes = {name: numbers(parameter.grad) for name, parameter in named.items()}
    ours, gradients = run_ours(
        graph,
        translated(values, config, graph, values=True),
        {"tokens": tokens, "targets": targets},
    )
    assert ours == pytest.approx(loss.item(), rel=NEAR)
    expected = translated(slopes, config, graph, values=False)
    assert expected.keys() == gradients.keys()
    far = {
        name: float(np.abs(gradients[name] - slope).max() / np.abs(slope).max())
        for name, slope in expected.items()
        if np.abs(gradients[name] - slope).max() > NEAR * np.abs(slope).max()
    }
    assert not far, far


@pytest.mark.parametrize("model_type", sorted({model_type for model_type, _ in HYBRIDS.values()}))
def test_a_hybrid_of_default_sizes_has_exactly_the_parameters_of_transformers(
    model_type: str, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    count = sum(parameter.numel() for parameter in module.parameters())
    assert build(read_config(tmp_path, seq_len=SEQ_LEN), 1).parameter_count == count


# Models whose configuration class has their sizes by default, but for the layers with attention of
# Kimi Linear, which are every fourth and the last.
ZOO = {
    "qwen3-next-80b-a3b": ("qwen3_next", {}),
    "qwen3.5-35b-a3b": ("qwen3_5_moe_text", {}),
    "kimi-linear-48b-a3b": (
        "kimi_linear",
        {"layer_types": [FULL if n % 4 == 3 or n == 26 else LINEAR for n in range(27)]},
    ),
}


@pytest.mark.parametrize("name", ZOO)
def test_a_hybrid_of_the_zoo_has_exactly_the_parameters_of_transformers(name: str) -> None:
    model_type, values = ZOO[name]
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(model_type, **values)
        )
    count = sum(parameter.numel() for parameter in module.parameters())
    assert build(msgspec.structs.replace(model_spec(name), seq_len=8), 1).parameter_count == count
