"""Variants: from the options of a solved block program to what a Plan holds and stages need."""

from millrace.models.arrays import Bools
from millrace.models.graph import Graph, Phase
from millrace.models.recompute import NONE
from millrace.planner.plan import OpSignature, Variant
from millrace.planner.search.blocks.strategies import StrategySpace

Options = tuple[int, ...]
Handover = tuple[tuple[str, int], ...]
"""Every tensor that blocks hand on, with the state in which it is made."""


def handover(space: StrategySpace, options: Options) -> Handover:
    """States of the tensors that blocks hand on; blocks alike in these mix without more boxing.

    What a reader wants is boxed, and counted, where it reads: only what is made has to agree.

    Parameters
    ----------
    space : StrategySpace
        Choices and edges of the block program.
    options : tuple of int
        Option of each choice, as the space numbers them.

    Returns
    -------
    tuple of (str, int)
        Each tensor that crosses from block to block, and the number of its nd-SBP (`sbp_codes.py`).
    """
    return tuple(
        (edge.tensor, int(edge.sources[edge.source_of[options[edge.producer]]]))
        for edge in space.edges
        if edge.crossing
    )


def boundary_masks(space: StrategySpace, wanted: Handover) -> dict[int, Bools]:
    """Mask of the options that hand tensors on in the wanted states, by choice: [O] each.

    Parameters
    ----------
    space : StrategySpace
        Choices and edges of the block program.
    wanted : tuple of (str, int)
        Tensor and the state in which it shall be made, as `handover` gives them. Tensors that are
        not named may be made in any.

    Returns
    -------
    dict of int to bool array (O,)
        Only choices that make a tensor named.
    """
    states = dict(wanted)
    masks: dict[int, Bools] = {}
    for edge in space.edges:
        if edge.crossing and edge.tensor in states:
            fine = edge.sources[edge.source_of] == states[edge.tensor]
            masks[edge.producer] = masks.get(edge.producer, fine) & fine
    return masks


def variants(
    space: StrategySpace, graph: Graph, options: Options, mode: str
) -> tuple[Variant, ...]:
    """Variants, one per template, in the order of the model.

    Parameters
    ----------
    space : StrategySpace
        Space of the program that was solved; its ops stand for those of all blocks alike.
    graph : Graph
        Training graph of all blocks, with the template of each.
    options : tuple of int
        Option of each choice, as the space numbers them.
    mode : str
        Recomputation that the program was solved for: none, selective or full; a template in which
        it makes nothing again has none.
    """
    again: set[str] = set()
    signatures: dict[str, dict[str, OpSignature]] = {}
    for choice, option in zip(space.choices, options, strict=True):
        for op_options in choice.ops:
            inner = op_options.op.name.removeprefix(op_options.op.block + ".")
            template = graph.templates[op_options.op.block]
            if op_options.op.phase is Phase.RECOMPUTE:
                again.add(template)
            signatures.setdefault(template, {})[inner] = op_options.signature(option).document
    return tuple(
        Variant(
            template=template,
            signatures=dict(sorted(signatures[template].items())),
            recompute=mode if template in again else NONE,
        )
        for template in dict.fromkeys(graph.templates[block] for block in graph.blocks)
    )
