"""Buckets: which messages are state, so that a framework may send them as parts of larger ones.

Gradients are summed and split weights gathered from one long array (DDP's buckets, Megatron's
gradient buffer, ZeRO's flat parameters), `Software.bucket_bytes` at a time. A variable smaller than
that shares a bucket with its neighbours and pays its part of what a bucket costs; a larger one
fills several. Activations travel as they are made.
"""

from models.graph import Graph, Rate


def state_tensors(graph: Graph) -> frozenset[str]:
    """Tensors whose boxing moves weights or gradients of weights.

    Those that are there once a step, weights as each microbatch reads them, and gradients as each
    microbatch makes them. Scalars are none.

    Parameters
    ----------
    graph
        A training graph, or part of one.
    """
    beside = {
        name
        for op in graph.ops
        if op.kind in ("repeat", "accumulate")
        for name in (op.outputs if op.kind == "repeat" else op.inputs)
    }
    return frozenset(
        tensor.name
        for tensor in graph.tensors
        if tensor.shape and (tensor.rate is Rate.STEP or tensor.name in beside)
    )
