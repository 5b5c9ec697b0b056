"""Llama in PyTorch, as one would write it: RMS norms, rotary angles, grouped queries, SwiGLU.

Mixtral differs by the experts of its feed-forward parts, which `experts.py` holds.

Legend: B batch, T tokens, D model, H heads of queries, G of keys and values, K head dim, F features
of the feed-forward part, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.torch_models.experts import Experts
from benchmarks.gpu.torch_models.gpt import Sources


def angles(tokens: int, dims: int, base: float, device: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, K / 2] of every token's angles, in float32."""
    speeds = base ** (-torch.arange(0, dims, 2, device=device, dtype=torch.float32) / dims)
    turned = torch.arange(tokens, device=device, dtype=torch.float32)[:, None] * speeds
    return turned.cos(), turned.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[B, T, H, K] with every pair of features, half a head apart, turned by the token's angle."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class LlamaBlock(nn.Module):
    """Attention and a gated feed-forward part, each after a norm and beside a residual."""

    def __init__(self, config: Mapping[str, Any], grouped_experts: bool) -> None:
        super().__init__()
        d, f, k = config["hidden"], config["ffn_hidden"], config["head_dim"]
        self.heads, self.groups, self.size = config["heads"], config["kv_heads"], k
        epsilon = config.get("epsilon", 1e-5)
        self.norm_1, self.norm_2 = nn.RMSNorm(d, epsilon), nn.RMSNorm(d, epsilon)
        self.qkv = nn.Linear(d, (self.heads + 2 * self.groups) * k, bias=False)
        self.out = nn.Linear(self.heads * k, d, bias=False)
        self.experts = Experts(config, grouped_experts) if config.get("experts") else None
        if self.experts is None:
            self.gate_up = nn.Linear(d, 2 * f, bias=False)
            self.down = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, D] to the same."""
        b, t, _ = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, t, -1, self.size)
        q, k, v = qkv.split((self.heads, self.groups, self.groups), dim=2)
        y = functional.scaled_dot_product_attention(
            rotated(q, cos, sin).transpose(1, 2),
            rotated(k, cos, sin).transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.heads != self.groups,
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        if self.experts is not None:
            return x + self.experts(self.norm_2(x))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    """Ids to the mean loss.

    `config` is that of the zoo's family `decoder`, as Llama and Mixtral use it.
    """

    def __init__(
        self, config: Mapping[str, Any], vocab_multiple: int = 1, grouped_experts: bool = False
    ) -> None:
        super().__init__()
        d, self.vocab = config["hidden"], config["vocab"]
        rows = -(-self.vocab // vocab_multiple) * vocab_multiple
        self.base, self.dims = config.get("rope_base", 10000.0), config["rotary_dims"]
        self.tokens = nn.Embedding(rows, d)
        self.blocks = nn.ModuleList(
            LlamaBlock(config, grouped_experts) for _ in range(config["layers"])
        )
        self.norm = nn.RMSNorm(d, config.get("epsilon", 1e-5))
        self.head = None if config.get("tied") else nn.Linear(d, rows, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """[B, T] twice to one number."""
        x = self.tokens(ids)
        cos, sin = angles(ids.shape[1], self.dims, self.base, ids.device)
        for block in self.blocks:
            x = block(x, cos, sin)
        weight = self.tokens.weight if self.head is None else self.head.weight
        logits = functional.linear(self.norm(x), weight)[..., : self.vocab]
        return functional.cross_entropy(logits.reshape(-1, self.vocab).float(), targets.reshape(-1))

    def sources(self) -> Sources:
        """Variables of the zoo that each part holds, side by side, by the part's path."""
        names_by_part: Sources = {"tokens": ("embedding.tokens",), "norm": ("head.ln",)}
        if self.head is not None:
            names_by_part["head"] = ("head.logits",)
        for layer in range(len(self.blocks)):
            parts = {
                "norm_1": ("ln1",),
                "norm_2": ("ln2",),
                "qkv": ("attn.q", "attn.k", "attn.v"),
                "out": ("attn.out",),
                "gate_up": ("mlp.gate", "mlp.up"),
                "down": ("mlp.down",),
                "experts.router": ("experts.router",),
                "experts.gate_up": ("experts.gate", "experts.up"),
                "experts.down": ("experts.down",),
            }
            for name, ours in parts.items():
                names_by_part[f"blocks.{layer}.{name}"] = tuple(
                    f"h.{layer}.{name_part}" for name_part in ours
                )
        return names_by_part
