"""Plan a PyTorch module of your own for GPUs, then train a small instance of it on this machine.

Run:     python examples/your_model.py
Needs:   PyTorch: pip install '.[torch]'; no GPU, and under a minute on two cores.
Prints:  the parameters and blocks of a large module, and its plan for 16 GPUs; what the check of a
         small one against PyTorch's loss and gradients found; its losses in two steps.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import millrace
from millrace.importing import import_module
from millrace.models.importers.torch_export import spec

try:
    import torch
except ImportError:
    raise SystemExit("this example needs PyTorch: pip install '.[torch]'") from None


class Block(torch.nn.Module):
    """Causal attention with heads of 64 features and a feed-forward layer, on a residual stream."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(size) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, tokens, size] to the same shape."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, -1, 64)).transpose(1, 3).unbind(2)
        context = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(context.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def decoder(size: int, layers: int, vocabulary: int) -> torch.nn.Module:
    """Module from token ids, [batch, tokens], to logits of the next tokens."""
    embedding, head = torch.nn.Embedding(vocabulary, size), torch.nn.Linear(size, vocabulary)
    return torch.nn.Sequential(embedding, *(Block(size) for _ in range(layers)), head)


# On the meta device a module has shapes and no values, so that a large one takes no memory.
with torch.device("meta"):
    large = decoder(size=4096, layers=12, vocabulary=32000)
    ids = torch.zeros(1, 2048, dtype=torch.int64)
imported = import_module(large, (ids,), name="large", precision="bf16")
print(f"{imported.graph.parameter_count:,} parameters in {len(imported.graph.blocks)} blocks")
model, cluster = spec(imported), "a100-sxm-80gb:8x2"
planned = millrace.plan(model, cluster, global_batch=64, framework="pytorch-fsdp")
print(f"{planned}\nstep time {planned.prediction.step_time_s:.2f} s")

# A module with values is checked as it is imported: its loss and gradients against PyTorch's.
torch.manual_seed(0)
small = decoder(size=128, layers=2, vocabulary=256)
imported = import_module(small, (torch.zeros(2, 32, dtype=torch.int64),), name="small")
print(imported.notes[-1])

# It starts from the module's values and trains on bytes of text, split over two processes.
# `measured=False` takes built-in figures of CPUs, so that this machine need not be measured.
cluster = millrace.cluster("local:2", measured=False)
planned = millrace.plan(spec(imported), cluster, global_batch=8, pins=millrace.Pins(tp=2))
with TemporaryDirectory() as folder:
    np.savez(weights := Path(folder, "weights.npz"), **imported.values)
    run = millrace.run(planned, steps=2, weights=weights)
print(f"loss {run.loss[0]:.4f} in step 1, {run.loss[1]:.4f} in step 2")
