"""Lowering: the state of an import, and how ops are added to our graph.

Rules (`rules/`) read the values of a node's inputs here, let dims meet (`unified`) and add ops
whose labels follow from the factors of their operands. Factors that stand together in every operand
of an op become one label. Only `b` and `t` keep their names; all other labels are local to an op.
"""

import base64
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.builder import GraphBuilder
from models.errors import ModelError
from models.graph import Rate
from models.importers.onnx.reading import Node
from models.importers.onnx.values import (
    Array,
    Constant,
    Dim,
    Dims,
    Factor,
    Traced,
    Unknown,
    UnsupportedError,
    Value,
    broadcast_columns,
    size_of,
    unified,
    varying,
)
from models.labels import BATCH, SEQUENCE, parse
from models.ops import Attributes

BLOCK = "model"
_FIXED = (BATCH, SEQUENCE)
_POOL = ("d", "n", "k", "h", "m", "c", "s", "y", "x", "i", "j", "p", "q", "u", "v", "w", "a", "f")


class BlockedError(Exception):
    """An input of a node is unknown; carries what stood in the way."""

    def __init__(self, problems: frozenset[str]) -> None:
        super().__init__()
        self.problems = problems


class Lowering:
    """Values by name, the nodes that made them, and the graph under construction.

    Parameters
    ----------
    builder : GraphBuilder
        The graph, its one block begun.
    nodes : sequence of Node
        The nodes of the file in their order.
    """

    def __init__(self, builder: GraphBuilder, nodes: Sequence[Node]) -> None:
        self.builder = builder
        self.values: dict[str, Value] = {}
        self._producer = {name: node for node in nodes for name in node.outputs if name}
        self._count = 0

    def fresh(self, size: int) -> Factor:
        """Return a factor that no tensor has yet."""
        self._count += 1
        return Factor(f"x{self._count}", size)

    def producer(self, name: str, *kinds: str) -> Node | None:
        """Return the node that makes a tensor, if it is of one of these kinds."""
        node = self._producer.get(name)
        return node if node is not None and node.kind in kinds else None

    def given(self, node: Node, index: int) -> bool:
        """Whether a node has this (optional) input."""
        return index < len(node.inputs) and node.inputs[index] != ""

    def value(self, node: Node, index: int) -> Traced | Constant:
        """Return what is known of an input."""
        if not self.given(node, index):
            raise UnsupportedError(f"lacks input {index}")
        found = self.values.get(node.inputs[index])
        if found is None:
            raise ModelError(f"{node.title} reads `{node.inputs[index]}` before any node makes it")
        if isinstance(found, Unknown):
            raise BlockedError(found.problems)
        return found

    def constant(self, node: Node, index: int) -> Array:
        """Return an input that must be known."""
        found = self.value(node, index)
        if not isinstance(found, Constant):
            raise UnsupportedError(f"input `{node.inputs[index]}` depends on data")
        return found.array

    def optional(self, node: Node, index: int) -> Array | None:
        """Return an input that must be known or left out."""
        return self.constant(node, index) if self.given(node, index) else None

    def traced(self, node: Node, index: int) -> Traced:
        """Return an input once a microbatch, as a tensor of our graph."""
        found = self.value(node, index)
        if isinstance(found, Constant):
            return self.used(self.tensor(found.array, self.name(node, f"constant.{index}")))
        return self.used(found)

    def floating(self, node: Node, index: int) -> Traced:
        """Return an input that must be floating, as `traced`."""
        found = self.traced(node, index)
        if found.ids:
            raise UnsupportedError(f"input `{node.inputs[index]}` is of ids, not floating")
        return found

    def scalar(self, name: str) -> float | None:
        """Return the one value of a known tensor, None where it has several or is not known."""
        found = self.values.get(name)
        if not isinstance(found, Constant) or not found.array.size:
            return None
        if found.array.dtype.kind not in "fiub" or np.any(found.array != found.array.flat[0]):
            return None
        return float(found.array.flat[0])

    def used(self, value: Traced) -> Traced:
        """Bring a parameter or constant to the microbatch; other tensors are there already."""
        if self.builder.tensors[value.tensor].rate is not Rate.STEP:
            return value
        base = value.tensor.removeprefix(f"{BLOCK}.").removesuffix(".cast")
        label = self.written(value.operand)
        count, name = 0, base
        while f"{BLOCK}.{name}.repeat" in self.builder.tensors:
            count += 1
            name = f"{base}.use{count}"
        return replace(value, tensor=self.builder.repeat(value.tensor, name, label))

    def tensor(self, array: Array, name: str, *, squeezed: bool = True) -> Traced:
        """Add a constant to our graph; `squeezed`: dims along which it does not vary go."""
        ids = array.dtype.kind in "iub"
        kept = varying(array) if squeezed else array
        kept_dims = [(self.fresh(n),) if n > 1 or not squeezed else () for n in kept.shape]
        operand = tuple(dim for dim in kept_dims if dim)
        kept = kept.reshape([size_of(dim) for dim in operand])
        uniform = kept.size == 0 or bool(np.all(kept == kept.flat[0]))
        dtype = "int32" if ids else self.builder.precision.variable
        data = "" if uniform else _encoded(kept, dtype)
        value = kept.flat[0].item() if uniform and kept.size else 0
        full = f"{BLOCK}.{self.unique(name)}"
        self.builder.emit(
            "constant",
            full,
            (),
            self.labels((), (operand,), {}, frozenset()),
            shapes=(kept.shape,),
            dtype=dtype,
            attributes={"value": value if ids else _finite(float(value)), "data": data},
        )
        made = Traced(tensor=full, operand=operand, dims=tuple(kept_dims), ids=ids)
        if not ids and dtype != self.builder.precision.compute:
            made = self.cast(made, f"{name}.cast")
        return made

    def cast(self, value: Traced, name: str) -> Traced:
        """Bring a tensor to the dtype of the arithmetic."""
        labels = self.labels((value.operand,), (value.operand,), {}, frozenset())
        full = f"{BLOCK}.{self.unique(name)}"
        dtype = self.builder.precision.compute
        (made,) = self.builder.emit("cast", full, (value.tensor,), labels, dtype=dtype)
        return replace(value, tensor=made, ids=False)

    def name(self, node: Node, suffix: str = "") -> str:
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
        whole: Iterable[Factor] = (),
        names: Mapping[Factor, str] | None = None,
        attributes: Attributes | None = None,
    ) -> Traced:
        """Add an op whose outputs have these factors, and return the first.

        `dims` is how ONNX sees it (default: as it is), `names` fixes labels of some factors.
        """
        operands = tuple(value.operand for value in inputs)
        labels = self.labels(operands, outputs, names or {}, frozenset(whole))
        if _unclear(labels):
            inputs = [self.laid_out(value, _apart(value.operand), name) for value in inputs]
            outputs = [_apart(operand) for operand in outputs]
            operands = tuple(value.operand for value in inputs)
            labels = self.labels(operands, outputs, names or {}, frozenset(whole))
        shapes = tuple(tuple(size_of(dim) for dim in operand) for operand in outputs)
        tensors = tuple(value.tensor for value in inputs)
        unique = self.unique(name)
        made = self.builder.apply(
            kind, unique, tensors, labels, shapes=shapes, attributes=attributes
        )
        seen = outputs[0] if dims is None else tuple(dims)
        return Traced(tensor=made, operand=outputs[0], dims=seen)

    def dropped(self, value: Traced) -> Traced:
        """Take away factors of size one that ONNX does not see."""
        seen = {factor for dim in value.dims for factor in dim}
        if not value.held - seen:
            return value
        operand = _restricted(value.operand, seen)
        name = f"{value.tensor.removeprefix(f'{BLOCK}.')}.squeezed"
        return self.emit("sum", name, (value,), (operand,), dims=value.dims)

    def laid_out(
        self,
        value: Traced,
        operand: Dims,
        name: str,
        names: Mapping[Factor, str] | None = None,
    ) -> Traced:
        """Return the tensor with these factors in these dims, broadcast where it lacks some."""
        value = self.dropped(value)
        wanted = {factor for dim in operand for factor in dim}
        if wanted - value.held:
            value = self.laid_out(value, _restricted(operand, value.held), name, names)
            apart = _apart(operand)
            value = self.emit(
                "broadcast", f"{name}.broadcast", (value,), (apart,), dims=value.dims, names=names
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
        dims = [
            next((d for at, index in column if (d := values[at].dims[index])), ())
            for column in columns
        ]
        held = frozenset[Factor]().union(*(value.held for value in values))
        full = next((value.operand for value in values if value.held == held), None)
        operand = _restricted(dims, held) if full is None else full
        return self.emit(kind, name, values, (operand,), dims=dims)

    def written(self, operand: Dims) -> str:
        """Write the labels of one tensor."""
        return self.labels((), (operand,), {}, frozenset()).removeprefix(" -> ") or "()"

    def labels(
        self,
        inputs: Sequence[Dims],
        outputs: Sequence[Dims],
        names: Mapping[Factor, str],
        whole: frozenset[Factor],
    ) -> str:
        """Write an index expression for operands of factors."""
        merged = _merged((*inputs, *outputs))
        present = {factor for operand in (*inputs, *outputs) for dim in operand for factor in dim}
        taken = {label for factor, label in names.items() if factor in present}
        taken.update(factor.name for factor in present)
        pool = iter(name for name in (*_POOL, *(f"f{n}" for n in range(99))) if name not in taken)
        chosen = {}
        for operand in (*inputs, *outputs):
            for factor in (f for dim in operand for f in dim if f in merged):
                if factor not in chosen:
                    own = factor.name if factor.name in _FIXED else None
                    label = names.get(factor) or own or next(pool)
                    chosen[factor] = label + "!" * any(f in whole for f in merged[factor])

        def written(operand: Dims) -> str:
            texts = []
            for dim in operand:
                kept = [chosen[factor] for factor in dim if factor in merged]
                texts.append(kept[0] if len(kept) == 1 else f"({' '.join(kept)})")
            return " ".join(texts)

        left = ", ".join(written(operand) for operand in inputs)
        if len(inputs) == 1 and not left:
            left = "()"
        return f"{left} -> {', '.join(written(operand) for operand in outputs)}"

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


def _restricted(operand: Iterable[Dim], kept: Iterable[Factor]) -> Dims:
    """The dims with only some of their factors; dims that lose all of them go."""
    allowed = set(kept)
    found = (tuple(factor for factor in dim if factor in allowed) for dim in operand)
    return tuple(dim for dim in found if dim)


def _apart(operand: Dims) -> Dims:
    """Every factor as a dim of its own."""
    return tuple((factor,) for dim in operand for factor in dim)


def _unclear(labels: str) -> bool:
    """Whether shapes alone do not give every label its size, as `models.labels.bind` needs."""
    dims = [set(dim) for operand in parse(labels).operands for dim in operand]
    known: set[str] = set()
    while settled := [dim for dim in dims if len(dim - known) == 1]:
        known.update(*settled)
    return any(dim - known for dim in dims)


def _merged(operands: Sequence[Dims]) -> dict[Factor, Dim]:
    """Factors that stand together wherever they occur, under the first of each group."""
    following: dict[Factor, set[Factor | None]] = {}
    preceding: dict[Factor, set[Factor | None]] = {}
    for operand in operands:
        for dim in operand:
            for before, factor in zip((None, *dim), (*dim, None), strict=True):
                if factor is not None:
                    preceding.setdefault(factor, set()).add(before)
                if before is not None:
                    following.setdefault(before, set()).add(factor)
    groups: dict[Factor, Dim] = {}
    head: dict[Factor, Factor] = {}
    for operand in operands:
        for factor in (f for dim in operand for f in dim):
            if factor in head:
                continue
            (before, *others) = preceding[factor]
            together = before is not None and not others and following[before] == {factor}
            if together and before is not None and not {before.name, factor.name} & set(_FIXED):
                head[factor] = head[before]
                groups[head[before]] += (factor,)
            else:
                head[factor] = factor
                groups[factor] = (factor,)
    return groups


def _encoded(array: Array, dtype: str) -> str:
    """Values as the op `constant` keeps them: base64 of zlib of little-endian values."""
    plain: Any = np.ascontiguousarray(array.astype(np.dtype(dtype).newbyteorder("<")))
    return base64.b64encode(zlib.compress(_without_infinity(plain).tobytes())).decode()


def _without_infinity(array: Array) -> Array:
    limits = np.finfo(array.dtype) if array.dtype.kind == "f" else None
    return array if limits is None else np.clip(array, limits.min, limits.max)


def _finite(value: float) -> float:
    """JSON has no infinity; the largest float32 hides a score as well."""
    largest = float(np.finfo(np.float32).max)
    return min(max(value, -largest), largest)
