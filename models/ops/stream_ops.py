"""Stream ops: rows of the mixing of several residual streams by doubly stochastic matrices.

Shape legend: b batch, t tokens, m n streams.

Notes
-----
Sinkhorn and Knopp, "Concerning nonnegative matrices and doubly stochastic matrices" (1967); Xie et
al., "mHC: Manifold-constrained hyper-connections", arXiv 2512.24880 (2025), section 4.
"""

from millrace.models.ops.kind import OpKind

ROWS = (
    OpKind(
        name="sinkhorn",
        description="b t m! n! -> b t m! n!: positive matrices whose columns and rows are divided "
        "by their sums plus `epsilon`, in turns, `rounds` times; columns first and last",
        attributes=("rounds", "epsilon"),
        differentiable=True,
    ),
    OpKind(
        name="sinkhorn_grad",
        description="(x, dy) b t m! n!, b t m! n! -> b t m! n!: dx",
        linear=(1,),
        attributes=("rounds", "epsilon"),
    ),
)
