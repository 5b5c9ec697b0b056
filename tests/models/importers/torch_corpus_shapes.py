"""More small modules: views and joins, parts of networks, inputs, outputs and dims of classes."""

from collections.abc import Callable
from typing import Any

from tests.models.importers.torch_corpus import (
    EXACT,
    FEATURES,
    REFUSED,
    F,
    TwoInputs,
    Written,
    case,
    changed,
    ends,
    ids,
    nn,
    torch,
)

__all__ = ["EXACT", "REFUSED"]

# Places, joins and views.
changed("a listed place", lambda h: h.view(-1, 2, 3)[:, [-1]].expand(-1, 2, 3).reshape(-1, 6))
changed("listed places", lambda h: h[:, [5, 0, 1, 2, 4, 3]])
changed(
    "listed pairs",
    lambda h: h.view(-1, 2, 3)[
        :, torch.tensor([0, 1, 1]).repeat(2), torch.tensor([2, 0, 1]).repeat(2)
    ],
)
changed("masked places", lambda h: h[:, torch.tensor([True, False] * 3)].repeat(1, 2))
changed("chosen places", lambda h: h.index_select(1, torch.tensor([0, 0, 1, 1, 2, 5])))
changed("a table of places", lambda h: h[:, torch.tensor([[0, 1, 2], [3, 5, 4]])].flatten(1))
changed(
    "as many places as a mask has",
    lambda h: h * h.masked_select(torch.arange(6) > 2).numel(),
    refused="depends on values",
)
changed("listed samples", lambda h: h[torch.tensor([0, 1])], refused="among samples")
changed("the first samples", lambda h: h + h[:1], refused="sample")
changed("rolled", lambda h: h.roll(2, 1))
changed("rolled over samples", lambda h: h.roll(1, 0), refused="sample")
changed("flipped", lambda h: h.flip(-1), refused="flip")
changed("padded and cut", lambda h: F.pad(h, (1, 2))[:, 2:8])
changed("stacked", lambda h: torch.stack([h[:, :3], h[:, 3:]], 2).flatten(1))
changed("split and joined", lambda h: torch.cat([*reversed(h.split([1, 2, 3], -1))], -1))
changed("a sum over samples", lambda h: h - h.sum(0), refused="sample")
changed("a mean over samples", lambda h: h - h.mean(0), refused="sample")
changed("a softmax over samples", lambda h: h.softmax(0), refused="sample")
changed("products of samples", lambda h: (h @ h.t()) @ h, refused="sample")

# Normal parts.
changed("a softmax", lambda h: h.softmax(-1))
changed("dropout", lambda h: F.dropout(h, 0.5, training=True))
changed(
    "a layer norm written out",
    lambda h: (h - h.mean(-1, keepdim=True)) / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
)
changed("where", lambda h: torch.where(torch.arange(6) < 2, h, -h))
changed("a chain of functions", lambda h: F.gelu(F.silu(h).tanh() * F.softplus(h)).clamp(-1, 2))
changed(
    "a clamp by a tensor",
    lambda h: h.clamp(min=torch.arange(6) / 6.0),
    refused="bounds are tensors",
)
changed("what no graph has", lambda h: F.elu(h).cumsum(-1), refused="`cumsum`")


def attention(**options: Any) -> Callable[[], Any]:
    def forward(self: Any, x: Any) -> Any:
        h = self.table(x)
        parts = (part.unflatten(-1, (2, 3)).transpose(1, 2) for part in self.qkv(h).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(*parts, **options)
        return self.head(h + mixed.transpose(1, 2).flatten(2))

    return lambda: Written(
        forward, table=nn.Embedding(9, 6), qkv=nn.Linear(6, 18), head=nn.Linear(6, 9)
    )


case("attention", attention(is_causal=True), ids)
case("attention both ways", attention(), ids)
case("attention with dropout", attention(dropout_p=0.3, is_causal=True), ids)
case("attention behind a mask", attention(attn_mask=torch.ones(8, 8).tril() > 0), ids)
case("masked text", attention(), ids, mask_id=0)
case(
    "an encoder layer",
    lambda: Written(
        lambda self, x: self.head(self.layer(self.table(x))),
        table=nn.Embedding(9, 6),
        layer=nn.TransformerEncoderLayer(6, 2, 12, batch_first=True),
        head=nn.Linear(6, 9),
    ),
    ids,
)
case(
    "an image network",
    lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4 * 6, 5),
    ),
    lambda: torch.zeros(3, 3, 8, 12),
)


