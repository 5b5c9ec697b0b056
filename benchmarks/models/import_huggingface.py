"""Seconds and memory of importing large models from their Hugging Face configurations.

Run `python -m benchmarks.models.import_huggingface` from the root of the repository. Each model is
imported by a process of its own, whose peak memory is shown; the time includes reading the file and
building the forward graph, not the start of Python.
"""

import json
import multiprocessing
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from millrace.models.importers.huggingface import read_config
from millrace.models.zoo.catalogue import build

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "Llama-3.1-405B": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "max_position_embeddings": 131072,
        "num_attention_heads": 128,
        "num_hidden_layers": 126,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "vocab_size": 128256,
    },
    "DeepSeek-V3": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"},
    "Mixtral-8x7B": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
}


def measure(path: Path) -> tuple[float, int, int]:
    """Seconds of building the graph, peak memory of the process in bytes, and parameters."""
    start = perf_counter()
    graph = build(read_config(path), 1)
    seconds = perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return seconds, peak, graph.parameter_count


def main() -> None:
    """Print one line per model."""
    spawn = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:
        for name, values in CONFIGURATIONS.items():
            path = Path(folder) / f"{name}.json"
            path.write_text(json.dumps(values))
            with spawn.Pool(1) as pool:
                seconds, peak, parameters = pool.apply(measure, (path,))
            print(f"{name:16s}{parameters:>16,d} parameters{seconds:8.2f} s{peak / 2**20:8.0f} MiB")


if __name__ == "__main__":
    main()
