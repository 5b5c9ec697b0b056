"""Decoders against transformers: the same loss and the same gradient of every parameter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.models.graph import Graph, with_batch
from tests.extras import optional
from tests.models.torch_parity.decoder_cases import (
    CASES,
    EXPERTS,
    LLAMA,
    SEQ_LEN,
    VOCAB,
    configuration,
    imported,
    lively,
)
from tests.models.torch_parity.decoder_weights import translated
from tests.models.torch_parity.machinery import assert_same

torch = optional("torch")
transformers = optional("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")


def numbers(values: Any) -> Any:
    return values.detach().numpy()


def assert_trains_alike(
    graph: Graph, module: Any, config: Any, loss_of: Callable[[Any, Any], Any]
) -> None:
    """Loss and gradients agree; `loss_of` makes torch's from the module's output and targets."""
    draw = np.random.default_rng(2)
    tokens, targets = draw.integers(0, VOCAB, (2, graph.batch, SEQ_LEN))
    targets[0, -2:] = -1
    loss = loss_of(module(input_ids=torch.tensor(tokens)), torch.tensor(targets))
    loss.backward()
    named = dict(module.named_parameters())
    assert_same(
        graph,
        translated({name: numbers(one) for name, one in named.items()}, config, graph),
        {"tokens": tokens, "targets": targets},
        loss.item(),
        translated({name: numbers(one.grad) for name, one in named.items()}, config, graph),
    )


def summed(output: Any, targets: Any) -> Any:
    return torch.nn.functional.cross_entropy(
        output.logits.reshape(-1, VOCAB), targets.reshape(-1), reduction="sum", ignore_index=-1
    )


@pytest.mark.parametrize("case", CASES)
def test_a_decoder_trains_as_in_transformers(case: str, tmp_path: Path) -> None:
    config = configuration(case)
    module = lively(config)
    # transformers drops no token, so neither does this graph
    changes = {"capacity_factor": 0.0} if hasattr(config, "num_experts_per_tok") else {}
    assert_trains_alike(imported(config, module, tmp_path, **changes), module, config, summed)


def test_the_balance_of_one_layer_and_sample_is_that_of_transformers(tmp_path: Path) -> None:
    values = LLAMA | EXPERTS | {"num_hidden_layers": 1, "output_router_logits": True}
    config = transformers.MixtralConfig(**values, router_aux_loss_coef=0.3)
    module = lively(config)
    graph = with_batch(imported(config, module, tmp_path, capacity_factor=0.0), 1)

    def balanced(output: Any, targets: Any) -> Any:
        return summed(output, targets) + SEQ_LEN * 0.3 * output.aux_loss

    assert_trains_alike(graph, module, config, balanced)
