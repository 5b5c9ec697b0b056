"""Decoders have the FLOPs that PyTorch counts in the modules of transformers."""

from pathlib import Path
from typing import Any

import pytest

from millrace.models.ops import model_flops
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from tests.extras import optional
from tests.models.torch_parity.decoder_cases import (
    BATCH,
    CASES,
    SEQ_LEN,
    configuration,
    imported,
    lively,
)

torch = optional("torch")
flop_counter = optional("torch.utils.flop_counter")
attention = optional("torch.nn.attention")

pytestmark = pytest.mark.filterwarnings("ignore")

# PyTorch counts nothing of the grouped products by which transformers runs experts.
DENSE = [case for case in CASES if "moe" not in case and case.split(",")[0] not in
         ("mixtral", "deepseek_v2", "deepseek_v3")]  # fmt: skip


def counted(module: Any, *, backward: bool) -> int:
    """FLOPs of a forward pass (and backward, whose fused form would count scores twice)."""
    counter = flop_counter.FlopCounterMode(display=False)
    with counter, attention.sdpa_kernel(attention.SDPBackend.MATH):
        made = module(input_ids=torch.zeros(BATCH, SEQ_LEN, dtype=torch.long)).logits.sum()
        if backward:
            made.backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("case", DENSE)
def test_a_decoder_has_the_flops_of_its_module(case: str, tmp_path: Path) -> None:
    config = configuration(case)
    module = lively(config, "eager" if case == "mpt" else "sdpa")
    graph = imported(config, module, tmp_path)
    assert model_flops(graph) == counted(module, backward=False)
    assert model_flops(training_graph(graph, TrainingSpec())) == counted(module, backward=True)
