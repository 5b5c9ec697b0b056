"""Decoders against transformers: the same loss, gradient of every parameter, and FLOPs."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.models.graph import Graph, with_batch
from millrace.models.ops import model_flops
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from tests.extras import optional
from tests.models.torch_parity.decoder_cases import (
    CASES,
    EXPERTS,
    LLAMA,
    SEQ_LEN,
    VOCAB,
    configuration,
    imported,
    in_float64,
    lively,
)
from tests.models.torch_parity.decoder_weights import shifted, translated
from tests.models.torch_parity.machinery import assert_same, without_windows

torch = optional("torch")
flop_counter = optional("torch.utils.flop_counter")
transformers = optional("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCE = 1e-9  # of the largest value of a gradient, in float64


def numbers(values: Any) -> Any:
    return values.detach().numpy()


def assert_trains_alike(
    graph: Graph,
    module: Any,
    config: Any,
    loss_of: Callable[[Any, Any], Any],
) -> None:
    """Assert that loss and gradients agree; `loss_of` makes torch's from output and targets.

    The FLOPs of modules without experts agree as well, forward and with the backward pass.
    """
    dense = not any(op.kind == "dispatch" for op in graph.ops)
    draw = np.random.default_rng(2)
    tokens, targets = draw.integers(0, VOCAB, (2, graph.batch, SEQ_LEN))
    targets[0, -2:] = -1
    with flop_counter.FlopCounterMode(display=False) if dense else nullcontext() as counter:
        with in_float64():
            loss = loss_of(module(input_ids=torch.tensor(tokens)), torch.tensor(targets))
        if dense:
            assert model_flops(without_windows(graph)) == counter.get_total_flops()
        loss.backward()
    if dense:
        trained = training_graph(graph, TrainingSpec())
        assert model_flops(without_windows(trained)) == counter.get_total_flops()
    named = dict(module.named_parameters())
    assert_same(
        graph,
        translated(
            {name: shifted(name, numbers(parameter), config) for name, parameter in named.items()},
            config,
            graph,
        ),
        {"tokens": tokens, "targets": targets},
        loss.item(),
        translated(
            {
                name: numbers(parameter.grad)
                for name, parameter in named.items()
                if parameter.grad is not None
            },
            config,
            graph,
        ),
        tolerance=TOLERANCE,
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
    graph = imported(config, module, tmp_path, capacity_factor=0.0)
    assert_trains_alike(graph, module, config, summed)


def test_the_balance_of_one_layer_and_sample_is_that_of_transformers(tmp_path: Path) -> None:
    values = LLAMA | EXPERTS | {"num_hidden_layers": 1, "output_router_logits": True}
    config = transformers.MixtralConfig(**values, router_aux_loss_coef=0.3)
    config._experts_implementation = "eager"
    module = lively(config)
    graph = with_batch(imported(config, module, tmp_path, capacity_factor=0.0), 1)

    def balanced(output: Any, targets: Any) -> Any:
        return summed(output, targets) + SEQ_LEN * 0.3 * output.aux_loss

    assert_trains_alike(graph, module, config, balanced)
