"""Routing: how tokens travel to the experts that they chose.

A router sends a copy of every token to each of its `k` experts. Plain dispatchers send all copies;
others send one to each place (device, node) that has experts of the token, and copy it there:
DeepEP (DeepSeek-AI, github.com/deepseek-ai/DeepEP, 2025; `get_dispatch_layout` counts tokens, not
copies, for each device and node).
"""

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.graph import Graph
from millrace.models.labels import EXPERT
from millrace.models.ops import kinds_where, op_kind
from millrace.planner.cluster import Software
from millrace.planner.costs.op_batch import OpFirings

ROUTING = kinds_where(lambda row: row.routes)

# Launches that the device waits for per expert of a grouped product, over those of a routing op.
# That there are some: weights, inputs and quantisers are lists over experts there, gone through one
# by one (TransformerEngine, pytorch/module/grouped_linear.py, read 2026-11). How many is fitted on
# published runs of Megatron-Core with 1 to 64 experts a device, 2026-11.
PER_EXPERT = 0.05

# Kinds that change neither the order nor the number of copies.
ALIKE = ("quantise", "cast")


def copies_of_tokens(graph: Graph) -> dict[str, int]:
    """Number of copies of a token, by tensor that holds tokens in the order of their experts.

    Parameters
    ----------
    graph
        A training graph, or part of one.
    """
    shapes = graph.tensors_by_name
    copies: dict[str, int] = {}
    for op in graph.ops:
        if places := op_kind(op.kind).routed:
            sent, chosen = ((*op.inputs, *op.outputs)[place] for place in places)
            copies[sent] = shapes[chosen].shape[-1]
    for op in graph.ops:
        if op.kind in ALIKE and op.inputs[0] in copies:
            copies.update(dict.fromkeys(op.outputs, copies[op.inputs[0]]))
    return copies


def share_beyond(places: float, copies: int) -> float:
    """Share of the bytes of all copies that leaves a place, one copy to each other that has any.

    Notes
    -----
    Experts are chosen evenly, so that each of the other places is missed by all copies with
    probability `(1 - 1 / places) ** copies`.

    Examples
    --------
    >>> share_beyond(4, 1), round(share_beyond(4, 8), 6)
    (0.75, 0.337458)
    """
    hit = 1.0 - (1.0 - 1.0 / places) ** copies if copies > 1 else 1.0 / places
    return (places - 1) * hit / copies


def launches_waited_for(firings: OpFirings, software: Software) -> Floats:
    """Launches of one firing that the device waits for, where software writes routing out.

    The host reads from the device how many tokens each expert has, so that it is not ahead when it
    launches what follows. How many a router's op is, `Software.routing`, is fitted on published
    runs of Megatron-Core, 2026-11.
    """
    if firings.kind in ROUTING:
        return np.array(float(software.routing))
    if EXPERT in firings.sizes:
        launches: Floats = np.float64(PER_EXPERT * software.routing) * firings.sizes[EXPERT]
        return launches
    return np.array(0.0)
