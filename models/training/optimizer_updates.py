"""Optimizer updates: the ops that make the next value of every variable.

Shape legend: a matrix is [rows, columns], whatever dims of a variable make each.

Notes
-----
Muon: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). As Liu et
al., "Muon is scalable for LLM training", arXiv 2502.16982 (2025), section 2.2, have it, updates are
multiplied by 0.2 times the root of the longer side, so that they are as large as AdamW's, and share
its learning rate and weight decay. What is no matrix between two hidden layers is AdamW's: vectors,
token tables, the head.
"""

from collections.abc import Iterator
from itertools import count
from math import sqrt
from typing import NamedTuple

from millrace.models.builder import GraphBuilder
from millrace.models.graph import Graph, Op, Phase
from millrace.models.labels import Operand, parse, write
from millrace.models.ops import Attributes
from millrace.models.ops.orthogonal import matrix_sizes
from millrace.models.spec import TrainingSpec

MUON = "muon"
ROUNDS = 5  # of Newton and Schulz, Jordan et al.
ADAMW_SIZE = 0.2  # root mean square of AdamW's updates, Liu et al., section 2.2
DIRECTIONS = ("momentum", "newton_schulz")  # kinds between a gradient and Muon's update
SCALING = ("scale", "tanh", "add", "cast", "clip")  # what a model does to its logits


class HiddenMatrix(NamedTuple):
    """Matrices of a variable between hidden layers.

    `batch` leading dims number them, the next `rows` make their rows; `readers` are the products
    that read them, in a `dtype`, each with the number of the operand that they are.
    """

    batch: int
    rows: int
    dtype: str
    readers: tuple[tuple[str, int], ...]


def gradient_names(graph: Graph) -> dict[str, str]:
    """Tensor that holds the gradient of each variable of a training graph, by the variable."""
    suffix = ".squared_sum"
    return {
        op.name.removesuffix(suffix): op.inputs[0] for op in graph.ops if op.kind == "squared_sum"
    }


def hidden_matrices(forward: Graph) -> dict[str, HiddenMatrix]:
    """Variables that Muon updates, each with the dims that make its matrices.

    Parameters
    ----------
    forward : Graph
        A forward graph.

    Returns
    -------
    dict
        Variables of which products alone read, but for the product that makes the logits. Their
        leading dims that are the same in all three operands (experts) number matrices; those that
        the product sums over are rows, and the remaining ones columns.

    Examples
    --------
    >>> from millrace.models.zoo.catalogue import build, model_spec
    >>> matrices = hidden_matrices(build(model_spec("gpt2-small", 8), 1))
    >>> matrices["h.0.attn.out.weight"].rows, "tokens.weight" in matrices
    (2, False)
    """
    readers: dict[str, list[Op]] = {}
    for op in forward.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    heads = _heads(forward)
    matrices: dict[str, HiddenMatrix] = {}
    for variable in forward.ops:
        uses = list(_uses(variable.outputs[0], readers)) if variable.trains else []
        products = [op for op, _ in uses if op.kind == "matmul" and op.name not in heads]
        if not uses or len(products) < len(uses):
            continue
        sides = {_sides(op, operand) for op, operand in uses}
        if len(sides) == 1 and (dims := sides.pop()) is not None:
            op, operand = uses[0]
            matrices[variable.outputs[0]] = HiddenMatrix(
                *dims,
                dtype=forward.tensors_by_name[op.inputs[operand]].dtype,
                readers=tuple((op.name, operand) for op, operand in uses),
            )
    return matrices


def _heads(forward: Graph) -> set[str]:
    """Products that make what a loss is taken of."""
    makers = {name: op for op in forward.ops for name in op.outputs}
    losses = [op for op in forward.ops if op.kind == "cross_entropy"]
    queue, heads = [makers.get(op.inputs[0]) for op in losses], set()
    while queue:
        op = queue.pop()
        if op is not None and op.kind == "matmul":
            heads.add(op.name)
        elif op is not None and op.kind in SCALING:
            queue += [makers.get(name) for name in op.inputs]
    return heads


def _uses(name: str, readers: dict[str, list[Op]]) -> Iterator[tuple[Op, int]]:
    """Ops that read a variable, by way of its casts too, each with the operand that it is."""
    for op in readers.get(name, ()):
        if op.kind in ("repeat", "cast", "quantise"):
            yield from _uses(op.outputs[0], readers)
        else:
            yield op, op.inputs.index(name)


