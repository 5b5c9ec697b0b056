"""Variants: from the options of a solved block program to what a Plan holds and stages need."""

from millrace.models.graph import Graph
from millrace.planner.plan import OpSignature, Variant
from millrace.planner.search.blocks.space import Space
from millrace.planner.search.blocks.states import Bools

Options = tuple[int, ...]
Handover = tuple[tuple[str, int], ...]
"""Per tensor that blocks hand on, the state that it is made in."""


def handover(space: Space, options: Options) -> Handover:
    """How blocks hand tensors to one another; blocks alike in this mix without more boxing.

    What a reader wants is boxed, and counted, where it reads: only what is made has to agree.
    """
    return tuple(
        (net.tensor, int(net.sources[net.makes[options[net.producer]]]))
        for net in space.nets
        if net.crossing
    )


def handing(space: Space, wanted: Handover) -> dict[int, Bools]:
    """Per choice that hands something on, the options that do it in the wanted states."""
    states = dict(wanted)
    found: dict[int, Bools] = {}
    for net in space.nets:
        if net.crossing and net.tensor in states:
            fine = net.sources[net.makes] == states[net.tensor]
            found[net.producer] = found.get(net.producer, fine) & fine
    return found


def variants(space: Space, graph: Graph, options: Options, mode: str) -> tuple[Variant, ...]:
    """One Variant per template, in the order of the model."""
    found: dict[str, dict[str, OpSignature]] = {}
    for choice, option in zip(space.choices, options, strict=True):
        for one in choice.ops:
            inner = one.op.name.removeprefix(one.op.block + ".")
            template = graph.templates[one.op.block]
            found.setdefault(template, {})[inner] = one.signature(option).document
    return tuple(
        Variant(template=template, signatures=dict(sorted(found[template].items())), recompute=mode)
        for template in dict.fromkeys(graph.templates[block] for block in graph.blocks)
    )
