"""Training FLOPs of hybrids beside those that Megatron-LM reports a speed by.

The formula is that of `num_floating_point_operations` (megatron/training/training.py, d98e8a64,
read 2026-11), of what its hybrid models consist of. Shape legend: T tokens of a sample.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from millrace.models.model_counts import training_flops
from millrace.models.zoo.catalogue import build, model_spec

T = 8192
PASSES = 3  # forward, and two products for each of it backward
HYBRIDS = ("nemotron-3-nano", "nemotron-3-super", "nemotron-3-ultra-550b")


def reported(config: dict[str, Any]) -> int:
    """FLOPs of a sample by which Megatron-LM reports a speed."""
    hidden, state_space = config["hidden"], config["state_space"]
    width, rows = 2 * hidden, state_space["state"]  # of Mamba-2, whatever its heads are
    heads = state_space["heads"]
    shared = 2 * state_space["groups"] * rows
    mamba = 2 * hidden * (2 * width + shared + heads) + 7 * width * rows + 2 * width * hidden
    query, pairs = config["heads"] * config["head_dim"], config["kv_heads"] * config["head_dim"]
    attention = 4 * hidden * (query + pairs) + 2 * T * query  # a causal mask leaves half of it
    latent = config.get("expert_latent", 0)
    routed = 4 * (latent or hidden) * config["expert_hidden"] * config["experts_per_token"]
    experts = routed + 4 * hidden * (latent + config["shared_hidden"])
    kinds = {"M": mamba, "*": attention, "E": experts}
    layers = sum(kinds[letter] for letter in config["pattern"])
    flops: int = PASSES * T * (layers + 2 * hidden * config["vocab"])
    return flops


def counted_otherwise(config: dict[str, Any]) -> int:
    """FLOPs that the report has more than the products of the model, by docs/models.md's list."""
    hidden, pattern, state_space = config["hidden"], config["pattern"], config["state_space"]
    rows, width = state_space["state"], state_space["heads"] * state_space["head_dim"]
    missing = (2 * hidden - width) * (6 * hidden + 7 * rows)
    scan = (7 - 4) * width * rows
    seen_keys = 2 * T * config["heads"] * config["head_dim"]
    router = 2 * hidden * config["experts"]
    more: int = pattern.count("M") * (missing + scan)
    less: int = pattern.count("*") * seen_keys + pattern.count("E") * router
    return PASSES * T * (more - less)


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_flops_of_a_hybrid_are_megatrons_but_for_what_is_counted_otherwise(name: str) -> None:
    spec = model_spec(name, seq_len=T, precision="bf16")
    config: dict[str, Any] = {**spec.config, "capacity_factor": 1.0}  # as many as are routed
    flops = training_flops(build(replace(spec, config=config), 1))
    assert flops + counted_otherwise(config) == reported(config)
    assert flops == pytest.approx(reported(config), rel=0.025)