def _sides(op: Op, operand: int) -> tuple[int, int] | None:
    """Dims of a weight that number matrices to a product, and that are their rows.

    Dims that it sums over are one side of each; None where they and the others are mixed.
    """
    expression = parse(op.labels)
    dims = expression.inputs[operand]
    batch = [dim for dim in dims if all(dim in other for other in expression.operands)]
    matrix = dims[len(batch) :]
    summed = [dim[0] in expression.contracted for dim in matrix]
    rows = sum(in_rows == summed[0] for in_rows in summed) if matrix else 0
    one_by_one = summed[:rows] == summed[:1] * rows
    if tuple(batch) != dims[: len(batch)] or rows == len(matrix) or not one_by_one:
        return None
    return len(batch), rows


def add_update(
    builder: GraphBuilder,
    training: TrainingSpec,
    variable: Op,
    gradient: str,
    matrix: HiddenMatrix | None,
    scalars: tuple[str, str],
) -> None:
    """Add what makes the next value of a variable from its gradient.

    Parameters
    ----------
    builder : GraphBuilder
        Of the training graph.
    training : TrainingSpec
        The optimizer.
    variable : Op
        Of kind `variable`.
    gradient : str
        Tensor, summed over a step.
    matrix : HiddenMatrix or None
        What `hidden_matrices` says of the variable, where Muon may update it.
    scalars : tuple of str
        Tensors of the step's totals and of its learning rate.
    """
    totals, rate = scalars
    name = variable.outputs[0]
    (operand,) = parse(variable.labels).outputs
    # The totals' own label: `z`, or a longer one where the variable has that.
    label = next("z" * n for n in count(1) if ("z" * n,) not in operand)
    z = frozenset({label})
    kind, attributes, change = training.optimizer, _attributes(training, variable), gradient
    if kind == MUON and matrix is None:
        kind = "adamw"
    elif matrix is not None and kind == MUON:
        direction = builder.emit(
            "momentum",
            f"{name}.direction",
            (gradient, totals),
            write((operand, ((label,),)), (operand,), z),
            dtype=matrix.dtype,
            attributes={
                "variable": name,
                "momentum": training.momentum,
                "clip_norm": training.clip_norm,
            },
            block=variable.block,
            phase=Phase.UPDATE,
        )
        change, size = _orthogonal(builder, variable, direction[0], operand, matrix)
        attributes = {
            "variable": name,
            "rate_factor": ADAMW_SIZE * sqrt(size),
            "weight_decay": training.weight_decay if variable.attributes["decay"] else 0.0,
        }
    builder.emit(
        kind,
        f"{name}.next",
        (name, change, totals, rate),
        write((operand, operand, ((label,),), ()), (operand,), z),
        attributes=attributes,
        block=variable.block,
        phase=Phase.UPDATE,
    )


def _orthogonal(
    builder: GraphBuilder, variable: Op, direction: str, operand: Operand, dims: HiddenMatrix
) -> tuple[str, int]:
    """Add the matrices near a direction whose singular values are one; and their longer side."""
    name, shape = variable.outputs[0], builder.tensors[direction].shape
    in_matrices = frozenset(label for dim in operand[dims.batch :] for label in dim)
    labels = write((operand,), (operand,), in_matrices)
    attributes: dict[str, int | float | str | bool] = {"rows": dims.rows, "rounds": ROUNDS}
    sizes = {dim[0]: size for dim, size in zip(operand, shape, strict=True)}
    matrix = matrix_sizes(labels, attributes, sizes)
    (orthogonal,) = builder.emit(
        "newton_schulz",
        f"{name}.orthogonal",
        (direction,),
        labels,
        attributes=attributes,
        block=variable.block,
        phase=Phase.UPDATE,
    )
    return orthogonal, max(matrix.rows, matrix.columns)


def _attributes(training: TrainingSpec, variable: Op) -> Attributes:
    """Attributes of an update by SGD or AdamW."""
    shared: dict[str, int | float | str | bool] = {
        "variable": variable.outputs[0],
        "weight_decay": training.weight_decay if variable.attributes["decay"] else 0.0,
        "clip_norm": training.clip_norm,
    }
    if training.optimizer == "sgd":
        return shared | {"momentum": training.momentum}
    return shared | {
        "beta1": training.beta1,
        "beta2": training.beta2,
        "epsilon": training.epsilon,
    }
