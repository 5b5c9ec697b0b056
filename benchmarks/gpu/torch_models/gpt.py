"""GPT-2 in PyTorch, as one would write it.

Legend: B batch, T tokens, D model, H heads, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Sources = dict[str, tuple[str, ...]]


class GptBlock(nn.Module):
    """Attention and an MLP, each after a norm and beside a residual."""

    def __init__(self, d: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, hidden), nn.Linear(hidden, d)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to the same."""
        b, t, d = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Ids to the mean loss; the head is the embedding.

    `config` is that of the zoo's family `gpt`. The embedding has rows up to a multiple of
    `vocab_multiple`, which products like; no id and no logit of the loss is one of those beyond.
    """

    def __init__(self, config: Mapping[str, Any], vocab_multiple: int = 1) -> None:
        super().__init__()
        d, self.vocab = config["hidden"], config["vocab"]
        rows = -(-self.vocab // vocab_multiple) * vocab_multiple
        self.tokens, self.places = nn.Embedding(rows, d), nn.Embedding(config["positions"], d)
        self.blocks = nn.ModuleList(
            GptBlock(d, config["heads"], config["ffn_hidden"]) for _ in range(config["layers"])
        )
        self.norm = nn.LayerNorm(d)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """[B, T] twice to one number."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)[..., : self.vocab]
        return functional.cross_entropy(logits.reshape(-1, self.vocab).float(), targets.reshape(-1))

    def sources(self) -> Sources:
        """Variables of the zoo that each part holds, side by side, by the part's path."""
        names_by_part: Sources = {
            "tokens": ("embedding.tokens",),
            "places": ("embedding.positions",),
            "norm": ("head.ln",),
        }
        for layer in range(len(self.blocks)):
            parts = {
                "norm_1": ("ln1",),
                "norm_2": ("ln2",),
                "qkv": ("attn.q", "attn.k", "attn.v"),
                "out": ("attn.out",),
                "up": ("mlp.fc1",),
                "down": ("mlp.fc2",),
            }
            for name, ours in parts.items():
                names_by_part[f"blocks.{layer}.{name}"] = tuple(
                    f"h.{layer}.{name_part}" for name_part in ours
                )
        return names_by_part
