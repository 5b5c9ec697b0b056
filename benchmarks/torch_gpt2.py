"""GPT-2 small in PyTorch, as one would train it on one GPU: what our own speed is held against.

bf16 autocast, torch.compile, fused AdamW, and the library's own choice of attention. Tokens are
random: what they are changes no time.

Legend: B batch, T tokens, D model, H heads, V vocabulary.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

LAYERS, D, H, V, T = 12, 768, 12, 50257, 1024
V_PADDED = 50304  # a multiple of 64, as is customary


class Block(nn.Module):
    """Attention and an MLP, each after a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, D] to the same."""
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, D))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Model(nn.Module):
    """Ids to the mean loss; the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(V_PADDED, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V_PADDED, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[B, T] twice to one number."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().view(-1, V_PADDED), targets.view(-1))


def tokens_per_s(*, batches: Sequence[int], steps: int, warm_up: int) -> dict[str, object]:
    """Train for some steps with the first batch that fits; return how fast it was."""
    for batch in batches:
        try:
            return _measured(batch, steps, warm_up)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    raise AssertionError(f"not even a batch of {batches[-1]} fits")


def _measured(batch: int, steps: int, warm_up: int) -> dict[str, object]:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model: Any = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    compiled = torch.compile(model)
    ids = torch.randint(V, (batch, T + 1), device="cuda")
    times, began, losses = [], time.perf_counter(), []
    for _ in range(steps):
        at = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - at)
        losses.append(round(loss.item(), 4))
    step_s = statistics.median(times[warm_up:])
    return {
        "torch": torch.__version__,
        "micro_batch": batch,
        "step_ms": round(step_s * 1e3, 4),
        "tokens_per_s": round(batch * T / step_s),
        "memory_bytes": torch.cuda.max_memory_allocated(),
        "losses": losses,
        "all_s": round(time.perf_counter() - began, 1),
    }
