"""Routing: how tokens travel to the experts that they chose.

A router sends a copy of every token to each of its `k` experts. Plain dispatchers send all copies;
others send one to each place (device, node) that has experts of the token, and copy it there:
DeepEP (DeepSeek-AI, github.com/deepseek-ai/DeepEP, 2025; `get_dispatch_layout` counts tokens, not
copies, for each device and node). A router that chooses among groups of experts bounds how many
nodes those are: DeepSeek-V3 chooses 8 experts of 4 groups, its 8 groups lying on 8 nodes
(arXiv 2412.19437, section 2.1.2, node-limited routing).
"""

from functools import cache
from math import comb, sqrt
from statistics import NormalDist

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.fp8 import BETWEEN_PRODUCTS, EPILOGUE
from millrace.models.graph import Graph
from millrace.models.labels import BATCH, EXPERT, parse
from millrace.models.ops import kinds_where, op_kind
from millrace.planner.cluster import ExpertLoad, Software
from millrace.planner.collectives import TokenCopies
from millrace.planner.costs.op_batch import NARROW, OpFirings

ROUTING = kinds_where(lambda row: row.routes)

# A product of one expert is a kernel of its own, which begins and ends: lists over experts are gone
# through one by one (TransformerEngine, pytorch/module/grouped_linear.py, read 2026-11). Fitted on
# published runs of Megatron-Core with 1 to 64 experts a device, 2026-11.
EXPERT_KERNEL_NS = 6_500

# Launches of the host for each of them, in 16 bits and in fewer, where its input is rounded before.
# Taken from published runs with 16 experts a device in 8 bits, which take as long whatever the
# device, 2026-11.
EXPERT_LAUNCHES, NARROW_EXPERT_LAUNCHES = 3, 5

# Kinds that change neither the order nor the number of copies.
QUANTISE, ACCUMULATE = "quantise", "accumulate"
WEIGHED = "combine_grad_weight"  # gradient of the weights of a router's choice
ALIKE = (QUANTISE, "cast")


def copies_of_tokens(graph: Graph) -> dict[str, TokenCopies]:
    """Copies of a token, by tensor that holds tokens in the order of their experts.

    Parameters
    ----------
    graph
        A training graph, or part of one.
    """
    shapes = graph.tensors_by_name
    copies: dict[str, TokenCopies] = {}
    makers = {name: op for op in graph.ops for name in op.outputs}
    for op in graph.ops:
        if places := op_kind(op.kind).routed:
            sent, chosen = ((*op.inputs, *op.outputs)[place] for place in places)
            router = makers[chosen].attributes if chosen in makers else {}
            copies[sent] = TokenCopies(
                number=shapes[chosen].shape[-1],
                groups=int(router.get("groups", 1)),
                kept_groups=int(router.get("kept_groups", 1)),
            )
    for op in graph.ops:
        if op.kind in ALIKE and op.inputs[0] in copies:
            alike = copies[op.inputs[0]]._replace(narrow=op.kind == QUANTISE)
            copies.update(dict.fromkeys(op.outputs, alike))
    return copies


def share_beyond(places: float, copies: TokenCopies) -> float:
    """Share of the bytes of all copies that leaves a place, one copy to each other that has any.

    Parameters
    ----------
    places : float
        Places (devices, nodes) that all experts lie on, as many on each.
    copies : TokenCopies
        Copies of a token, and the groups that its experts are chosen from.

    Examples
    --------
    >>> share_beyond(4, TokenCopies(1)), round(share_beyond(4, TokenCopies(8)), 6)
    (0.75, 0.337458)
    >>> round(share_beyond(8, TokenCopies(8)), 3), round(share_beyond(8, TokenCopies(8, 8, 4)), 3)
    (0.574, 0.394)
    """
    number = max(copies.number, 1)
    return (places - 1) * places_reached(places, copies) / places / number


def places_reached(places: float, copies: TokenCopies) -> float:
    """Expected number of different places that the experts of a token lie on.

    Parameters
    ----------
    places : float
        Places that all experts lie on, as many on each.
    copies : TokenCopies
        Copies of a token, and the groups that its experts are chosen from.

    Notes
    -----
    Groups, and experts of the groups that are kept, are chosen evenly. A place with x kept groups
    on it is missed by one of `number` copies with probability 1 - x / kept_groups, where x is
    hypergeometric; a place that is a part of a group is missed unless that group is kept, and then
    with probability 1 - part / kept_groups.

    Examples
    --------
    >>> round(places_reached(8, TokenCopies(8)), 2)
    5.25
    >>> round(places_reached(8, TokenCopies(8, 8, 4)), 2)
    3.6
    """
    if copies.number <= 1:
        return 1.0
    groups, kept_groups = copies.groups, copies.kept_groups
    if places >= groups:  # a place has a part of one group
        missed = (1.0 - groups / places / kept_groups) ** copies.number
        return places * kept_groups / groups * (1.0 - missed)
    share = round(groups / places)  # groups of a place
    hit = 0.0
    for inside in range(1, min(share, kept_groups) + 1):
        ways = comb(share, inside) * comb(groups - share, kept_groups - inside)
        missed = (1.0 - inside / kept_groups) ** copies.number
        hit += ways / comb(groups, kept_groups) * (1.0 - missed)
    return places * hit


