"""BERT in PyTorch, as one would write it: an encoder that fills in masked tokens.

Legend: B batch, T tokens, D model, H heads, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.torch_models.gpt import Sources


class BertLayer(nn.Module):
    """Attention and an MLP, each with a norm behind its residual."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        d, self.heads = config["hidden"], config["heads"]
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, config["ffn_hidden"]), nn.Linear(config["ffn_hidden"], d)
        self.norm_1, self.norm_2 = nn.LayerNorm(d, 1e-12), nn.LayerNorm(d, 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to the same."""
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = self.norm_1(x + self.out(y.transpose(1, 2).reshape(b, t, d)))
        return self.norm_2(x + self.down(functional.gelu(self.up(x))))


class Bias(nn.Module):
    """Bias of a product whose weight is another part's."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))


class Bert(nn.Module):
    """Ids and segments to the mean loss of the masked tokens; the head's table is the embedding.

    `config` is that of the zoo's family `bert`, without a next sentence.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        d, self.vocab = config["hidden"], config["vocab"]
        self.tokens, self.places = nn.Embedding(self.vocab, d), nn.Embedding(config["positions"], d)
        self.segments = nn.Embedding(config.get("segments", 2), d)
        self.norm = nn.LayerNorm(d, 1e-12)
        self.blocks = nn.ModuleList(BertLayer(config) for _ in range(config["layers"]))
        self.transform, self.head_norm = nn.Linear(d, d), nn.LayerNorm(d, 1e-12)
        self.logits = Bias(self.vocab)

    def forward(self, read: Tensor, targets: Tensor) -> Tensor:
        """[2, B, T], ids and segments, and targets [B, T], below 0 where there is none."""
        ids, segments = read
        places = self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(self.tokens(ids) + self.segments(segments) + places)
        for block in self.blocks:
            x = block(x)
        x = self.head_norm(functional.gelu(self.transform(x)))
        logits = functional.linear(x, self.tokens.weight, self.logits.bias).view(-1, self.vocab)
        return functional.cross_entropy(logits.float(), targets.reshape(-1), ignore_index=-1)

    def sources(self) -> Sources:
        """Variables of the zoo that each part holds, side by side, by the part's path."""
        names_by_part: Sources = {
            "tokens": ("embedding.tokens",),
            "places": ("embedding.positions",),
            "segments": ("embedding.segments",),
            "norm": ("embedding.ln",),
            "transform": ("head.transform",),
            "head_norm": ("head.ln",),
            "logits": ("head.logits",),
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
                    f"layer.{layer}.{name_part}" for name_part in ours
                )
        return names_by_part
