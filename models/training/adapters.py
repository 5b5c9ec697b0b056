"""Adapters of low rank beside frozen weights: a forward graph as LoRA fine-tunes it.

Shape legend: k what a weight reads, n what it makes, z the rank.

Notes
-----
Hu et al., "LoRA: low-rank adaptation of large language models", arXiv 2106.09685 (2021), section
4.1: y = x W + (alpha / rank) (x A) B, with W frozen, A drawn at random and B zero at first. Every
matrix between hidden layers has one (`optimizer_updates.hidden_matrices`), an expert its own;
nothing else is trained.
"""

from collections.abc import Mapping
from itertools import count
from math import prod, sqrt
from typing import NamedTuple

from msgspec.structs import replace

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import ITEMSIZE, Graph, Op
from millrace.models.labels import Operand, parse, write
from millrace.models.model_counts import master_weights
from millrace.models.training.optimizer_updates import HiddenMatrix, hidden_matrices

VARIABLE = "float32"  # dtype of what is trained in 16 bits


def adapted(graph: Graph, rank: int, alpha: float = 0.0) -> Graph:
    """Return the forward graph with frozen variables, and an adapter beside each hidden matrix.

    Parameters
    ----------
    graph : Graph
        A forward graph.
    rank : int
        Of the adapters, above 0.
    alpha : float
        What adapters add is multiplied by alpha / rank; 0: as it is.

    Returns
    -------
    Graph
        Product `h.0.mlp.up.matmul` becomes the sum of `h.0.mlp.up.matmul.frozen` and of an adapter
        whose variables are `h.0.mlp.up.matmul.a` and `.b`. A frozen variable is in the dtype that
        products read it in.

    Raises
    ------
    ModelError
        The graph has no product between hidden layers.

    Examples
    --------
    >>> from millrace.models.zoo.catalogue import build, model_spec
    >>> tuned = adapted(build(model_spec("gpt2-small", 8), 1), 4)
    >>> tuned.trained_count, tuned.parameter_count - tuned.trained_count
    (663552, 124439808)
    """
    matrices = hidden_matrices(graph)
    if not matrices:
        raise ModelError(
            f"model `{graph.name}` has no product between hidden layers that an adapter could "
            f"stand beside; leave --lora-rank out"
        )
    products = {
        name: (matrix, operand) for matrix in matrices.values() for name, operand in matrix.readers
    }
    frozen = _frozen(graph)
    tensors = frozen.tensors_by_name
    builder = GraphBuilder.extending(replace(frozen, ops=(), tensors=()))
    for op in frozen.ops:
        outputs = [tensors[name] for name in op.outputs]
        if op.name not in products:
            builder.adopt(op, outputs)
            continue
        base = f"{op.name}.frozen"
        builder.adopt(
            replace(op, name=base, outputs=(base,)), [replace(tensors[op.name], name=base)]
        )
        matrix, operand = products[op.name]
        added = _adapter(builder, op, operand, matrix, rank, alpha)
        labels = write((added.dims,) * 2, (added.dims,))
        builder.emit("add", op.name, (base, added.name), labels, block=op.block)
    return builder.build()


def _frozen(graph: Graph) -> Graph:
    """The graph with variables that are not trained, in the dtype that products read them in."""
    masters, tensors = master_weights(graph), graph.tensors_by_name
    casts = {op.inputs[0]: op for op in graph.ops if op.kind == "cast" and op.inputs[0] in masters}
    variables = {cast.outputs[0]: variable for variable, cast in casts.items()}
    builder = GraphBuilder.extending(replace(graph, ops=(), tensors=()))
    for op in graph.ops:
        outputs = [tensors[name] for name in op.outputs]
        if op.outputs[0] in variables:
            continue
        if op.kind == "variable":
            op = replace(op, attributes={**op.attributes, "frozen": True})
            cast = casts.get(op.outputs[0])
            dtype = outputs[0].dtype if cast is None else tensors[cast.outputs[0]].dtype
            outputs = [replace(outputs[0], dtype=dtype)]
        builder.adopt(
            replace(op, inputs=tuple(variables.get(name, name) for name in op.inputs)), outputs
        )
    return builder.build()


class _Added(NamedTuple):
    """Tensor that an adapter adds to a product, with its labels."""

    name: str
    dims: Operand


def _adapter(
    builder: GraphBuilder, op: Op, operand: int, matrix: HiddenMatrix, rank: int, alpha: float
) -> _Added:
    """Add the product with both matrices of an adapter of one that stands beside it."""
    expression = parse(op.labels)
    x, weight = expression.inputs[1 - operand], expression.inputs[operand]
    outputs = expression.outputs
    source = op.inputs[1 - operand]
    sizes = dict(zip(weight, builder.tensors[op.inputs[operand]].shape, strict=True))
    batch, sides = (
        weight[: matrix.batch],
        (
            weight[matrix.batch : matrix.batch + matrix.rows],
            weight[matrix.batch + matrix.rows :],
        ),
    )
    reads, makes = sides if sides[0][0][0] in expression.contracted else sides[::-1]
    label = next("z" * n for n in count(1) if "z" * n not in expression.labels)
    z = (label,)
    sizes[z] = rank
    low = (*(dim for dim in x if dim not in reads), z)
    whole_labels = expression.whole_labels
    fan_in = prod(sizes[dim] for dim in reads)
    first = _variable(builder, op, "a", (*batch, *reads, z), sizes, matrix.dtype, fan_in)
    second = _variable(builder, op, "b", (*batch, z, *makes), sizes, matrix.dtype, 0)
    (narrow,) = builder.emit(
        "matmul",
        f"{op.name}.low",
        (source, first),
        write((x, (*batch, *reads, z)), (low,), whole_labels),
        block=op.block,
    )
    (added,) = builder.emit(
        "matmul",
        f"{op.name}.high",
        (narrow, second),
        write((low, (*batch, z, *makes)), outputs, whole_labels),
        block=op.block,
    )
    if alpha and alpha != rank:
        labels = write(outputs, outputs, whole_labels)
        (added,) = builder.emit(
            "scale",
            f"{op.name}.added",
            (added,),
            labels,
            attributes={"factor": alpha / rank},
            block=op.block,
        )
    return _Added(added, outputs[0])


def _variable(
    builder: GraphBuilder,
    op: Op,
    part: str,
    dims: Operand,
    sizes: Mapping[tuple[str, ...], int],
    dtype: str,
    fan_in: int,
) -> str:
    """Add one matrix of an adapter, and what every microbatch reads of it; zero without `fan_in`.

    A is drawn with a deviation of one over the root of what it reads, about PEFT's (release 0.18).
    """
    name = f"{op.name}.{part}"
    narrow = ITEMSIZE[dtype] < ITEMSIZE[VARIABLE]
    builder.emit(
        "variable",
        name,
        (),
        write((), (dims,)),
        shapes=(tuple(sizes[dim] for dim in dims),),
        dtype=VARIABLE if narrow else dtype,
        attributes={
            "init": "normal" if fan_in else "zeros",
            "std": 1 / sqrt(fan_in) if fan_in else 0.0,
            "decay": True,
        },
        block=op.block,
    )
    labels = write((dims,), (dims,))
    if narrow:
        builder.emit("cast", f"{name}.cast", (name,), labels, dtype=dtype, block=op.block)
    source = f"{name}.cast" if narrow else name
    return builder.emit("repeat", f"{name}.repeat", (source,), labels, block=op.block)[0]
