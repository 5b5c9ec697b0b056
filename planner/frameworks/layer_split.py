"""Layer splits: how frameworks deal out layers to pipeline stages, where the search may do else.

Only the account of memory is made of plans split so: the fullest stage is what a source prints.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import prod

from msgspec.structs import replace

from millrace.models.graph import Phase
from millrace.models.ops import kinds_where
from millrace.planner.frameworks.framework_memory import LayerSplit
from millrace.planner.plan import Plan

# Ops between a variable and what reads it.
ON_THE_WAY = kinds_where(lambda row: row.moves)


def split_layers(plan: Plan, rule: LayerSplit) -> Plan:
    """Plan with its blocks dealt out to chunks by a framework's rule.

    Parameters
    ----------
    plan : Plan
        The plan.
    rule : LayerSplit
        The framework's (`FrameworkMemory.layer_split`).
    """
    return split_by_weight(plan) if rule is LayerSplit.WEIGHT else split_evenly(plan)


def split_evenly(plan: Plan) -> Plan:
    """Plan with as many layers in every chunk.

    Where layers do not divide but do with both ends counted as layers, they are counted so (as
    bigscience ran DeepSpeed, `--pp-partition-method type:transformer|embedding`; torchtitan's
    `generate_split_points` of 2024 comes to the same for 405B); else the plan is as it was.
    """
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    number, layers = len(plan.chunks), len(blocks) - 2
    if layers < number:
        return plan
    if layers % number == 0:
        ends = [1 + layers // number * (k + 1) for k in range(number)]
    elif (layers + 2) % number == 0:
        ends = [(layers + 2) // number * (k + 1) for k in range(number)]
    else:
        return plan
    return _with_ends(plan, ends[:-1])


def split_by_weight(plan: Plan) -> Plan:
    """Plan with blocks dealt out, in their order, by the elements of their matrices.

    A stage takes blocks until their sum exceeds its share (nanotron, `build_model` and
    `get_block_compute_costs`, read 2026-11; that counts keys and values as wide as queries, as its
    published runs have them); tables cost nothing.
    """
    number, tensors = len(plan.chunks), plan.graph.tensors_by_name
    stored = {name for op in plan.graph.ops if op.kind in ON_THE_WAY for name in op.outputs}
    weights: Counter[str] = Counter()
    for op in plan.graph.ops:
        if op.phase is Phase.FORWARD and op.kind == "matmul":
            weights[op.block] += sum(prod(tensors[x].shape) for x in op.inputs if x in stored)
    blocks = [choice.block for chunk in plan.chunks for choice in chunk.blocks]
    done, ends = 0, list[int]()
    for position, block in enumerate(blocks[:-1]):
        done += weights[block]
        if len(ends) < number - 1 and done * number > weights.total() * (len(ends) + 1):
            ends.append(position + 1)
    return _with_ends(plan, ends) if len(ends) == number - 1 else plan


def split_as_given(plan: Plan, chunk_layers: Sequence[int]) -> Plan:
    """Plan with so many layers in each chunk, with the embedding in the first and the loss last.

    Parameters
    ----------
    plan : Plan
        It stays as it is where it has another number of chunks, or none is given.
    chunk_layers : sequence of int
        Layers of every chunk, in model order.
    """
    if len(chunk_layers) != len(plan.chunks):
        return plan
    return _with_ends(plan, [1 + end for end in accumulate(chunk_layers[:-1])])


def _with_ends(plan: Plan, ends: Sequence[int]) -> Plan:
    """Plan with its blocks in chunks that end there, but for the last."""
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    chunks = tuple(
        replace(chunk, blocks=tuple(blocks[start:end]))
        for chunk, start, end in zip(plan.chunks, [0, *ends], [*ends, len(blocks)], strict=True)
    )
    return replace(plan, chunks=chunks)
