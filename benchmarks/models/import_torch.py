"""Seconds and memory of importing a 70B PyTorch module that has no weights.

Run `python -m benchmarks.models.import_torch [LAYERS]` from the root of the repository, with torch
and transformers installed. The module has the shape of Llama 3 70B (80 layers by default), lies on
the meta device, and is traced for one sample of 2048 tokens.
"""

import resource
import sys
from time import perf_counter, process_time
from typing import Any

from millrace.models.importers.torch_export import import_module

TOKENS = 2048


def module(layers: int) -> Any:
    """Module of Llama 3 70B on the meta device; sizes of Meta's release of April 2024."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def main() -> None:
    """Print one line."""
    import torch

    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 80
    source_module = module(layers)
    start, started = perf_counter(), process_time()
    imported = import_module(source_module, torch.zeros(1, TOKENS, dtype=torch.long, device="meta"))
    seconds, busy = perf_counter() - start, process_time() - started
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    graph = imported.graph
    print(
        f"{layers} layers, {graph.parameter_count:,d} parameters, {len(graph.ops)} ops in "
        f"{len(graph.blocks)} blocks: {seconds:.1f} s ({busy:.1f} s of processor time), "
        f"{peak / 2**20:.0f} MiB"
    )


if __name__ == "__main__":
    main()
