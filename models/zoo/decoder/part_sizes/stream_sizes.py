"""Stream sizes: how many residual streams a decoder has, and how they are mixed."""

import msgspec


class HyperConnections(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of manifold-constrained hyper-connections.

    Attributes
    ----------
    streams : int
        Residual streams, each as wide as the model.
    rounds : int
        Rounds of Sinkhorn's by which the matrices that mix streams are made doubly stochastic (0:
        streams are not mixed, and `epsilon` is added to shares of a part's output as well; Hy4).
    magnitude : float
        The largest share that a stream has of what a part makes.
    epsilon : float
        Added to shares and to the sums that are divided by.
    """

    streams: int
    rounds: int = 20
    magnitude: float = 2.0
    epsilon: float = 1e-6
