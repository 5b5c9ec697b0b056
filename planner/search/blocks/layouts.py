"""Layouts: the SBPs that tensors of a space take, over all its options, by what is alike.

Boxing is priced for all tensors that are alike at once, between all states that any of them takes.
"""

from functools import lru_cache

import numpy as np

from millrace.models.graph import ITEMSIZE, Rate, Tensor
from millrace.models.labels import parse
from millrace.planner.rings import RINGS
from millrace.planner.sbp import parse_nd_sbp
from millrace.planner.search.blocks.space import Net as SpaceNet
from millrace.planner.search.blocks.space import OpOptions, Space
from millrace.planner.search.blocks.states import WHOLE, Ints, digits, number_of
from millrace.planner.signatures import sub_signatures


def likeness(tensor: Tensor) -> tuple[object, ...]:
    """Return what tensors have in common whose boxing costs the same, row by row."""
    return tensor.shape, tensor.batch_dim, ITEMSIZE[tensor.dtype], tensor.rate is Rate.STEP


@lru_cache(maxsize=8)  # of the spaces of one search; they are priced more than once
def ends(space: Space) -> dict[tuple[object, ...], tuple[Ints, Ints]]:
    """Return all sources and targets of the nets whose tensors are alike: boxed together, once."""
    tensors = space.folded.graph.tensors_by_name
    alike: dict[tuple[object, ...], list[SpaceNet]] = {}
    for net in space.nets:
        alike.setdefault(likeness(tensors[net.tensor]), []).append(net)
    return {
        key: (
            np.unique(np.concatenate([net.sources for net in nets])),
            np.unique(np.concatenate([net.targets for net in nets])),
        )
        for key, nets in alike.items()
    }


@lru_cache(maxsize=8)
def alphabets(space: Space) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Return, per number of dims, the digits that tensors take on each axis, and B."""
    tensors = space.folded.graph.tensors_by_name
    found: dict[int, list[set[int]]] = {}

    def note(ndim: int, states: Ints) -> None:
        sets = found.setdefault(ndim, [{WHOLE} for _ in range(space.axes)])
        for axis, row in enumerate(digits(states, space.axes)):
            sets[axis].update(row.tolist())

    def note_parts(one: OpOptions, option: int) -> None:
        """What the parts of an extra signature read and make."""
        for operand, states in enumerate(one.states):
            name = (*one.op.inputs, *one.op.outputs)[operand]
            note(len(tensors[name].shape), states[option : option + 1])
        document = one.signature(option).document
        for part, signature in sub_signatures(one.op.kind, one.op.labels, document):
            operands = parse(part.labels).operands
            texts = (*signature.inputs, *signature.outputs)
            for operand_labels, text in zip(operands, texts, strict=True):
                note(len(operand_labels), np.array([number_of(parse_nd_sbp(text))]))

    for net in space.nets:
        ndim = len(tensors[net.tensor].shape)
        note(ndim, net.sources)
        note(ndim, net.targets)
    for choice in space.choices:
        for one in choice.ops:
            if one.op.kind not in RINGS:
                for option in np.flatnonzero(one.expanded).tolist():
                    note_parts(one, option)
    return {ndim: tuple(tuple(sorted(one)) for one in sets) for ndim, sets in found.items()}
