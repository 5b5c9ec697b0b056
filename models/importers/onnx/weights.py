"""Which initializers are trained, and how each starts.

An ONNX file does not say which of its tensors are trained. Exporters that do (torch.onnx.export
notes parameter or buffer) are believed; else a floating initializer of at least one dim is a
parameter when it, or a view of it, or it plus or times a number, is used as one: as a factor of a
matrix product or convolution, as scale or shift of a norm, as the table of a Gather, or joined with
data by Add, Sub, Mul, Div or Concat. A tensor with the large negative values of a mask is none, nor
is a single number that multiplies, nor a table that does (of two dims or more: the angles of rotary
positions).
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod, sqrt
from typing import NamedTuple

import numpy as np

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.reading import Initializer, Node, Source
from millrace.models.importers.onnx.values import Array

MASK_BELOW = -1e4
"""Additive masks hide a score with this or less; no trained value is so large."""
TABLE_STD = 0.02
"""Initial deviation of tables and positions: GPT-2's (see `millrace.models.zoo.gpt`)."""

_VIEWS = frozenset(
    ("Identity", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Cast", "Expand")
)
_ARITHMETIC = frozenset(("Add", "Sub", "Mul", "Div", "Neg"))
_PIECES = frozenset(("Slice", "Split", "Gather"))
_NORMS = frozenset(
    (
        "LayerNormalization",
        "BatchNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """How a parameter starts, and whether dims of size one matter to the op that uses it."""

    init: str = "normal"
    std: float = TABLE_STD
    decay: bool = True
    keeps_ones: bool = False


class Piece(NamedTuple):
    """So many places of one dim of an initializer, from `start` on."""

    dim: int
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Where the value of a variable is found: an initializer, or a piece of it, seen in `shape`."""

    initializer: str
    shape: tuple[int, ...]
    piece: Piece | None = None

    def value(self, array: Array) -> Array:
        """Return the variable's value (or its gradient), given the initializer's."""
        found = np.asarray(array, np.float32)
        if self.piece is not None:
            places = range(self.piece.start, self.piece.start + self.piece.size)
            found = np.take(found, places, self.piece.dim)
        return found.reshape(self.shape)


SCALE = Role(init="ones", decay=False)
SHIFT = Role(init="zeros", decay=False)


def trained_roles(source: Source, known: Container[str] = ()) -> dict[str, Role]:
    """Return the role of every initializer that is a parameter, in the order of their use.

    `known` are inputs of the graph whose values are constants.
    """
    data = {entry.name for entry in source.inputs if entry.name not in known}
    views = {name: name for name, found in source.initializers.items() if _candidate(found)}
    numbers = {name for name, found in source.initializers.items() if prod(found.shape) == 1}
    samples = next((one.dims[0] for one in source.inputs if one.dims), 0)
    shifted: set[str] = set()  # such a view plus a number, as the 1 + w of a norm
    kinds: dict[str, str] = {}
    roles: dict[str, Role] = {}
    for node in source.nodes:
        kinds.update(dict.fromkeys(node.outputs, node.kind))
        on_data = any(name in data for name in node.inputs)
        if on_data and node.kind not in ("Shape", "Size"):
            data.update(node.outputs)
        if _is_number(node, numbers):
            numbers.update(node.outputs)
        for at, name in enumerate(node.inputs):
            if name not in views:
                continue
            initializer = source.initializers[views[name]]
            if at == 0 and not on_data and node.kind in _VIEWS | _PIECES:
                views.update(dict.fromkeys(node.outputs, views[name]))
                shifted.update(node.outputs if name in shifted else ())
            if not on_data and _with_a_number(node, at, numbers) and _computed(initializer):
                views.update(dict.fromkeys(node.outputs, views[name]))
                shifted.update(node.outputs if node.kind in ("Add", "Sub") else ())
            if not on_data or initializer.name in roles or _is_begun(initializer, samples):
                continue
            others = {kinds.get(other, "") for other in node.inputs if other != name}
            role = _role(node, at, initializer, others)
            if role is not None:
                roles[initializer.name] = SHIFT if name in shifted else role
    return roles


def untrained(
    source: Source, roles: Container[str], output: str, frozen: Container[str]
) -> tuple[str, ...]:
    """Return parameters, by the exporter's word, that the output depends on as constants."""
    makers = {name: node for node in source.nodes for name in node.outputs if name}
    pending, read = [output], {output}
    while pending:
        node = makers.get(pending.pop())
        inside = [] if node is None else [one for one in node.inputs if one not in read]
        pending += inside
        read.update(inside)
    return tuple(
        name
        for name, found in source.initializers.items()
        if found.trained and found.floating and name in read
        if name not in roles and name not in frozen
    )


def matching(source: Source, patterns: Sequence[str]) -> frozenset[str]:
    """Return the floating initializers that patterns name (`*` and `?` as in file names).

    Raises
    ------
    ModelError
        A pattern names none.
    """
    names = [name for name, found in source.initializers.items() if found.floating]
    found: set[str] = set()
    for pattern in patterns:
        some = [name for name in names if fnmatchcase(name, pattern)]
        if not some:
            shown = ", ".join(f"`{name}`" for name in names[:4])
            raise ModelError(
                f"frozen: no weight is called `{pattern}`; the first are {shown or 'none at all'}"
            )
        found.update(some)
    return frozenset(found)


def _is_number(node: Node, numbers: Container[str]) -> bool:
    """Whether a node makes a single value, of such alone."""
    if node.kind == "Constant":
        kinds = ("value", "value_float", "value_int")
        found = next((node.attributes[one] for one in kinds if one in node.attributes), None)
        return found is not None and np.size(found) == 1
    computes = node.kind in _ARITHMETIC | {"Cast", "CastLike", "Identity"}
    return computes and all(name in numbers for name in node.inputs)


def _with_a_number(node: Node, at: int, numbers: Container[str]) -> bool:
    """Whether a node joins its input `at` with nothing but a number."""
    others = [name for index, name in enumerate(node.inputs) if index != at]
    return node.kind in _ARITHMETIC and all(name in numbers for name in others)


def _computed(initializer: Initializer) -> bool:
    """Whether what is computed of an initializer alone is trained: a scale or shift, if not noted.

    Masks and tables of angles are computed so as well.
    """
    several = sum(size > 1 for size in initializer.shape)
    return initializer.trained is True or several == 1


def _candidate(initializer: Initializer) -> bool:
    if not initializer.floating or not initializer.shape or not prod(initializer.shape):
        return False
    return initializer.trained is not False


def _role(node: Node, at: int, initializer: Initializer, others: set[str]) -> Role | None:
    """Return what an initializer is to a node that joins it with data, None: nothing trained.

    `others` are the kinds of the nodes that make the other inputs.
    """
    shape = initializer.shape
    kind = node.kind
    if kind in _NORMS:
        return (None, SCALE, SHIFT, None, None)[at] if at < 5 else None
    if kind == "Gemm":
        rows = 1 if node.attributes.get("transB" if at else "transA") else 0
        return SHIFT if at == 2 else _product(shape[rows : rows + 1])
    if kind == "Conv":
        return SHIFT if at == 2 else _product(shape[1:], gain=2.0)
    if kind == "MatMul":
        return _product(shape[-2:-1])
    if kind == "Gather":
        return Role(keeps_ones=True) if at == 0 else None
    if kind == "PRelu":
        return Role(std=0.25, decay=False) if at == 1 else None
    if kind not in ("Mul", "Div", "Add", "Sub", "Concat"):
        return None
    added = kind in ("Add", "Sub", "Concat")
    number = prod(shape) == 1 and not (added and others & {"MatMul", "Gemm", "Conv"})
    table = not added and sum(size > 1 for size in shape) > 1
    if initializer.trained is None and (number or table or _is_mask(initializer)):
        return None
    if added:
        return SHIFT if sum(size > 1 for size in shape) <= 1 else Role()
    return SCALE


def _is_mask(initializer: Initializer) -> bool:
    array = initializer.array
    return array is not None and bool(np.any(np.asarray(array) <= MASK_BELOW))


def _is_begun(initializer: Initializer, samples: int | str) -> bool:
    """Whether it is what a recurrence begins with: one value throughout, for every sample."""
    if initializer.trained is not None or initializer.array is None or samples == 1:
        return False
    first = initializer.array.flat[0]
    return initializer.shape[0] == samples and bool(np.all(initializer.array == first))


def _product(contracted: tuple[int, ...], gain: float = 1.0) -> Role:
    """Deviation sqrt(gain / inputs); 2 before a ReLU (He et al., arXiv 1502.01852, section 2.2)."""
    return Role(std=sqrt(gain / max(prod(contracted), 1)), keeps_ones=True)


def kept_shape(shape: Sequence[int], role: Role) -> tuple[int, ...]:
    """Return the shape of our variable: the initializer's, without ones that only broadcast."""
    return tuple(size for size in shape if size > 1 or role.keeps_ones)


def embedded_rows(source: Source) -> dict[str, int]:
    """Return, per integer input that looks rows up in a table, how many rows there are."""
    return dict(_looked_up(source))


def _looked_up(source: Source) -> Iterator[tuple[str, int]]:
    ids = {entry.name: entry.name for entry in source.inputs if not entry.floating}
    for node in source.nodes:
        if node.kind in _VIEWS and node.inputs and node.inputs[0] in ids:
            ids.update(dict.fromkeys(node.outputs, ids[node.inputs[0]]))
        if node.kind == "Gather" and len(node.inputs) == 2 and node.inputs[1] in ids:
            table = source.initializers.get(node.inputs[0])
            if table is not None and table.shape:
                yield ids[node.inputs[1]], table.shape[0]
