"""Modules to import: three written by hand, one of odd parts, and small ones of transformers."""

from collections.abc import Callable
from typing import Any

from tests.extras import optional

torch = optional("torch")
F = torch.nn.functional
nn = torch.nn


class Convolutions(nn.Module):  # type: ignore[misc]
    """Batch norm, a residual path, pooling, and several activations."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8 if groups > 1 else 1)
        self.deep_norm = nn.BatchNorm2d(8)
        self.slope = nn.PReLU(8)
        self.point = nn.Conv2d(8, 8, 1)
        self.down = nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=groups)
        self.head = nn.Linear(12, 5)

    def forward(self, images: Any) -> Any:
        x = F.relu(self.norm(self.stem(images)), inplace=True)
        x = x + F.hardtanh(self.point(self.slope(self.deep_norm(self.deep(x)))))
        x = F.leaky_relu(self.down(F.max_pool2d(x, 2)), 0.1)
        return self.head(F.avg_pool2d(x, 2).flatten(1))


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Pre-norm, one projection for query, key and value, one for gate and up."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 8 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        parts = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        up, gate = self.wide(self.mlp_norm(x)).chunk(2, -1)
        return x + self.narrow(F.silu(gate) * up)


class Transformer(nn.Module):  # type: ignore[misc]
    """Fused projections, learned positions, a head that shares the token table."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 16, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(1, 12, 16) * 0.1)
        self.blocks = nn.ModuleList(TransformerBlock(16, 4) for _ in range(2))
        self.norm = nn.LayerNorm(16, bias=False)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.positions[:, : ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Mixer(nn.Module):  # type: ignore[misc]
    """Products as einsum, gates, concatenation, norms written out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.places = nn.Parameter(torch.randn(5, 5) * 0.3)
        self.shift = nn.Parameter(torch.zeros(5))
        self.gate = nn.Linear(8, 24)
        self.heads = nn.Parameter(torch.randn(2, 8, 4) * 0.3)
        self.temperature = nn.Parameter(torch.ones(()))
        self.leave = nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.enter(x))
        h = h + torch.einsum("bpc,pq->bqc", h, self.places) + self.shift[:, None]
        value, gate, cost = self.gate(h).split([8, 8, 8], -1)
        h = h + value * torch.sigmoid(gate) - F.softplus(cost) / 3
        heads = torch.einsum("bpc,hcd->bhpd", h, self.heads)
        weights = torch.softmax(heads @ heads.transpose(-1, -2) * self.temperature, dim=-1)
        z = torch.cat([h, (weights @ heads).permute(0, 2, 1, 3).flatten(2)], dim=-1)
        z = z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.leave((z.exp() + 1).log().mean(1))


class Odds(nn.Module):  # type: ignore[misc]
    """Rarer parts: windows, one key head, masks, biases of scores, slices with a step."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.query = nn.Linear(16, 16)
        self.key_value = nn.Linear(16, 8)
        self.glu = nn.Linear(16, 32)
        self.bias = nn.Parameter(torch.randn(4, 8, 8) * 0.2)
        self.scale = nn.Parameter(torch.randn(16))
        self.head = nn.Linear(16, 30)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids)
        b, t, _ = x.shape
        query, key, value = self.qkv(x).view(b, t, 4, 12).chunk(3, -1)
        ones = torch.ones(t, t, dtype=torch.bool)
        seen = ones.tril() & ~ones.tril(-3)
        heads = (part.transpose(1, 2) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(*heads, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).flatten(2)) * self.scale.sigmoid()
        key, value = (part[:, None] for part in self.key_value(x).split(4, -1))
        query = self.query(x).view(b, t, 4, 4).transpose(1, 2)
        shared = (part.expand(b, 4, t, 4) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, *shared, attn_mask=self.bias)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, 16))
        windows = x.view(b, t // 4, 4, 16)
        x = x + (windows - windows.mean(2, keepdim=True)).reshape(b, t, 16)
        x = x + F.glu(self.glu(x), -1)
        scores = (query @ key.transpose(-1, -2)).masked_fill(~seen, float("-inf"))
        x = x + (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + torch.where(torch.arange(16) % 2 == 0, x, -x) + F.gelu(x) / 2
        x = x + torch.cat([x[..., ::2], x[..., 1::2]], -1)
        return self.head(x / (x.square().sum(-1, keepdim=True) + 1).sqrt())


class Sinks(nn.Module):  # type: ignore[misc]
    """Attention as transformers writes it out for gpt-oss, whose heads have sinks."""

    num_key_value_groups = 2

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.query, self.out, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 30)
        self.key, self.value = nn.Linear(16, 8), nn.Linear(16, 8)
        self.sinks = nn.Parameter(torch.randn(4))

    def forward(self, ids: Any) -> Any:
        from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

        x = self.tokens(ids)
        b, t, _ = x.shape
        parts = (self.query, self.key, self.value)
        query, key, value = (part(x).view(b, t, -1, 4).transpose(1, 2) for part in parts)
        mask = torch.full((t, t), float("-inf")).triu(1)
        mixed, _ = eager_attention_forward(self, query, key, value, mask, 0.5)
        return self.head(x + self.out(mixed.reshape(b, t, 16)))


class ShiftedWindows(nn.Module):  # type: ignore[misc]
    """Attention within windows of an image that are shifted, biased by where places lie."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 8, 3, padding="same")
        self.table = nn.Parameter(torch.randn(7, 2) * 0.3)
        self.projections = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.leave = nn.Linear(8, 5)
        ids = torch.arange(4)
        self.register_buffer("distances", ids[:, None] - ids[None, :] + 3)

    def forward(self, images: Any) -> Any:
        x = torch.roll(self.enter(images), (-1, -1), (2, 3))
        b = x.shape[0]
        x = x.view(b, 8, 2, 2, 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(b * 4, 4, 8)
        parts = (layer(x).view(-1, 4, 2, 4).transpose(1, 2) for layer in self.projections)
        bias = self.table[self.distances.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=bias[None])
        norm = torch.linalg.vector_norm(mixed, dim=-1, keepdim=True).clamp_min(1e-3)
        x = (mixed / norm).transpose(1, 2).reshape(b, 2, 2, 2, 2, 8).permute(0, 5, 1, 3, 2, 4)
        return self.leave(F.pad(x.reshape(b, 8, 4, 4), (1, 0, 0, 2)).mean((2, 3)))


def _transformers(name: str, **fields: Any) -> Any:
    library = optional("transformers")
    if attention := fields.pop("attention", None):
        fields["attn_implementation"] = attention
    prefix, _, task = name.partition("For")
    prefix = prefix.removesuffix("LMHeadModel")
    kind = getattr(library, name if task or name.endswith("Model") else f"{name}Model")
    return kind(getattr(library, f"{prefix}Config")(**fields))


_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = {**_LAYERS, "vocab_size": 64, "intermediate_size": 48, "max_position_embeddings": 16}
_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
_GPT2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
_GPT2 |= {"bos_token_id": 0, "eos_token_id": 1}
_NO_BERT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _ids(vocab: int, batch: int = 2) -> Any:
    ids = torch.randint(0, vocab, (batch, 8))
    ids[0, 1] = 0  # where a table pads with this id, its row gets no gradient
    return ids


Example = tuple[Any, Any]

MODULES: dict[str, Callable[[], Example]] = {
    "llama": lambda: (_transformers("LlamaForCausalLM", **_LLAMA, num_key_value_heads=2), _ids(64)),
    "llama, eager, one key head": lambda: (
        _transformers("LlamaForCausalLM", **_LLAMA, num_key_value_heads=1, attention="eager"),
        _ids(64),
    ),
    "llama, stretched": lambda: (
        _transformers(
            "LlamaForCausalLM",
            **_LLAMA,
            rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
        ),
        _ids(64),
    ),
    "gptj": lambda: (
        _transformers(
            "GPTJForCausalLM",
            **{key: value for key, value in _GPT2.items() if key != "n_positions"},
            rotary_dim=4,
        ),
        _ids(64),
    ),
    "mixtral": lambda: (
        _transformers(
            "MixtralForCausalLM",
            **_LLAMA,
            num_key_value_heads=2,
            num_local_experts=4,
            experts_implementation="batched_mm",
        ),
        _ids(64),
    ),
    "gemma2, eager": lambda: (
        _transformers(
            "Gemma2ForCausalLM",
            **_LLAMA,
            num_key_value_heads=2,
            head_dim=6,
            sliding_window=4,
            attn_logit_softcapping=0.5,
            pad_token_id=None,
            attention="eager",
        ),
        _ids(64),
    ),
    "gpt2": lambda: (_transformers("GPT2LMHeadModel", **_GPT2), _ids(64)),
    "bert": lambda: (_transformers("BertForMaskedLM", **_LLAMA, **_NO_BERT_DROPOUT), _ids(64)),
    "t5": lambda: (
        _transformers(
            "T5ForConditionalGeneration",
            vocab_size=64,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        ),
        {"input_ids": _ids(64), "decoder_input_ids": _ids(64)[:, :6]},
    ),
    "vit": lambda: (
        _transformers(
            "ViTForImageClassification",
            **_LAYERS,
            **_NO_BERT_DROPOUT,
            intermediate_size=48,
            image_size=16,
            patch_size=4,
            num_labels=5,
        ),
        torch.randn(2, 3, 16, 16),
    ),
    "resnet": lambda: (
        _transformers(
            "ResNetForImageClassification",
            embedding_size=8,
            hidden_sizes=[16, 32],
            depths=[1, 2],
            num_labels=5,
        ),
        torch.randn(2, 3, 32, 32),
    ),
    "convolutions": lambda: (Convolutions(), torch.randn(4, 3, 8, 8)),
    "convolutions in groups": lambda: (Convolutions(groups=2), torch.randn(4, 3, 8, 8)),
    "transformer": lambda: (Transformer(), _ids(40)),
    "mixer": lambda: (Mixer(), torch.randn(3, 5, 6)),
    "windows": lambda: (ShiftedWindows(), torch.randn(2, 3, 4, 4)),
    "odds": lambda: (Odds(), _ids(30)),
    "sinks": lambda: (Sinks(), _ids(30)),
}


def example(name: str) -> Example:
    """A module in training mode with random weights, and its inputs: one, or several by name."""
    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    return module.train(), inputs
