"""Token restating: a graph for sequences of any length, made of the graphs for two short ones.

Two traces of one module at different lengths have the same ops; a dim, or a number among the
attributes, that differs grows along a line with the tokens, and is known at any length. A constant
that differs is continued where it counts positions. So a mask never has to be worked out for the
sequence that is asked for.
"""

import base64
import zlib

import msgspec
import numpy as np

from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Op, Tensor


class FixedLengthError(ModelError):
    """A graph that is not known at another length; the message names what is in the way."""


def with_tokens(short: Graph, longer: Graph, tokens: int) -> Graph:
    """Graph for sequences of `tokens` tokens.

    Parameters
    ----------
    short, longer : Graph
        Of one module, traced with fewer and with more tokens.
    tokens : int
        Tokens of a sample.

    Raises
    ------
    FixedLengthError
        The two differ in more than lengths, or a constant cannot be continued.
    """
    line = _Line(short.tokens_per_sample, longer.tokens_per_sample, tokens)
    if len(short.ops) != len(longer.ops):
        raise FixedLengthError(
            f"{len(short.ops)} ops at {line.first} tokens, {len(longer.ops)} at {line.second}"
        )
    pairs = zip(short.ops, longer.ops, strict=True)
    ops = tuple(line.op(op, other) for op, other in pairs)
    tensors = tuple(line.tensor(x, longer.tensor(x.name)) for x in short.tensors)
    return msgspec.structs.replace(short, ops=ops, tensors=tensors, tokens_per_sample=tokens)


class _Line(msgspec.Struct, frozen=True):
    """Two lengths at which numbers were seen, and the one at which they are wanted."""

    first: int
    second: int
    wanted: int

    def number(self, at_first: float, at_second: float, where: str) -> float:
        """Number on the line through two."""
        if at_first == at_second:
            return at_first
        step = (at_second - at_first) / (self.second - self.first)
        value = at_first + step * (self.wanted - self.first)
        if isinstance(at_first, int) and value == round(value):
            return round(value)
        raise FixedLengthError(
            f"`{where}` is {at_first} at {self.first} tokens, {at_second} at "
            f"{self.second}: unknown at {self.wanted}"
        )

    def tensor(self, tensor: Tensor, other: Tensor) -> Tensor:
        """Tensor whose shape is that of two, at the length wanted."""
        if len(tensor.shape) != len(other.shape):
            raise FixedLengthError(f"`{tensor.name}` has other dims at {self.second} tokens")
        sizes = zip(tensor.shape, other.shape, strict=True)
        shape = tuple(int(self.number(*pair, tensor.name)) for pair in sizes)
        return msgspec.structs.replace(tensor, shape=shape)

    def op(self, op: Op, other: Op) -> Op:
        """Op whose attributes are those of two, at the length wanted; data are left out."""
        alike = (op.name, op.kind, op.inputs, op.labels, op.attributes.keys())
        if alike != (other.name, other.kind, other.inputs, other.labels, other.attributes.keys()):
            raise FixedLengthError(f"`{op.name}` is another op at {self.second} tokens")
        attributes = dict(op.attributes)
        for key, value in op.attributes.items():
            beside = other.attributes[key]
            if value == beside:
                continue
            if key == "data" and op.kind == "constant":
                attributes[key] = self._counted(op, str(value), str(beside))
            elif isinstance(value, str) or isinstance(beside, str):
                raise FixedLengthError(f"`{op.name}` has another `{key}` at {self.second} tokens")
            else:
                attributes[key] = self.number(value, beside, op.name)
        return msgspec.structs.replace(op, attributes=attributes)

    def _counted(self, op: Op, value: str, beside: str) -> str:
        """Data of a constant that counts positions, at the length wanted."""
        for dtype in ("<i4", "<f4", "<f8"):
            first, second = (
                np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)
                for text in (value, beside)
            )
            if first.size == self.first and second.size == self.second:
                steps = np.diff(second)
                if (steps == steps[0]).all() and (first == second[: self.first]).all():
                    counted = second[0] + steps[0] * np.arange(self.wanted, dtype=dtype)
                    return base64.b64encode(zlib.compress(counted.tobytes(), 6)).decode()
        raise FixedLengthError(
            f"`{op.name}` is a table of {self.first} positions at "
            f"{self.first} tokens and another at {self.second}"
        )
