"""Call: one op to be worked out, and its operands brought to labels.

Everything here is float64 NumPy, from the definitions of the ops; of the code under test only the
documents and the parser of labels are used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.models.arrays import Array
from millrace.models.labels import Expression, Operand, shape_of

Outputs = Array | tuple[Array, ...]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def flat(operand: Operand) -> tuple[str, ...]:
    """The labels of an operand, out of their groups."""
    return tuple(label for dim in operand for label in dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One op, and the size of every label of its."""

    expression: Expression
    sizes: Mapping[str, int]
    attributes: Mapping[str, Any]

    def labels_in(self, index: int) -> tuple[str, ...]:
        """The labels of an input."""
        return flat(self.expression.inputs[index])

    def labels_out(self, index: int = 0) -> tuple[str, ...]:
        """The labels of an output."""
        return flat(self.expression.outputs[index])

    def shape_out(self, index: int = 0) -> tuple[int, ...]:
        """The shape of an output."""
        return shape_of(self.expression.outputs[index], self.sizes)

    def spread(self, x: Array, labels: Sequence[str]) -> Array:
        """Give every label a dim of its own."""
        return x.reshape([self.sizes[label] for label in labels])

    def aligned(self, x: Array, labels: Sequence[str], target: Sequence[str]) -> Array:
        """Bring an operand's dims to those of `target`, 1 where it lacks a label."""
        here = [label for label in target if label in labels]
        moved = np.transpose(self.spread(x, labels), [labels.index(label) for label in here])
        return moved.reshape([self.sizes[x] if x in here else 1 for x in target])

    def einsum(self, operands: Sequence[tuple[Array, Sequence[str]]], out: Sequence[str]) -> Array:
        """The product of operands (array, labels), summed over what `out` lacks."""
        names = dict.fromkeys(label for _, labels in operands for label in labels)
        letter = dict(zip(names, LETTERS, strict=False))
        text = ",".join("".join(letter[x] for x in labels) for _, labels in operands)
        text += "->" + "".join(letter[x] for x in out)
        return np.asarray(np.einsum(text, *(self.spread(x, labels) for x, labels in operands)))


Definition = Callable[..., Outputs]
"""`definition(call, *inputs)`: the outputs of an op."""
