"""Tensor states: the SBPs that tensors of a space take, over all its options, by likeness.

Boxing is priced for all tensors that are alike at once, between all states that any of them takes.
"""

from functools import lru_cache

import numpy as np

from millrace.models.arrays import Ints
from millrace.models.graph import ITEMSIZE, Rate, Tensor
from millrace.models.labels import bind, parse
from millrace.planner.ring_attention import RINGS
from millrace.planner.sbp import parse_nd_sbp
from millrace.planner.search.blocks.sbp_codes import REPLICATED, digits, number_of
from millrace.planner.search.blocks.strategies import OpStrategies, ReshardingEdge, StrategySpace
from millrace.planner.signatures import sub_signatures


def likeness(tensor: Tensor) -> tuple[object, ...]:
    """Key that tensors share whose boxing costs the same, row by row."""
    return tensor.shape, tensor.batch_dim, ITEMSIZE[tensor.dtype], tensor.rate is Rate.STEP


@lru_cache(maxsize=8)  # a search has few spaces, and prices each more than once
def ends(space: StrategySpace) -> dict[tuple[object, ...], tuple[Ints, Ints]]:
    """Sources and targets of all edges of alike tensors (`likeness`): boxed together, once."""
    tensors = space.folded.graph.tensors_by_name
    alike: dict[tuple[object, ...], list[ReshardingEdge]] = {}
    for edge in space.edges:
        alike.setdefault(likeness(tensors[edge.tensor]), []).append(edge)
    return {
        key: (
            np.unique(np.concatenate([edge.sources for edge in edges])),
            np.unique(np.concatenate([edge.targets for edge in edges])),
        )
        for key, edges in alike.items()
    }


@lru_cache(maxsize=8)
def alphabets(space: StrategySpace) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Digits that tensors take on each axis, and B, by their number of dims."""
    tensors = space.folded.graph.tensors_by_name
    digits_by_ndim: dict[int, list[set[int]]] = {}

    def note(ndim: int, states: Ints) -> None:
        sets = digits_by_ndim.setdefault(ndim, [{REPLICATED} for _ in range(space.axes)])
        for axis, row in enumerate(digits(states, space.axes)):
            sets[axis].update(row.tolist())

    def note_parts(op_options: OpStrategies, option: int) -> None:
        """Note the states that an extra signature and its parts read and make."""
        for operand, states in enumerate(op_options.states):
            name = (*op_options.op.inputs, *op_options.op.outputs)[operand]
            note(len(tensors[name].shape), states[option : option + 1])
        document = op_options.signature(option).document
        for part, signature in sub_signatures(op_options.op.kind, op_options.op.labels, document):
            operands = parse(part.labels).operands
            texts = (*signature.inputs, *signature.outputs)
            for operand_labels, text in zip(operands, texts, strict=True):
                note(len(operand_labels), np.array([number_of(parse_nd_sbp(text))]))

    for edge in space.edges:
        ndim = len(tensors[edge.tensor].shape)
        note(ndim, edge.sources)
        note(ndim, edge.targets)
    for choice in space.choices:
        for op_options in choice.ops:
            if op_options.op.kind not in RINGS:
                for option in np.flatnonzero(op_options.expanded).tolist():
                    note_parts(op_options, option)
    return {
        ndim: tuple(tuple(sorted(digit_set)) for digit_set in sets)
        for ndim, sets in digits_by_ndim.items()
    }


@lru_cache(maxsize=4096)
def label_sizes_of(labels: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Sizes of all labels of an op, for undivided operands of these shapes."""
    expression = parse(labels)
    inputs = len(expression.inputs)
    sizes = bind(expression, shapes[:inputs], shapes[inputs:])
    return tuple(sizes[label] for label in expression.labels)
