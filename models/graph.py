"""Graph: what is computed, ops and tensors, with no devices in it.

A graph is written for one microbatch of `batch` samples. Every tensor has a *rate*: once a step
(variables, accumulated gradients) or once a microbatch (activations). `repeat` and `accumulate`
join the two. `batch_dim` says which dim of a tensor grows with the number of samples, so that
`with_batch` can give the same graph for another microbatch size.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Annotated, Any

import msgspec

from millrace.models.errors import ModelError

SCHEMA_VERSION = 1
GLOBAL_BLOCK = "global"


class Rate(StrEnum):
    """Frequency at which a tensor is produced: once a step or once a microbatch."""

    STEP = "step"
    MICROBATCH = "microbatch"


class Phase(StrEnum):
    """The part of a training step to which an op belongs."""

    BEGIN = "begin"  # once a step, before the first microbatch
    FORWARD = "forward"
    RECOMPUTE = "recompute"  # forward ops once more, for the backward pass
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    UPDATE = "update"  # once a step, after the last microbatch

    @property
    def is_gradient(self) -> bool:
        """True if the op computes gradients."""
        return self is Phase.BACKWARD_INPUT or self is Phase.BACKWARD_WEIGHT

    @property
    def is_backward(self) -> bool:
        """True if the op runs in the backward pass: gradients, and what is computed once more."""
        return self.is_gradient or self is Phase.RECOMPUTE

    @property
    def is_forward(self) -> bool:
        """True if a forward graph has it: in the forward pass, or once before it."""
        return self is Phase.BEGIN or self is Phase.FORWARD


FLOAT8 = "float8"  # any 8-bit form; what a product makes of it says its `arithmetic`
ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4}
ITEMSIZE |= {FLOAT8: 1}


class Tensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One logical (whole) tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    rate: Rate = Rate.MICROBATCH
    batch_dim: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return prod(self.shape) * ITEMSIZE[self.dtype]


class Op(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One op: a row of the op table applied to named tensors.

    `labels` is the op's index expression (`b t k, k n -> b t n`), see `millrace.models.labels`.
    `block` names the repeated piece of the model that holds the op (`h.3`); `global` means every
    stage.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    labels: str
    block: str
    phase: Phase = Phase.FORWARD
    attributes: dict[str, int | float | str | bool] = {}

    @property
    def trains(self) -> bool:
        """True if the op is a variable that training changes."""
        return self.kind == "variable" and not self.attributes.get("frozen", False)


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Ops in topological order and the tensors they join.

    `blocks` lists the blocks in the order of the forward pass; blocks of one `template` are equal
    in structure (op and tensor names differ in the block's prefix only).
    """

    schema_version: Annotated[int, msgspec.Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = (
        SCHEMA_VERSION
    )
    name: str
    batch: int
    tokens_per_sample: int
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    blocks: tuple[str, ...]
    templates: dict[str, str]

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called `name`; raises ModelError when there is none."""
        try:
            return self.tensors_by_name[name]
        except KeyError:
            raise ModelError(f"graph `{self.name}` has no tensor `{name}`") from None

    @cached_property
    def tensors_by_name(self) -> dict[str, Tensor]:
        """Tensors by name; the mapping is made once and is not to be changed."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def makers(self) -> dict[str, Op]:
        """Op that makes each tensor; the mapping is made once and is not to be changed."""
        return {name: op for op in self.ops for name in op.outputs}

    @property
    def parameter_count(self) -> int:
        """Number of values of all variables, frozen ones too."""
        return self._values_of(op for op in self.ops if op.kind == "variable")

    @property
    def trained_count(self) -> int:
        """Number of values of the variables that are trained."""
        return self._values_of(op for op in self.ops if op.trains)

    def _values_of(self, ops: Iterable[Op]) -> int:
        tensors = self.tensors_by_name
        return sum(prod(tensors[op.outputs[0]].shape) for op in ops)

    def validate(self) -> "Graph":
        """Return the graph itself once it is known to be well formed.

        Raises
        ------
        ModelError
            A name is used twice, an input is read before it is produced, a tensor has no producer
            or more than one, a dtype or a batch dim that there is not, or an op's block is not one
            of the graph's blocks.
        """
        tensors_by_name = self.tensors_by_name
        self._check_tensors()
        if len(tensors_by_name) != len(self.tensors):
            raise ModelError(f"graph `{self.name}` declares a tensor twice")
        seen: set[str] = set()
        names: set[str] = set()
        for op in self.ops:
            if op.name in names:
                raise ModelError(f"graph `{self.name}` has two ops called `{op.name}`")
            names.add(op.name)
            if op.block != GLOBAL_BLOCK and op.block not in self.templates:
                raise ModelError(f"op `{op.name}` lies in block `{op.block}`, which is not listed")
            for name in op.inputs:
                if name not in seen:
                    raise ModelError(f"op `{op.name}` reads `{name}` before any op produces it")
            for name in op.outputs:
                if name in seen:
                    raise ModelError(f"op `{op.name}` produces `{name}`, which exists already")
                if name not in tensors_by_name:
                    raise ModelError(f"op `{op.name}` produces `{name}`, which is not declared")
                seen.add(name)
        if unused := sorted(set(tensors_by_name) - seen):
            raise ModelError(f"graph `{self.name}` declares `{unused[0]}`, which no op produces")
        return self

    def _check_tensors(self) -> None:
        """Raise ModelError where a tensor's dtype or batch dim is none."""
        if self.batch < 1:
            raise ModelError(f"graph `{self.name}` is for {self.batch} samples: expected 1 or more")
        for tensor in self.tensors:
            if tensor.dtype not in ITEMSIZE:
                raise ModelError(
                    f"tensor `{tensor.name}` has dtype `{tensor.dtype}`; choose one of "
                    f"{', '.join(ITEMSIZE)}"
                )
            if tensor.batch_dim is not None and not 0 <= tensor.batch_dim < len(tensor.shape):
                raise ModelError(
                    f"tensor `{tensor.name}` has {len(tensor.shape)} dims, and batch_dim "
                    f"{tensor.batch_dim} is none of them"
                )


def scaled(tensor: Tensor, before: int, batch: int) -> Tensor:
    """Tensor of a graph for microbatches of `before` samples as it is for `batch`.

    Parameters
    ----------
    tensor : Tensor
        Returned as it is where its `batch_dim` is None.
    before : int
        Samples of a microbatch of its graph; divides the length of its batch dim.
    batch : int
        Samples of a microbatch wanted.
    """
    if tensor.batch_dim is None:
        return tensor
    shape = list(tensor.shape)
    shape[tensor.batch_dim] = shape[tensor.batch_dim] // before * batch
    return msgspec.structs.replace(tensor, shape=tuple(shape))


def with_batch(graph: Graph, batch: int) -> Graph:
    """Same graph for microbatches of `batch` samples: only shapes of tensors differ.

    Parameters
    ----------
    graph : Graph
        Written for microbatches of any size.
    batch : int
        Samples of a microbatch, 1 or more.

    Raises
    ------
    ModelError
        `batch` is below 1.
    """
    if batch <= 0:
        raise ModelError(f"batch is {batch}: a microbatch holds at least one sample")

    tensors = tuple(scaled(tensor, graph.batch, batch) for tensor in graph.tensors)
    return msgspec.structs.replace(graph, batch=batch, tensors=tensors)


def restricted(
    graph: Graph,
    blocks: Sequence[str],
    stand_in: Callable[[str, str], str | None],
    ops: Iterable[Op] | None = None,
) -> Graph:
    """Return the graph of some blocks, which read one another in place of those left out.

    Parameters
    ----------
    graph : Graph
        The whole graph.
    blocks : sequence of str
        The blocks that stay, in order; the global block's ops stay too.
    stand_in : callable
        By block that reads (the global one too) and block left out: the block that is read instead,
        of the same template; the one left out itself where the reading is to stay, None to drop it.
    ops : iterable of Op, optional
        The ops that stay, in order, where they are at hand.
    """
    staying = {GLOBAL_BLOCK, *blocks}
    left_ops: list[Op] = []
    names: dict[str, None] = {}  # of tensors
    for op in graph.ops if ops is None else ops:
        if op.block not in staying:
            continue
        inputs: list[str] = []
        for name in op.inputs:
            home = graph.makers[name].block
            near = home if home in staying else stand_in(op.block, home)
            if near is not None:
                inputs.append(name if near == home else near + name.removeprefix(home))
        if tuple(inputs) != op.inputs:
            op = msgspec.structs.replace(op, inputs=tuple(inputs))
        left_ops.append(op)
        names |= dict.fromkeys(op.outputs)
        if op.block != GLOBAL_BLOCK:
            names |= dict.fromkeys(inputs)
    return msgspec.structs.replace(
        graph,
        ops=tuple(left_ops),
        tensors=tuple(graph.tensors_by_name[name] for name in names),
        blocks=tuple(blocks),
        templates={block: graph.templates[block] for block in blocks},
    )


def beyond(blocks: Sequence[str], reader: str, home: str) -> Sequence[str]:
    """Blocks from `home` on, as `reader` sees them: nearest first, away from it.

    Parameters
    ----------
    blocks : sequence of str
        All blocks of a graph, in the order of the forward pass.
    reader : str
        Block that reads a tensor; one of `blocks`, so not the global block.
    home : str
        Block that makes the tensor, the first one returned.

    Returns
    -------
    sequence of str
        Up to the last block where `home` lies behind `reader`, else back to the first.

    Raises
    ------
    ValueError
        One of the two is not in `blocks`.
    """
    place = blocks.index(home)
    return blocks[place:] if place > blocks.index(reader) else blocks[place::-1]


def to_json(document: Any) -> bytes:
    """Encode any of the documents (Graph, Plan, ActorGraph, Trace, Cluster, profile)."""
    return msgspec.json.encode(document, order="deterministic")
