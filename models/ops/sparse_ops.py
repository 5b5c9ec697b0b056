"""Sparse ops: rows of attention to the keys that a lightning indexer chooses for every query.

Shape legend: b batch, t query positions, s key positions, h heads, c keys chosen for a query, d u
features of a query or key and of a value; i heads and e features of the indexer.

Notes
-----
DeepSeek-AI, "DeepSeek-V3.2", arXiv 2512.02556 (2025), section 2.1: queries of all heads share one
key per token, the latent vector, so that a key that is fetched serves all of them. DeepSeek-AI,
"DeepSeek-V4", arXiv 2606.19348 (2026), section 2.3: keys that stand for several tokens.
"""

from millrace.models.graph import Rate
from millrace.models.ops.kind import OpKind

ROWS = (
    OpKind(
        name="choose_keys",
        description="(query, weights, key) b t i! e!, b t i!, b s! e! -> b t c!: the keys up to t "
        "whose sums over i of weights relu(query key) are the c largest, in the keys' order; -1 in "
        "front where there are fewer keys. With `stride` (optional) a key stands for so many "
        "tokens, the last up to t; with `window` (optional) so many tokens up to t come before the "
        "c - window chosen keys, which lie behind all tokens",
        integer_outputs=(0,),
        products=((0, 2),),
    ),
    OpKind(
        name="seen_keys",
        description="-> b t c!: `window` tokens up to t and, behind all `tokens`, every key that "
        "stands for `stride` tokens up to t; -1 in front where there are fewer",
        rate=Rate.MICROBATCH,
        integer_outputs=(0,),
        attributes=("window", "stride", "tokens"),
    ),
    OpKind(
        name="sparse_attention",
        description="(q, k, v, chosen) b t h d!, b s! d!, b s! u!, b t c! -> b t h u!, b t h: "
        "attention of every query to the keys that are chosen for it, which all heads share, and "
        "the logarithm of the softmax's sum",
        products=((0, 3), (4, 3)),
        extra_outputs=("logsumexp",),
        wide_outputs=(1,),
        attributes=("scale",),
        differentiable=True,
    ),
    OpKind(
        name="sparse_attention_grad",
        description="(q, k, v, chosen, out, logsumexp, dout) b t h d!, b s! d!, b s! u!, b t c!, "
        "b t h u!, b t h, b t h u! -> b t h d!, b s! d!, b s! u!: dq, dk, dv",
        reduction="sum",
        products=((0, 3), (0, 3), (6, 3), (6, 3)),
        extra_outputs=("key", "value"),
        attributes=("scale",),
    ),
)
