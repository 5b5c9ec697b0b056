"""Stream sizes: how many residual streams a decoder has, and how they are mixed."""

import msgspec


class HyperConnections(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of manifold-constrained hyper-connections.

    Attributes
    ----------
    streams : int
        Residual streams, each as wide as the model.
    rounds : int
        Rounds of Sinkhorn's by which the matrices that mix streams are made doubly stochastic.
    epsilon : float
        Added to shares and to the sums that are divided by.
    """

    streams: int
    rounds: int = 20
    epsilon: float = 1e-6
