"""Expert ops: rows of routing, dispatch and combine, in GShard's form.

A sample is the group inside which experts have a capacity, so that neither the split nor the
microbatch changes who is dropped. Splitting the expert label e of the products between dispatch and
combine while tokens are split by sample is the all_to_all S(b) -> S(e).

Shape legend: b batch (samples), t tokens of a sample, k choices of a token, e experts, c places of
an expert for a sample (its capacity), d features.

Notes
-----
Lepikhin et al., "GShard", arXiv 2006.16668 (2020), section 2.2: the einsums are the meaning; cost
and kernel are those of a gather.
"""

from millrace.models.ops.kind import OpKind

ROWS = (
    OpKind(
        name="top_k",
        description="(scores) b t! e! -> b t! k!, b t! k!, b t! k!: per token the k largest "
        "scores, their experts, and the place each gets there (by choice, then position; -1 beyond "
        "`capacity`); with `groups` > 1 only experts of the best `kept_groups` groups (by the sum "
        "of their two largest scores) are chosen; a second input e! is added to the scores for "
        "choosing alone",
        extra_outputs=("expert", "place"),
        integer_outputs=(1, 2),
        attributes=("capacity", "groups", "kept_groups"),
        differentiable=True,
        fused_by_frameworks=True,
        routes=True,
    ),
    OpKind(
        name="top_k_grad",
        description="(dvalue, expert) b t! k!, b t! k! -> b t! e!: to where each came from",
        linear=(0,),
        fused_by_frameworks=True,
        routes=True,
    ),
    OpKind(
        name="dispatch",
        description="(x, expert, place) b t! d, b t! k!, b t! k! -> e b c! d: every token to the "
        "places it got, zeros elsewhere",
        linear=(0,),
        differentiable=True,
        routed=(3, 1),
        routes=True,
    ),
    OpKind(
        name="dispatch_grad",
        description="(dy, expert, place) e b c! d, b t! k!, b t! k! -> b t! d: added up by token",
        linear=(0,),
        reduction="sum",
        routed=(0, 1),
        routes=True,
    ),
    OpKind(
        name="combine",
        description="(y, expert, place, weight) e b c! d, b t! k!, b t! k!, b t! k! -> b t! d: "
        "what a token's experts made of it, by weight",
        linear=(0, 3),
        reduction="sum",
        differentiable=True,
        routed=(0, 1),
        routes=True,
    ),
    OpKind(
        name="combine_grad_input",
        description="(dout, expert, place, weight) b t! d, b t! k!, b t! k!, b t! k! -> e b c! d: "
        "dy",
        linear=(0, 3),
        routed=(4, 1),
        routes=True,
    ),
    OpKind(
        name="combine_grad_weight",
        description="(dout, y, expert, place) b t! d, e b c! d, b t! k!, b t! k! -> b t! k!: "
        "dweight",
        linear=(0, 1),
        reduction="sum",
        routed=(1, 2),
        routes=True,
    ),
    OpKind(
        name="expert_load",
        description="(expert) b t! k! -> b e!: the share of a sample's choices that fall on each",
        fused_by_frameworks=True,
    ),
)
