"""Exported folders as torchtitan's own code takes them: run as a program, prints JSON.

It imports torchtitan with empty modules in the place of what needs a GPU, so it has a process of
its own.
"""

import dataclasses
import importlib
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.trainers import torchtitan_import


def parsed(folder: str, arguments: list[str]) -> dict[str, object]:
    """Settings of a folder as torchtitan's manager parses them, and the model that it builds."""
    import torch

    config = _configuration(folder, arguments)
    model = config.model_spec.model
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in model.build().parameters())
    model.update_from_config(config=config)
    dims = importlib.import_module("torchtitan.distributed.parallel_dims")
    world = config.parallelism
    ranks = (
        world.data_parallel_replicate_degree
        * world.data_parallel_shard_degree
        * world.tensor_parallel_degree
        * world.context_parallel_degree
        * world.pipeline_parallel_degree
    )
    dims.ParallelDims.from_config(world, ranks)
    return {
        "training": dataclasses.asdict(config.training),
        "parallelism": dataclasses.asdict(world),
        "activation_checkpoint": type(config.activation_checkpoint).__qualname__,
        "parameters": parameters,
        "ranks": ranks,
    }


def first_loss(folder: str, arguments: list[str]) -> float:
    """Loss of a first step that an exported job of one rank makes on this machine's CPU.

    Its flexible attention has no backward pass there, so the usual kernel takes its place.
    """
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    tools = importlib.import_module("torchtitan.tools.utils")
    tools.device_type, tools.device_module = "cpu", torch.cpu
    attention = importlib.import_module("torchtitan.models.common.attention")
    attention.FlexAttention.forward = _causal_attention
    config = _configuration(folder, arguments)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    dims = importlib.import_module("torchtitan.distributed.parallel_dims")
    parallel_dims = dims.ParallelDims.from_config(config.parallelism, 1)
    parallel_dims.build_mesh()
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    model = config.model_spec.parallelize_fn(
        model,
        parallel_dims=parallel_dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=config.compile,
        ac_config=config.activation_checkpoint,
        dump_folder="",
    )
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    shape = (config.training.local_batch_size, config.training.seq_len)
    tokens = torch.randint(0, config.model_spec.model.vocab_size, shape)
    positions = torch.arange(shape[1]).expand(shape).contiguous()
    logits = model(tokens, positions=positions)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    torch.distributed.destroy_process_group()
    return float(loss)


def _causal_attention(
    self: object, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, *, scale: Any = None, **other: Any
) -> Any:
    import torch

    heads = (operand.transpose(1, 2) for operand in (q_BLNH, k_BLNH, v_BLNH))
    result = torch.nn.functional.scaled_dot_product_attention(
        *heads, is_causal=True, scale=scale, enable_gqa=bool(other.get("enable_gqa"))
    )
    return result.transpose(1, 2)


def _configuration(folder: str, arguments: list[str]) -> Any:
    sys.path.insert(0, folder)
    sys.modules.pop("millrace_job", None)
    importlib.invalidate_caches()
    manager = importlib.import_module("torchtitan.config.manager")
    config = manager.ConfigManager().parse_args(arguments)
    sys.path.remove(folder)
    return config


def divisions() -> list[list[object]]:
    """Layers of chunks as torchtitan divides them, for some numbers of layers and chunks."""
    module = importlib.import_module("torchtitan.distributed.pipeline_parallel")
    rows = []
    for layers, chunks, first, last in product((7, 16, 80), (2, 4, 8), (0, 1, 2), (0, 1)):
        try:
            parts = module._generate_llm_fqn_per_model_part(chunks, layers, first, last)
        except ValueError:
            continue
        counts = [sum(name.startswith("layers.") for name in part) for part in parts]
        rows.append([layers, chunks, first, last, counts])
    return rows


if __name__ == "__main__":
    torchtitan_import.install()
    folders = [Path(name) for name in sys.argv[1:]]
    given = {
        folder: json.loads((folder / "arguments.json").read_text("utf-8")) for folder in folders
    }
    losses = {
        folder.name: first_loss(str(folder), arguments)
        for folder, arguments in given.items()
        if folder.name.endswith("-demo")
    }
    answers = {folder.name: parsed(str(folder), words) for folder, words in given.items()}
    print(json.dumps({"folders": answers, "divisions": divisions(), "losses": losses}))
