"""Lowering: the state of an import, and how ops are added to our graph.

Rules (`rules/`) read the values of a node's inputs here, let dims meet (`unified`) and add ops
whose labels follow from the factors of their operands (`labelling.py`).
"""

import base64
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import Rate
from millrace.models.importers.onnx.labelling import (
    apart,
    is_underdetermined,
    labels_of,
    labels_of_tensor,
    restricted,
)
from millrace.models.importers.onnx.onnx_file import OnnxNode, OnnxSource
from millrace.models.importers.onnx.values import (
    Array,
    Constant,
    Dim,
    Dims,
    LabelFactor,
    Traced,
    Unknown,
    UnsupportedNodeError,
    Value,
    broadcast_columns,
    common_dims,
    factors_of,
    size_of,
    unified,
    varying,
)
from millrace.models.importers.onnx.weights import InitializerSlice, Role, WeightSource, kept_shape
from millrace.models.ops import Attributes

BLOCK = "model"


class BlockedError(Exception):
    """An input of a node is unknown; carries what stood in the way."""

    def __init__(self, problems: frozenset[str]) -> None:
        super().__init__()
        self.problems = problems


class OnnxLowering:
    """Values by name, the nodes that made them, and the graph under construction.

    Parameters
    ----------
    builder : GraphBuilder
        The graph, its one block begun.
    source : OnnxSource
        What was read from the file.
    roles : mapping
        The initializers that are trained (`weights.trained_roles`).
    uncut : set of str
        Initializers of which no piece may be a variable.
    frozen : set of str
        Initializers that are not trained.

    Attributes
    ----------
    parameters : dict
        Every variable made so far and where its value is found.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        source: OnnxSource,
        roles: Mapping[str, Role],
        uncut: Set[str],
        frozen: Set[str] = frozenset(),
    ) -> None:
        self.builder = builder
        self.source = source
        self.roles = roles
        self.values: dict[str, Value] = {}
        self.parameters: dict[str, WeightSource] = {}
        self.uncut, self.frozen = uncut, frozen
        self._producer = {name: node for node in source.nodes for name in node.outputs if name}
        self._first_names: dict[str, str] = {}
        self._count = 0

    def parameter(self, initializer: str, piece: InitializerSlice | None = None) -> Traced:
        """Add a variable for an initializer that is trained, or for a piece of it."""
        entry, role = self.source.initializers[initializer], self.roles[initializer]
        shape = list(entry.shape)
        if piece is not None:
            shape[piece.dim] = piece.size
        dims: Dims = tuple(
            (self.fresh(size),) if size > 1 or role.keeps_ones else () for size in shape
        )
        operand = tuple(dim for dim in dims if dim)
        suffix = "" if piece is None else f".{piece.start}"
        name = self.unique(re.sub(r"[^A-Za-z0-9_.]+", ".", initializer).strip(".") + suffix)
        variable_shape = kept_shape(shape, role)
        tensor = self.builder.variable(
            name,
            labels_of_tensor(operand),
            variable_shape,
            init=role.init,
            std=role.std,
            decay=role.decay,
            frozen=initializer in self.frozen,
        )
        parameter = WeightSource(initializer=initializer, shape=variable_shape, piece=piece)
        self.parameters[self.full_name(name)] = parameter
        return Traced(tensor=tensor, operand=operand, dims=dims)

    def first_name(self, tensor: str) -> str:
        """Return the name in the file under which a tensor of our graph came about."""
        return self._first_names.get(tensor, "")

    def name_value(self, name: str, value: Value) -> None:
        """Let a tensor of the file have a value."""
        self.values[name] = value
        if isinstance(value, Traced):
            self._first_names.setdefault(value.tensor, name)

    def fresh(self, size: int) -> LabelFactor:
        """Return a factor that no tensor has yet."""
        self._count += 1
        return LabelFactor(f"x{self._count}", size)

    def producer(self, name: str, *kinds: str) -> OnnxNode | None:
        """Return the node that makes a tensor, if it is of one of these kinds."""
        node = self._producer.get(name)
        return node if node is not None and node.kind in kinds else None

    def has_input(self, node: OnnxNode, index: int) -> bool:
        """True if a node has this (optional) input."""
        return index < len(node.inputs) and node.inputs[index] != ""

    def value(self, node: OnnxNode, index: int) -> Traced | Constant:
        """Value of an input, traced or constant; raises BlockedError where it is unknown."""
        if not self.has_input(node, index):
            raise UnsupportedNodeError(f"lacks input {index}")
        input_value = self.values.get(node.inputs[index])
        if input_value is None:
            raise ModelError(f"{node.title} reads `{node.inputs[index]}` before any node makes it")
        if isinstance(input_value, Unknown):
            raise BlockedError(input_value.problems)
        return input_value

    def constant(self, node: OnnxNode, index: int) -> Array:
        """Return an input that must be known."""
        input_value = self.value(node, index)
        if not isinstance(input_value, Constant):
            raise UnsupportedNodeError(f"input `{node.inputs[index]}` depends on data")
        return input_value.array

    def optional(self, node: OnnxNode, index: int) -> Array | None:
        """Return an input that must be known or left out."""
        return self.constant(node, index) if self.has_input(node, index) else None

    def traced(self, node: OnnxNode, index: int) -> Traced:
        """Return an input once a microbatch, as a tensor of our graph."""
        input_value = self.value(node, index)
        if isinstance(input_value, Constant):
            return self.used(self.tensor(input_value.array, self.name(node, f"constant.{index}")))
        return self.used(input_value)

    def floating(self, node: OnnxNode, index: int) -> Traced:
        """Return an input that must be floating, as `traced`."""
        tensor = self.traced(node, index)
        if tensor.ids:
            raise UnsupportedNodeError(f"input `{node.inputs[index]}` is of ids, not floating")
        return tensor

    def scalar(self, name: str) -> float | None:
        """Return the one value of a known tensor, None where it has several or is not known."""
        known_value = self.values.get(name)
        if not isinstance(known_value, Constant) or not known_value.array.size:
            return None
        if known_value.array.dtype.kind not in "fiub" or np.any(
            known_value.array != known_value.array.flat[0]
        ):
            return None
        return float(known_value.array.flat[0])

    def used(self, value: Traced) -> Traced:
        """Bring a parameter or constant to the microbatch; other tensors are there already."""
        if self.builder.tensors[value.tensor].rate is not Rate.STEP:
            return value
        base = value.tensor.removeprefix(f"{BLOCK}.").removesuffix(".cast")
        label = labels_of_tensor(value.operand)
        count, name = 0, base
        while f"{BLOCK}.{name}.repeat" in self.builder.tensors:
            count += 1
            name = f"{base}.use{count}"
        return replace(value, tensor=self.builder.repeat(value.tensor, name, label))

    def tensor(self, array: Array, name: str, *, squeezed: bool = True) -> Traced:
        """Add a constant to our graph; `squeezed`: dims along which it does not vary go."""
        ids = array.dtype.kind in "iub"
        content = varying(array) if squeezed else array
        content_dims = [(self.fresh(n),) if n > 1 or not squeezed else () for n in content.shape]
        operand = tuple(dim for dim in content_dims if dim)
        content = content.reshape([size_of(dim) for dim in operand])
        uniform = content.size == 0 or bool(np.all(content == content.flat[0]))
        dtype = "int32" if ids else self.builder.precision.variable
        data = "" if uniform else _encoded(content, dtype)
        value = content.flat[0].item() if uniform and content.size else 0
        full = f"{BLOCK}.{self.unique(name)}"
        self.builder.emit(
            "constant",
            full,
            (),
            labels_of((), (operand,)),
            shapes=(content.shape,),
            dtype=dtype,
            attributes={"value": value if ids else _finite(float(value)), "data": data},
        )
        constant = Traced(tensor=full, operand=operand, dims=tuple(content_dims), ids=ids)
        if not ids and dtype != self.builder.precision.compute:
            constant = self.cast(constant, f"{name}.cast")
        return constant

    def cast(self, value: Traced, name: str) -> Traced:
        """Bring a tensor to the dtype of the arithmetic."""
        labels = labels_of((value.operand,), (value.operand,))
        full = f"{BLOCK}.{self.unique(name)}"
        dtype = self.builder.precision.compute
        (cast_tensor,) = self.builder.emit("cast", full, (value.tensor,), labels, dtype=dtype)
        return replace(value, tensor=cast_tensor, ids=False)

    def name(self, node: OnnxNode, suffix: str = "") -> str:
        """Return the name of an op made for a node."""
        plain = re.sub(r"[^A-Za-z0-9_.]+", ".", node.name).strip(".") or node.kind.lower()
        return f"{plain}.{suffix}" if suffix else plain

    def emit(
        self,
        kind: str,
        name: str,
        inputs: Sequence[Traced],
        outputs: Sequence[Dims],
        *,
        dims: Iterable[Dim] | None = None,
        whole_factors: Iterable[LabelFactor] = (),
        names: Mapping[LabelFactor, str] | None = None,
        attributes: Attributes | None = None,
    ) -> Traced:
        """Add an op whose outputs have these factors, and return the first.

        `dims` is how ONNX sees it (default: as it is), `names` fixes labels of some factors.
        """
        operands = tuple(value.operand for value in inputs)
        labels = labels_of(operands, outputs, names, whole_factors)
        if is_underdetermined(labels):
            inputs = [self.laid_out(value, apart(value.operand), name) for value in inputs]
            outputs = [apart(operand) for operand in outputs]
            operands = tuple(value.operand for value in inputs)
            labels = labels_of(operands, outputs, names, whole_factors)
        shapes = tuple(tuple(size_of(dim) for dim in operand) for operand in outputs)
        tensors = tuple(value.tensor for value in inputs)
        unique = self.unique(name)
        output = self.builder.apply(
            kind, unique, tensors, labels, shapes=shapes, attributes=attributes
        )
        seen = outputs[0] if dims is None else tuple(dims)
        return Traced(tensor=output, operand=outputs[0], dims=seen)

    def dropped(self, value: Traced) -> Traced:
        """Take away factors of size one that ONNX does not see."""
        if value.operand_factors <= value.seen:
            return value
        operand = restricted(value.operand, value.seen)
        name = f"{value.tensor.removeprefix(f'{BLOCK}.')}.squeezed"
        return self.emit("sum", name, (value,), (operand,), dims=value.dims)

    def laid_out(
        self,
        value: Traced,
        operand: Dims,
        name: str,
        names: Mapping[LabelFactor, str] | None = None,
    ) -> Traced:
        """Return the tensor with these factors in these dims, broadcast where it lacks some."""
        value = self.dropped(value)
        if not value.operand_factors.issuperset(factors_of(operand)):
            value = self.laid_out(value, restricted(operand, value.operand_factors), name, names)
            alone = apart(operand)
            value = self.emit(
                "broadcast", f"{name}.broadcast", (value,), (alone,), dims=value.dims, names=names
            )
        if value.operand == operand:
            return value
        return self.emit(
            "rearrange", f"{name}.rearrange", (value,), (operand,), dims=value.dims, names=names
        )

    def as_seen(self, value: Traced, name: str) -> Traced:
        """Return the tensor laid out as ONNX sees it, without the dims of size one it has not."""
        return self.laid_out(value, tuple(dim for dim in value.dims if dim), name)

    def pointwise(
        self, kind: str, name: str, value: Traced, attributes: Attributes | None = None
    ) -> Traced:
        """Add an op that works on every element by itself."""
        return self.emit(
            kind, name, (value,), (value.operand,), dims=value.dims, attributes=attributes
        )

    def elementwise(self, kind: str, name: str, inputs: Sequence[Traced]) -> Traced:
        """Add an op of several tensors, aligned at the right as ONNX broadcasts."""
        columns = broadcast_columns([len(value.dims) for value in inputs])
        values = [self.dropped(v) for v in unified(inputs, columns, self.fresh)]
        dims = common_dims(values, columns)
        factors = frozenset[LabelFactor]().union(*(value.operand_factors for value in values))
        full = next((value.operand for value in values if value.operand_factors == factors), None)
        operand = restricted(dims, factors) if full is None else full
        return self.emit(kind, name, values, (operand,), dims=dims)

    def full_name(self, name: str) -> str:
        """Return the name that an op of this unique name has in the graph."""
        return f"{BLOCK}.{name}"

    def unique(self, name: str) -> str:
        """Return the name, numbered where an op has it already."""
        count, unique = 0, name
        while f"{BLOCK}.{unique}" in self.builder.tensors:
            count += 1
            unique = f"{name}.{count}"
        return unique


def _encoded(array: Array, dtype: str) -> str:
    """Text in which the op `constant` keeps values: base64 of zlib of little-endian values."""
    plain: Any = np.ascontiguousarray(array.astype(np.dtype(dtype).newbyteorder("<")))
    return base64.b64encode(zlib.compress(_without_infinity(plain).tobytes())).decode()


def _without_infinity(array: Array) -> Array:
    limits = np.finfo(array.dtype) if array.dtype.kind == "f" else None
    return array if limits is None else np.clip(array, limits.min, limits.max)


def _finite(value: float) -> float:
    """Number that JSON can hold: infinity becomes the largest float32, which hides a score too."""
    largest = float(np.finfo(np.float32).max)
    return min(max(value, -largest), largest)