@cache
def largest_of(count: int) -> float:
    """Expected largest of `count` standard normal values.

    Notes
    -----
    G. Blom, "Statistical Estimates and Transformed Beta-Variables", 1958, within five percent of
    the exact values (Harter, 1961), within one from eight on.
    """
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def busiest(load: ExpertLoad, experts: float) -> float:
    """Tokens of the device that has most of them, over those of the mean device.

    Parameters
    ----------
    load : ExpertLoad
        Spread of the tokens over all experts of a layer.
    experts : float
        Experts of one device, of which each varies by itself; less than one (a split that the
        search prices before it is barred) counts as one.

    Examples
    --------
    >>> spread = ExpertLoad(deviation=0.3, experts=64)
    >>> [round(busiest(spread, experts), 2) for experts in (1, 8, 64)]
    [1.7, 1.15, 1.0]
    """
    each = max(experts, 1.0)
    return 1.0 + load.deviation / sqrt(each) * largest_of(round(load.experts / each))


def busiest_op(firings: OpFirings, load: ExpertLoad) -> Floats:
    """Times as long as with equal shares that an op takes on the device with most tokens.

    It is 1 for an op that has no experts, or no tokens of theirs, as sums of their weights.
    """
    if not load.deviation or EXPERT not in firings.spans or BATCH not in firings.spans:
        return np.array(1.0)
    sizes, places = np.unique(firings.spans[EXPERT], return_inverse=True)
    times = np.array([busiest(load, size) for size in sizes.tolist()])
    return times[places].reshape(np.shape(firings.spans[EXPERT]))


def launches_waited_for(firings: OpFirings, software: Software) -> int:
    """Launches of one firing that the device waits for, where software writes routing out.

    The host reads from the device how many tokens each expert has, so that it is not ahead when it
    launches what follows. How many a router's op is, `Software.routing`, is fitted on published
    runs of Megatron-Core, 2026-11.
    """
    return software.routing if firings.kind in ROUTING else 0


def expert_kernels_ns(firings: OpFirings, software: Software) -> Floats:
    """Nanoseconds in which the kernels of single experts begin and end; 0 where they are one."""
    if not software.routing or software.fused_experts or EXPERT not in firings.sizes:
        return np.array(0.0)
    experts: Floats = np.float64(EXPERT_KERNEL_NS) * firings.sizes[EXPERT]
    return experts


def expert_launches(firings: OpFirings, software: Software) -> int:
    """Launches of one firing by the host: one, or several for each expert of a product.

    Parameters
    ----------
    firings : OpFirings
        One firing of an op on its local shapes.
    software : Software
        The framework's.
    """
    if not software.routing or software.fused_experts or EXPERT not in firings.sizes:
        return 1
    each = NARROW_EXPERT_LAUNCHES if firings.precision in NARROW else EXPERT_LAUNCHES
    return each * int(np.max(firings.sizes[EXPERT]))


def in_expert_kernel(firings: OpFirings, software: Software) -> bool:
    """True if a kernel of all experts' products does an op too.

    It makes what lies between two of them, multiplied by the router's weights, whose gradient it
    makes too, and adds gradients of weights to those of microbatches before while it multiplies the
    next tile (Transformer Engine, pytorch/ops/fused/grouped_mlp.py, `ScaledSwiGLU` and
    `dprob_tensor`, read 2026-11).
    """
    if not software.fused_experts or EXPERT not in firings.spans:
        return False
    if firings.kind == WEIGHED:
        return True
    rounds = firings.kind == QUANTISE and EPILOGUE in firings.attributes
    return rounds or firings.kind in BETWEEN_PRODUCTS or firings.kind == ACCUMULATE


def is_expert_bias(firings: OpFirings) -> bool:
    """True if an op adds the biases of experts to tokens, or sums their gradient over tokens."""
    operands = parse(firings.labels).operands if firings.kind in ("add", "sum") else ()
    experts = [operand for operand in operands if (EXPERT,) in operand]
    return len(experts) > 1 and min(map(len, experts)) < len(experts[0])
