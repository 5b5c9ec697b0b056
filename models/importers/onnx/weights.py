"""Weights: the initializers that are trained, and how each starts."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod, sqrt
from typing import NamedTuple

import numpy as np

from millrace.models.errors import ModelError
from millrace.models.importers.attention_masks import MASK_BELOW
from millrace.models.importers.onnx.onnx_file import Initializer, OnnxNode, OnnxSource
from millrace.models.importers.onnx.values import Array

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
    """Start of a parameter's values, and whether its dims of size one matter to its reader."""

    init: str = "normal"
    std: float = TABLE_STD
    decay: bool = True
    keeps_ones: bool = False


class InitializerSlice(NamedTuple):
    """Range of places of one dim of an initializer: `size` of them from `start` on."""

    dim: int
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Source of a variable's value: an initializer, or a piece of it, seen in `shape`."""

    initializer: str
    shape: tuple[int, ...]
    piece: InitializerSlice | None = None

    def value(self, array: Array) -> Array:
        """Return the variable's value (or its gradient), given the initializer's."""
        values = np.asarray(array, np.float32)
        if self.piece is not None:
            places = range(self.piece.start, self.piece.start + self.piece.size)
            values = np.take(values, places, self.piece.dim)
        return values.reshape(self.shape)


SCALE = Role(init="ones", decay=False)
SHIFT = Role(init="zeros", decay=False)


def trained_roles(source: OnnxSource, constant_inputs: Container[str] = ()) -> dict[str, Role]:
    """Role of every initializer that is a parameter, in the order of their use.

    `constant_inputs` are inputs of the graph whose values are constants.
    """
    data = {entry.name for entry in source.inputs if entry.name not in constant_inputs}
    views = {
        name: name for name, initializer in source.initializers.items() if _candidate(initializer)
    }
    numbers = {
        name for name, initializer in source.initializers.items() if prod(initializer.shape) == 1
    }
    samples = next((entry.dims[0] for entry in source.inputs if entry.dims), 0)
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
        for position, name in enumerate(node.inputs):
            if name not in views:
                continue
            initializer = source.initializers[views[name]]
            if position == 0 and not on_data and node.kind in _VIEWS | _PIECES:
                views.update(dict.fromkeys(node.outputs, views[name]))
                shifted.update(node.outputs if name in shifted else ())
            if not on_data and _with_a_number(node, position, numbers) and _computed(initializer):
                views.update(dict.fromkeys(node.outputs, views[name]))
                shifted.update(node.outputs if node.kind in ("Add", "Sub") else ())
            if not on_data or initializer.name in roles or _is_initial_state(initializer, samples):
                continue
            others = {kinds.get(other, "") for other in node.inputs if other != name}
            role = _role(node, position, initializer, others)
            if role is not None:
                roles[initializer.name] = SHIFT if name in shifted else role
    return roles


def untrained(
    source: OnnxSource, roles: Container[str], output: str, frozen: Container[str]
) -> tuple[str, ...]:
    """Return parameters, by the exporter's word, that the output depends on as constants."""
    makers = {name: node for node in source.nodes for name in node.outputs if name}
    pending, read = [output], {output}
    while pending:
        node = makers.get(pending.pop())
        inside = [] if node is None else [name for name in node.inputs if name not in read]
        pending += inside
        read.update(inside)
    return tuple(
        name
        for name, initializer in source.initializers.items()
        if initializer.trained and initializer.floating and name in read
        if name not in roles and name not in frozen
    )


def matching(source: OnnxSource, patterns: Sequence[str]) -> frozenset[str]:
    """Return the floating initializers that patterns name (`*` and `?` as in file names).

    Raises
    ------
    ModelError
        A pattern names none.
    """
    names = [name for name, initializer in source.initializers.items() if initializer.floating]
    matched: set[str] = set()
    for pattern in patterns:
        some = [name for name in names if fnmatchcase(name, pattern)]
        if not some:
            shown = ", ".join(f"`{name}`" for name in names[:4])
            raise ModelError(
                f"frozen: no weight is called `{pattern}`; the first are {shown or 'none at all'}"
            )
        matched.update(some)
    return frozenset(matched)


