"""Layer ops: rows of norms, embeddings, attention, convolution and pooling.

Shape legend: b batch, t query positions, s key positions, h heads, g groups of query heads that
share keys, r query heads of a group, d u features, v vocabulary, c n channels, y x (j i after the
op) rows and columns of an image, q p rows and columns of a window, m buckets of distances.
"""

from millrace.models.ops.kind import OpKind

NORMS = (
    OpKind(
        name="layer_norm",
        description="(x, gamma, beta) b t d!, d!, d! -> b t d!, b t, b t: y, mean and 1 / std",
        extra_outputs=("mean", "rstd"),
        wide_outputs=(1, 2),
        attributes=("epsilon",),
        differentiable=True,
        role="norm",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="layer_norm_grad_input",
        description="(dy, x, gamma, mean, rstd) b t d!, b t d!, d!, b t, b t -> b t d!: dx",
        linear=(0,),
        role="norm_grad",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="layer_norm_grad_weight",
        description="(dy, x, mean, rstd) b t d, b t d, b t, b t -> d, d: dgamma and dbeta",
        linear=(0,),
        reduction="sum",
        extra_outputs=("beta",),
        role="sum",
        joins=("norm_grad",),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="rms_norm",
        description="(x, gamma) b t d!, d! -> b t d!, b t: y and 1 / root mean square",
        extra_outputs=("rstd",),
        wide_outputs=(1,),
        attributes=("epsilon",),
        differentiable=True,
        role="norm",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="rms_norm_grad_input",
        description="(dy, x, gamma, rstd) b t d!, b t d!, d!, b t -> b t d!: dx",
        linear=(0,),
        role="norm_grad",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="rms_norm_grad_weight",
        description="(dy, x, rstd) b t d, b t d, b t -> d: dgamma",
        linear=(0,),
        reduction="sum",
        role="sum",
        joins=("norm_grad",),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="l2_normalize",
        description="b d! -> b d!, b: rows of length one, and one over the length they had",
        extra_outputs=("rnorm",),
        wide_outputs=(1,),
        attributes=("epsilon",),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="l2_normalize_grad",
        description="(dy, y, rnorm) b d!, b d!, b -> b d!: dx",
        linear=(0,),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="channel_sums",
        description="b y x c -> c: sum over a microbatch, for the mean of a batch norm",
        linear="joint",
        reduction="sum",
        wide_outputs=(0,),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="channel_squares",
        description="(x, sums) b y x c, c -> c: sum of squared distances from the mean",
        reduction="sum",
        wide_outputs=(0,),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="batch_norm",
        description="(x, sums, squares, gamma, beta) b y x c, c, c, c, c -> b y x c: by the "
        "statistics of the whole microbatch, however it is split",
        attributes=("epsilon",),
        differentiable=True,
        role="channel_norm",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="batch_norm_grad_sums",
        description="(dy, x, sums, squares) b y x c, b y x c, c, c -> c, c: dgamma and dbeta",
        linear=(0,),
        reduction="sum",
        wide_outputs=(0, 1),
        extra_outputs=("beta",),
        attributes=("epsilon",),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="batch_norm_grad_input",
        description="(dy, x, sums, squares, gamma, dgamma, dbeta) b y x c, b y x c, c, c, c, c, c "
        "-> b y x c: dx",
        attributes=("epsilon",),
        fused_by_frameworks=True,
    ),
)

EMBEDDINGS = (
    OpKind(
        name="embedding",
        description="(ids, table) b t, v d -> b t d: rows of the table; a shard of rows gives "
        "zeros for ids outside it; optionally `padding`: the id whose row is not trained",
        linear=(1,),
        reduction="sum",
        gathered=(1,),
        differentiable=True,
    ),
    OpKind(
        name="embedding_grad",
        description="(ids, dy) b t, b t d -> v d: dy added up by id, but for that of `padding`",
        linear=(1,),
        reduction="sum",
    ),
    OpKind(
        name="rotary",
        description="b t h d! -> b t h d!: pairs of features turned by an angle that grows with "
        "the position (label t); `base`, `dims` (how many features, the first ones, turn), "
        "`interleaved` (pairs are neighbours, else half of `dims` apart), `inverse`; optionally "
        "`scaling` (`millrace.models.rotary.rotary_frequencies` gives the angles) and `amplitude` "
        "(1), a factor on what is turned",
        linear="joint",
        attributes=("base", "dims", "interleaved", "inverse"),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="relative_bias",
        description="m! h -> h t s!: a learned number per head and bucket of distances between "
        "query and key (T5)",
        linear="joint",
        attributes=("bidirectional", "max_distance"),
        differentiable=True,
    ),
    OpKind(
        name="relative_bias_grad",
        description="h t s! -> m! h: added up by bucket",
        linear="joint",
        reduction="sum",
        attributes=("bidirectional", "max_distance"),
    ),
)