# Inputs and outputs.
def two_inputs() -> Any:
    return torch.zeros(FEATURES), torch.zeros(FEATURES)


case(
    "two inputs",
    lambda: TwoInputs(lambda self, a, b: self.leave(self.enter(a) - b), **ends()),
    two_inputs,
)
case(
    "two inputs of ids",
    lambda: TwoInputs(
        lambda self, a, b: self.head((self.users(a) * self.items(b)).sum(1)),
        users=nn.Embedding(9, 6),
        items=nn.Embedding(7, 6),
        head=nn.Linear(6, 3),
    ),
    lambda: (ids(), ids()),
)
case(
    "inputs by name",
    lambda: TwoInputs(lambda self, a, b: self.leave(a * b), **ends()),
    lambda: {"right": torch.zeros(FEATURES), "left": torch.zeros(FEATURES)},
)
case(
    "an input that is not read",
    lambda: TwoInputs(lambda self, a, b: self.leave(b), **ends()),
    two_inputs,
)


def two(self: Any, x: Any) -> Any:
    return self.enter(x), self.leave(x)


case("two outputs", lambda: Written(two, **ends()), refused="say which")
case("the second of two outputs", lambda: Written(two, **ends()), output=1)
case("the third of two outputs", lambda: Written(two, **ends()), output=2, refused="choose one of")
case(
    "named outputs",
    lambda: Written(lambda self, x: dict(zip("ab", two(self, x), strict=True)), **ends()),
    refused="output='a'",
)
case(
    "a named output",
    lambda: Written(lambda self, x: dict(zip("ab", two(self, x), strict=True)), **ends()),
    output="b",
)
case(
    "logits and more of the same",
    lambda: Written(
        lambda self, x: {"hidden": (h := self.enter(x)), "logits": self.leave(h)}, **ends()
    ),
)
case(
    "logits and another head",
    lambda: Written(
        lambda self, x: dict(zip(("boxes", "logits"), two(self, x), strict=True)), **ends()
    ),
    refused="parameters of its own",
)
case(
    "hidden states",
    lambda: Written(lambda self, x: {"last_hidden_state": self.leave(x)}, **ends()),
    refused="hidden states",
)
case("a number as well", lambda: Written(lambda self, x: (self.leave(x), None, 3), **ends()))
case(
    "nothing floating",
    lambda: Written(lambda self, x: self.leave(x) > 0, **ends()),
    refused="no floating tensor",
)
case(
    "only constants",
    lambda: Written(lambda self, x: torch.ones(4, 3), **ends()),
    refused="depend on neither",
)


# The dim of classes.
def images() -> Any:
    return torch.zeros(2, 3, 4, 6)


case("classes of every place of an image", lambda: nn.Conv2d(3, 5, 3, padding=1), images)
case("classes of an image, last", lambda: nn.Conv2d(3, 5, 3, padding=1), images, classes_dim=-1)
case(
    "rows of features",
    lambda: nn.Linear(6, 3),
    lambda: torch.zeros(2, 5, 6),
    refused="classes_dim=1",
)
case(
    "rows of features, last", lambda: nn.Linear(6, 3), lambda: torch.zeros(2, 5, 6), classes_dim=-1
)
case(
    "rows of features, first", lambda: nn.Linear(6, 3), lambda: torch.zeros(2, 5, 6), classes_dim=1
)
case(
    "classes of tokens before them",
    lambda: Written(
        lambda self, x: self.head(self.table(x)).transpose(1, 2),
        table=nn.Embedding(9, 6),
        head=nn.Linear(6, 5),
    ),
    ids,
)
case(
    "several predictions of a token",
    lambda: Written(
        lambda self, x: self.head(self.table(x)).unflatten(-1, (2, 9)),
        table=nn.Embedding(9, 6),
        head=nn.Linear(6, 18),
    ),
    ids,
    refused="which dim is classes",
)
case("a dim that is none", lambda: nn.Linear(6, 3), classes_dim=2, refused="classes_dim=2")
case("the batch as classes", lambda: nn.Linear(6, 3), classes_dim=0, refused="classes_dim=0")
case("one logit", lambda: nn.Linear(6, 1), refused='loss="logistic"')
case(
    "one logit, squeezed",
    lambda: nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)),
    refused='loss="logistic"',
)
case("one logit against 0 or 1", lambda: nn.Linear(6, 1), loss="logistic")
case(
    "one squeezed logit against 0 or 1",
    lambda: Written(lambda self, x: self.enter(x)[:, 0], **ends()),
    loss="logistic",
)

