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

from benchmarks.trainers import torchtitan_import


def parsed(folder: str, arguments: list[str]) -> dict[str, object]:
    """Settings of a folder as torchtitan's manager parses them, and the model that it builds."""
    import torch

    sys.path.insert(0, folder)
    sys.modules.pop("millrace_job", None)
    importlib.invalidate_caches()
    manager = importlib.import_module("torchtitan.config.manager")
    config = manager.ConfigManager().parse_args(arguments)
    sys.path.remove(folder)
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
    answers = {
        folder.name: parsed(str(folder), json.loads((folder / "arguments.json").read_text("utf-8")))
        for folder in folders
    }
    print(json.dumps({"folders": answers, "divisions": divisions()}))