ATTENTION = (
    OpKind(
        name="attention",
        description="(q, k, v) b t g r d!, b s! g d!, b s! g u! -> b t g r u!, b t g r: "
        "softmax(scale q k) v and the logarithm of the softmax's sum; `causal`: query t sees keys "
        "up to t; `window` (0: all): only keys less than so far away; `alibi` (0: none): scores "
        "fall with the distance, by slopes of which this is the largest exponent; `cap` (0: none): "
        "scores x become cap tanh(x / cap) before anything is added",
        products=((0, 1), (3, 2)),
        extra_outputs=("logsumexp",),
        wide_outputs=(1,),
        attributes=("causal", "scale"),
        differentiable=True,
    ),
    OpKind(
        name="attention_grad",
        description="(q, k, v, out, logsumexp, dout) b t g r d!, b s! g d!, b s! g u!, "
        "b t g r u!, b t g r, b t g r u! -> b t g r d!, b s! g d!, b s! g u!: dq, dk, dv",
        reduction="sum",
        products=((0, 1), (0, 1), (5, 2), (5, 2)),
        extra_outputs=("key", "value"),
        attributes=("causal", "scale"),
    ),
    OpKind(
        name="biased_attention",
        description="(q, k, v, bias) b t h d!, b s! h d!, b s! h u!, h t s! -> b t h u!, b t h: "
        "attention with something added to its scores",
        products=((0, 1), (4, 2)),
        extra_outputs=("logsumexp",),
        wide_outputs=(1,),
        attributes=("causal", "scale"),
        differentiable=True,
    ),
    OpKind(
        name="biased_attention_grad",
        description="(q, k, v, bias, out, logsumexp, dout) b t h d!, b s! h d!, b s! h u!, h t s!, "
        "b t h u!, b t h, b t h u! -> b t h d!, b s! h d!, b s! h u!, h t s!: dq, dk, dv, dbias",
        reduction="sum",
        products=((0, 1), (0, 1), (6, 2), (6, 2)),
        extra_outputs=("key", "value", "bias"),
        attributes=("causal", "scale"),
    ),
    OpKind(
        name="attention_sink",
        description="(out, logsumexp, sink) b t g r u, b t g r, g r -> b t g r u, b t g r: what "
        "attention made, with a score more per head that no key has: its probability is dropped",
        extra_outputs=("logsumexp",),
        wide_outputs=(1,),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="attention_sink_grad",
        description="(out, logsumexp, sink, dout) b t g r u, b t g r, g r, b t g r u -> g r: dsink",
        linear=(3,),
        reduction="sum",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="masked_softmax",
        description="b g r t s! -> b g r t s!: probabilities of scores that a product made, times "
        "`scale`; `causal`, `window` and `alibi` as of attention; optionally a second input, g r: "
        "sinks, scores more that no key has",
        attributes=("causal", "scale"),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="masked_softmax_grad",
        description="(y, dy) b g r t s!, b g r t s! -> b g r t s!: scale y (dy - sum(y dy))",
        linear=(1,),
        attributes=("scale",),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="masked_softmax_grad_sink",
        description="(y, dy) b g r t s!, b g r t s! -> g r: dsink, -(1 - sum(y)) sum(y dy)",
        linear=(1,),
        reduction="sum",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="attention_round",
        description="(q, k, v, out, logsumexp) b t g r d!, b s! g d!, b s! g u!, b t g r u!, "
        "b t g r -> b t g r u!, b t g r: attention to one block of the keys, joined by the "
        "logarithms of the sums to what others gave; `round`: how many places the block has "
        "travelled round a ring (0: it is this device's own)",
        products=((0, 1), (3, 2)),
        extra_outputs=("logsumexp",),
        wide_outputs=(0, 1),
        attributes=("causal", "scale"),
        expansion_only=True,
    ),
    OpKind(
        name="attention_grad_round",
        description="(q, k, v, out, logsumexp, dout, dq) b t g r d!, b s! g d!, b s! g u!, "
        "b t g r u!, b t g r, b t g r u!, b t g r d! -> b t g r d!, b s! g d!, b s! g u!: dq of "
        "one block of the keys added to dq, and the block's dk and dv; `round` as forward",
        products=((0, 1), (0, 1), (5, 2), (5, 2)),
        extra_outputs=("key", "value"),
        wide_outputs=(0,),
        attributes=("causal", "scale"),
        expansion_only=True,
    ),
)

_WINDOW = ("stride_y", "stride_x", "pad_y", "pad_x")

IMAGES = (
    OpKind(
        name="conv",
        description="(x, w) b y! x! (g c), (g n) q! p! c -> b j! i! (g n): convolution, g groups "
        "(left out where there is one), or channels first, b (g c) y! x!, (g n) c q! p! -> "
        "b (g n) j! i!; `dilation_y`, `dilation_x` (1) are optional",
        linear=(0, 1),
        reduction="sum",
        products=((1, 2),),
        attributes=_WINDOW,
        differentiable=True,
    ),
    OpKind(
        name="conv_grad_input",
        description="(dy, w) b j! i! n, n q! p! c -> b y! x! c: dx",
        linear=(0, 1),
        reduction="sum",
        products=((0, 1),),
        attributes=_WINDOW,
    ),
    OpKind(
        name="conv_grad_weight",
        description="(x, dy) b y! x! c, b j! i! n -> n q! p! c: dw",
        linear=(0, 1),
        reduction="sum",
        products=((1, 2),),
        attributes=_WINDOW,
    ),
    OpKind(
        name="max_pool",
        description="b y! x! c -> b j! i! c, or channels first: the largest of every window",
        attributes=(*_WINDOW, "size_y", "size_x"),
        differentiable=True,
    ),
    OpKind(
        name="max_pool_grad",
        description="(x, dy) b y! x! c, b j! i! c -> b y! x! c: dy to the first largest",
        linear=(1,),
        attributes=(*_WINDOW, "size_y", "size_x"),
    ),
    OpKind(
        name="avg_pool",
        description="b y! x! c -> b j! i! c: the mean of every window, its padding counted",
        linear="joint",
        attributes=(*_WINDOW, "size_y", "size_x"),
        differentiable=True,
    ),
    OpKind(
        name="avg_pool_grad",
        description="b j! i! c -> b y! x! c: dy spread over its window",
        linear="joint",
        attributes=(*_WINDOW, "size_y", "size_x"),
    ),
)

ROWS = (*NORMS, *EMBEDDINGS, *ATTENTION, *IMAGES)