# Modules without values, and what cannot be traced.
case(
    "meta, with batch norm",
    lambda: nn.Sequential(
        nn.Linear(6, 5, device="meta"),
        nn.BatchNorm1d(5, device="meta"),
        nn.Linear(5, 3, device="meta"),
    ),
)
case(
    "meta, with an unknown buffer",
    lambda: Written(
        lambda self, x: self.enter(x) * self.table,
        enter=nn.Linear(6, 6, device="meta"),
        table=torch.zeros(6, device="meta"),
        own=nn.Parameter(torch.zeros(1, device="meta")),
    ),
    refused="has no values",
)
changed("a choice by values", lambda h: h if h.sum() > 0 else -h, refused="cannot be exported")


# Comparisons and what is made of them.
changed("absolute values", lambda h: h.abs() - (h * 2).exp().expm1() * 0.01)
changed("logarithms of sigmoids", lambda h: F.logsigmoid(h))
changed("a choice by comparisons", lambda h: torch.where((h > 0.1) & ~(h >= 0.6), h * 2, -h))
changed("filled where it is small", lambda h: h.masked_fill(h <= 0.1, 0.5) * (h < 1))
changed("the larger and the smaller", lambda h: h.maximum(h.flip(0) * 0 + 0.1), refused="flip")
changed("the larger of two", lambda h: torch.maximum(h, h * h) - torch.min(h, torch.tensor(0.2)))
changed("triangles", lambda h: torch.tril(h.view(-1, 2, 3)).flatten(1) + h.new_full((6,), 0.5))
changed("equal numbers", lambda h: h * (h == 0), refused="eq")
changed("a softmax less its largest", lambda h: (h - h.max(-1, keepdim=True)[0]).softmax(-1))
changed("the largest of a dim", lambda h: h - h.max(-1, keepdim=True)[0], refused="largest")


def positions_of_words(self: Any, x: Any) -> Any:
    mask = x.ne(1).int()
    places = mask.cumsum(1) * mask + 1
    return self.head(self.table(x) + self.places(places))


case(
    "positions of what is no padding",
    lambda: Written(
        positions_of_words,
        table=nn.Embedding(9, 6, padding_idx=1),
        places=nn.Embedding(12, 6, padding_idx=1),
        head=nn.Linear(6, 9),
    ),
    ids,
)


def turned_as_complex(self: Any, x: Any) -> Any:
    h = self.enter(x)
    angles = torch.outer(torch.arange(h.shape[1]), 0.5 ** torch.arange(3.0))
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(h.reshape(*h.shape[:-1], 3, 2))
    return self.leave(torch.view_as_real(pairs * turns).flatten(2))


case(
    "turned as complex numbers",
    lambda: Written(turned_as_complex, **ends()),
    lambda: torch.zeros(2, 5, 6),
    classes_dim=-1,
)


