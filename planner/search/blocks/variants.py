"""Variants: from the options of a solved block program to what a Plan holds and stages need."""

from millrace.models.arrays import Bools
from millrace.models.graph import Graph
from millrace.planner.plan import OpSignature, Variant
from millrace.planner.search.blocks.strategies import StrategySpace

Options = tuple[int, ...]
Handover = tuple[tuple[str, int], ...]
"""Every tensor that blocks hand on, with the state in which it is made."""


def handover(space: StrategySpace, options: Options) -> Handover:
    """States of the tensors that blocks hand on; blocks alike in these mix without more boxing.

    What a reader wants is boxed, and counted, where it reads: only what is made has to agree.
    """
    return tuple(
        (net.tensor, int(net.sources[net.makes[options[net.producer]]]))
        for net in space.nets
        if net.crossing
    )


def boundary_masks(space: StrategySpace, wanted: Handover) -> dict[int, Bools]:
    """Mask of the options that hand tensors on in the wanted states, by choice: [O] each."""
    states = dict(wanted)
    masks: dict[int, Bools] = {}
    for net in space.nets:
        if net.crossing and net.tensor in states:
            fine = net.sources[net.makes] == states[net.tensor]
            masks[net.producer] = masks.get(net.producer, fine) & fine
    return masks


def variants(
    space: StrategySpace, graph: Graph, options: Options, mode: str
) -> tuple[Variant, ...]:
    """Variants, one per template, in the order of the model."""
    signatures: dict[str, dict[str, OpSignature]] = {}
    for choice, option in zip(space.choices, options, strict=True):
        for op_options in choice.ops:
            inner = op_options.op.name.removeprefix(op_options.op.block + ".")
            template = graph.templates[op_options.op.block]
            signatures.setdefault(template, {})[inner] = op_options.signature(option).document
    return tuple(
        Variant(
            template=template, signatures=dict(sorted(signatures[template].items())), recompute=mode
        )
        for template in dict.fromkeys(graph.templates[block] for block in graph.blocks)
    )
