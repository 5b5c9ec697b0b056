"""Memory of frameworks: what their records say, and what a run of one changes."""

import pytest

from millrace.models.ops import kinds_where
from millrace.planner.frameworks.framework_memory import (
    USUAL,
    LayerSplit,
    LossKernel,
    ParameterBytes,
    memory_of_run,
)
from millrace.planner.frameworks.framework_tables import framework_memory, frameworks

# Ends of names of ops of state-space layers.
ENDS = {"conv.biased", "x.active", "b.active", "c.active", "weighed", "ssm.norm"}


def test_records_name_ops_that_there_are() -> None:
    kinds = kinds_where(lambda row: True)
    for name in frameworks():
        assert {kind for kind, _ in framework_memory(name).byte_multiples} <= {*kinds, *ENDS}


def test_a_framework_like_another_has_its_memory() -> None:
    assert framework_memory("torchtitan") == framework_memory("pytorch-fsdp") != USUAL
    assert framework_memory("unheard of") == framework_memory("default") == USUAL
    assert framework_memory("nanotron").layer_split is LayerSplit.WEIGHT


@pytest.mark.parametrize(
    ("name", "tp", "loss", "expected"),
    [
        ("pytorch-fsdp", 1, "", 14),
        ("pytorch-fsdp", 2, LossKernel.COMPILED, 18),
        ("pytorch-fsdp", 1, LossKernel.COMPILED, 4),
        ("pytorch-fsdp", 1, LossKernel.FUSED, 6),
        ("megatron-core", 2, LossKernel.FUSED, 2),
        ("megatron-core", 2, LossKernel.COMPILED, 10),
    ],
)
def test_a_logit_takes_what_the_kernel_of_the_loss_makes_of_it(
    name: str, tp: int, loss: str, expected: int
) -> None:
    memory = memory_of_run(framework_memory(name), precision="bf16", tp=tp, pp=1, loss=loss)
    assert memory.loss_bytes == expected


def test_precision_and_a_pipeline_may_change_what_is_kept_of_a_parameter() -> None:
    deepspeed, fsdp = framework_memory("megatron-deepspeed"), framework_memory("pytorch-fsdp")
    wide = memory_of_run(deepspeed, precision="bf16", tp=1, pp=4).parameters
    narrow = memory_of_run(deepspeed, precision="fp16", tp=1, pp=4).parameters
    assert (wide.gradient_bytes, narrow.gradient_bytes) == (6, 2)
    assert memory_of_run(fsdp, precision="bf16", tp=1, pp=2).parameters == ParameterBytes()
    assert memory_of_run(fsdp, precision="bf16", tp=1, pp=1).parameters.weight_bytes == 4