class Routed(nn.Module):  # type: ignore[misc]
    """Experts as transformers' `batched_mm` computes them, behind a router of one kind."""

    def __init__(self, router: Callable[[Any, Any], Any], turned: bool = False) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)
        self.gate, self.router, self.turned = nn.Linear(6, 8), router, turned
        shapes = {"up": (8, 10, 6), "up_bias": (8, 10), "down": (8, 6, 5), "down_bias": (8, 6)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / 2))
        self.bias = nn.Parameter(torch.randn(8) / 4)
        self.register_buffer("buffer", torch.randn(8) / 4)

    def forward(self, ids: Any) -> Any:
        x = self.table(ids)
        rows = x.view(-1, 6)
        weights, chosen = self.router(self, self.gate(rows))
        repeated, flat = rows.repeat_interleave(2, 0), chosen.reshape(-1)
        if self.turned:
            wide = torch.bmm(repeated.unsqueeze(1), self.up.mT[flat]).squeeze(1)
        else:
            wide = torch.bmm(self.up[flat], repeated.unsqueeze(-1)).squeeze(-1)
        gate, up = (wide + self.up_bias[flat]).chunk(2, -1)
        active = F.gelu(gate.clamp(max=1.5)) * (up + 1)
        out = torch.bmm(self.down[flat], active.unsqueeze(-1)).squeeze(-1) + self.down_bias[flat]
        out = out * weights.reshape(-1).unsqueeze(-1)
        return self.head(x + out.view(-1, 2, 6).sum(1).view(x.shape))


def softmax_first(self: Routed, logits: Any) -> Any:
    weights, chosen = logits.softmax(-1).topk(2)
    return weights / weights.sum(-1, keepdim=True), chosen


def softmax_last(self: Routed, logits: Any) -> Any:
    weights, chosen = logits.topk(2)
    return weights.softmax(-1), chosen


def biased(self: Routed, logits: Any, bias: str = "bias") -> Any:
    scores = logits.sigmoid()
    chosen = (scores + getattr(self, bias)).topk(2)[1]
    weights = scores.gather(1, chosen)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5, chosen


def of_groups(self: Routed, logits: Any, hidden: float = float("-inf")) -> Any:
    scores = logits.sigmoid()
    choice = scores + self.buffer if hidden < 0 else scores
    groups = choice.view(-1, 4, 2).topk(2)[0].sum(-1)
    mask = torch.zeros_like(groups).scatter_(1, groups.topk(2, sorted=False)[1], 1)
    open_to = mask.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, 8)
    chosen = choice.masked_fill(~open_to.bool(), hidden).topk(2, sorted=False)[1]
    return scores.gather(1, chosen), chosen


def ranked_before(self: Routed, logits: Any) -> Any:
    scores, chosen = logits.softmax(-1), logits.topk(2)[1]
    return scores.gather(1, chosen), chosen


def of_others(self: Routed, logits: Any) -> Any:
    chosen = (logits * logits).topk(2)[1]
    return logits.sigmoid().gather(1, chosen), chosen


_ROUTERS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax, normalised": softmax_first,
    "softmax of the chosen": softmax_last,
    "a trained bias": biased,
    "a bias kept aside": lambda self, logits: biased(self, logits, "buffer"),
    "groups": of_groups,
    "groups, others zero": lambda self, logits: of_groups(self, logits, 0.0),
    "chosen by logits": ranked_before,
}
for title, route in _ROUTERS.items():
    case(f"experts, {title}", lambda route=route: Routed(route), ids)
case("experts, turned weights", lambda: Routed(softmax_last, turned=True), ids)
case("experts, other scores", lambda: Routed(of_others), ids, refused="`gather")


def shared_with_sinks(self: Any, x: Any) -> Any:
    heads = self.enter(x).view(*x.shape[:2], 2, 3).transpose(1, 2)
    scores = torch.matmul(heads, heads.transpose(2, 3)) * 0.5
    share = (torch.logsumexp(scores, -1) - self.sinks.view(1, -1, 1)).sigmoid()
    out = torch.matmul(scores.softmax(-1), heads) * share.unsqueeze(-1)
    return self.leave(out.transpose(1, 2).flatten(2))


case(
    "attention shared with sinks",
    lambda: Written(shared_with_sinks, sinks=nn.Parameter(torch.randn(2)), **ends()),
    lambda: torch.zeros(2, 5, 6),
    classes_dim=-1,
)