def _is_number(node: OnnxNode, numbers: Container[str]) -> bool:
    """True if a node makes a single value, of such alone."""
    if node.kind == "Constant":
        kinds = ("value", "value_float", "value_int")
        number = next(
            (node.attributes[attribute] for attribute in kinds if attribute in node.attributes),
            None,
        )
        return number is not None and np.size(number) == 1
    computes = node.kind in _ARITHMETIC | {"Cast", "CastLike", "Identity"}
    return computes and all(name in numbers for name in node.inputs)


def _with_a_number(node: OnnxNode, position: int, numbers: Container[str]) -> bool:
    """True if a node joins its input at `position` with nothing but a number."""
    others = [name for index, name in enumerate(node.inputs) if index != position]
    return node.kind in _ARITHMETIC and all(name in numbers for name in others)


def _computed(initializer: Initializer) -> bool:
    """True if what is computed of an initializer alone is trained.

    That is a scale or shift, where the exporter noted nothing. Masks and tables of angles are
    computed so as well.
    """
    several = sum(size > 1 for size in initializer.shape)
    return initializer.trained is True or several == 1


def _candidate(initializer: Initializer) -> bool:
    if not initializer.floating or not initializer.shape or not prod(initializer.shape):
        return False
    return initializer.trained is not False


def _role(node: OnnxNode, position: int, initializer: Initializer, others: set[str]) -> Role | None:
    """Role of an initializer in a node that joins it with data; None where it is not trained.

    `others` are the kinds of the nodes that make the other inputs.
    """
    shape = initializer.shape
    kind = node.kind
    if kind in _NORMS:
        return (None, SCALE, SHIFT, None, None)[position] if position < 5 else None
    if kind == "Gemm":
        rows = 1 if node.attributes.get("transB" if position else "transA") else 0
        return SHIFT if position == 2 else _product(shape[rows : rows + 1])
    if kind == "Conv":
        return SHIFT if position == 2 else _product(shape[1:], gain=2.0)
    if kind == "MatMul":
        return _product(shape[-2:-1])
    if kind == "Gather":
        return Role(keeps_ones=True) if position == 0 else None
    if kind == "PRelu":
        return Role(std=0.25, decay=False) if position == 1 else None
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


def _is_initial_state(initializer: Initializer, samples: int | str) -> bool:
    """True if a recurrence begins with an initializer: one value throughout, for every sample."""
    if initializer.trained is not None or initializer.array is None or samples == 1:
        return False
    first = initializer.array.flat[0]
    return initializer.shape[0] == samples and bool(np.all(initializer.array == first))


def _product(contracted: tuple[int, ...], gain: float = 1.0) -> Role:
    """Role of deviation sqrt(gain / inputs); the gain is 2 before a ReLU.

    He et al., arXiv 1502.01852, section 2.2.
    """
    return Role(std=sqrt(gain / max(prod(contracted), 1)), keeps_ones=True)


def kept_shape(shape: Sequence[int], role: Role) -> tuple[int, ...]:
    """Return the shape of our variable: the initializer's, without ones that only broadcast."""
    return tuple(size for size in shape if size > 1 or role.keeps_ones)


def embedded_rows(source: OnnxSource) -> dict[str, int]:
    """Number of rows of the table, per integer input that looks rows up in one."""
    rows: dict[str, int] = {}
    ids = {entry.name: entry.name for entry in source.inputs if not entry.floating}
    for node in source.nodes:
        if node.kind in _VIEWS and node.inputs and node.inputs[0] in ids:
            ids.update(dict.fromkeys(node.outputs, ids[node.inputs[0]]))
        if node.kind == "Gather" and len(node.inputs) == 2 and node.inputs[1] in ids:
            table = source.initializers.get(node.inputs[0])
            if table is not None and table.shape:
                rows[ids[node.inputs[1]]] = table.shape[0]
    return rows
