"""Calls of matrix products and embeddings."""

from typing import Any

from millrace.models.importers.torch_export.algebra import combined, narrowed, product, scaled
from millrace.models.importers.torch_export.calls.elementwise_calls import added, floating
from millrace.models.importers.torch_export.draft import (
    Array,
    DraftTensor,
    OperandSlot,
    StepOperand,
    Token,
    slots_of,
    tokens,
)
from millrace.models.importers.torch_export.extents import (
    Group,
    TensorAxis,
    leaves,
    size_of,
)
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)
from millrace.models.importers.torch_export.views import squeezed

_LETTERS = "abcdefghijklmnopqrstuvw"


def _linear(reader: ProgramReader, a: Arguments) -> Array:
    x, weight = reader.array(floating(a["input"])), reader.array(a["weight"])
    lead = _LETTERS[: len(x.dims) - 1]
    out = lead + ("z" if len(weight.dims) == 2 else "")
    right = "zk" if len(weight.dims) == 2 else "k"
    output, bias = product(reader.draft, x, weight, (lead + "k", right, out)), a["bias"]
    return output if bias is None else combined(reader.draft, "add", output, reader.array(bias))


def _addmm(reader: ProgramReader, a: Arguments) -> Array:
    left = reader.array(floating(a.get("mat1", a.get("batch1"))))
    right = reader.array(a.get("mat2", a.get("batch2")))
    scaled_product = scaled(reader.draft, matrices(reader, left, right), float(a["alpha"]))
    return added(reader, scaled_product, a["self"], float(a["beta"]))


def matrices(reader: ProgramReader, left: Array, right: Array) -> Array:
    """Product as `matmul` has it: the last dims are matrices (or a vector), others broadcast."""
    if len(left.dims) == 1 or len(right.dims) == 1:
        left_letters = "k" if len(left.dims) == 1 else _LETTERS[: len(left.dims) - 1] + "k"
        right_letters = "k" if len(right.dims) == 1 else _LETTERS[: len(right.dims) - 2] + "kz"
        out_letters = "".join(x for x in dict.fromkeys(left_letters + right_letters) if x != "k")
        return product(reader.draft, left, right, (left_letters, right_letters, out_letters))
    depth = max(len(left.dims), len(right.dims)) - 2
    lead = _LETTERS[:depth]
    left_letters = lead[depth - len(left.dims) + 2 :] + "xk"
    right_letters = lead[depth - len(right.dims) + 2 :] + "kz"
    return product(reader.draft, left, right, (left_letters, right_letters, lead + "xz"))


def matmul(reader: ProgramReader, a: Arguments) -> Array:
    """Product of matrices, or of as many as the first dims count."""
    left = reader.array(floating(a["self"]))
    right = reader.array(floating(a.get("other", a.get("mat2"))))
    return matrices(reader, left, right)


def _einsum(reader: ProgramReader, a: Arguments) -> Array:
    equation = a["equation"].replace(" ", "")
    if "..." in equation:
        raise UnsupportedCallError(f"`{equation}` has an ellipsis; name the dims")
    left, _, out = equation.partition("->")
    operands = left.split(",")
    if not out and "->" not in equation:
        letters = sorted(left.replace(",", ""))
        out = "".join(x for x in letters if letters.count(x) == 1)
    if any(len(set(letters)) != len(letters) for letters in operands):
        raise UnsupportedCallError(f"`{equation}` takes a diagonal")
    arrays = [reader.array(floating(x)) for x in a["tensors"]]
    partial, partial_letters = arrays[0], operands[0]
    for index in range(1, len(arrays)):
        later = "".join(operands[index + 1 :]) + out
        both = dict.fromkeys(partial_letters + operands[index])
        out_letters = "".join(x for x in both if x in later)
        out_letters = out if index == len(arrays) - 1 else out_letters
        partial = product(
            reader.draft, partial, arrays[index], (partial_letters, operands[index], out_letters)
        )
        partial_letters = out_letters
    if len(arrays) == 1:
        raise UnsupportedCallError(f"`{equation}` has one operand; use sum and permute")
    return partial


def embedding(reader: ProgramReader, a: Arguments) -> Array:
    """Rows of a table by ids."""
    table, ids = a["weight"], a["indices"]
    padding = -1 if a.get("padding_idx") is None else int(a["padding_idx"])
    if not isinstance(ids, Array) and not bool((ids == padding).any()):
        known_rows = _known_rows(reader, table, ids)
        if known_rows is not None:
            return known_rows
    ids = reader.array(ids)
    rows, width = table.dims
    token, row = tokens("d v")
    places = [OperandSlot(Token(), (axis,)) for axis in ids.tensor.leaves()]
    feature_axis = TensorAxis(leaves(width)[0].extent) if len(leaves(width)) == 1 else None
    features = width if feature_axis is None else (feature_axis,)
    tensor = reader.draft.make(
        "embedding",
        (
            StepOperand(ids.tensor, tuple(places)),
            StepOperand(table.tensor, slots_of((row, token), (rows, width))),
        ),
        [*places, OperandSlot(token, features)],
        attributes={"padding": padding} if padding >= 0 else None,
        ordered=True,
    )
    size = size_of(rows)
    for given in _origins(reader, ids.tensor):
        previous = int(given.attributes.get("values", 0))
        given.attributes["values"] = min(previous, size) if previous else size
    return Array(tensor, (*ids.dims, features))


def _origins(reader: ProgramReader, tensor: DraftTensor) -> list[DraftTensor]:
    """Inputs of which a tensor of ids is made."""
    makers = {step.output.tensor: step for step in reader.draft.steps}
    inputs, queue = [], [tensor]
    while queue:
        current = queue.pop()
        if current in makers:
            queue += [operand.tensor for operand in makers[current].inputs]
        elif current.kind == "input":
            inputs.append(current)
    return inputs


def _known_rows(reader: ProgramReader, table: Array, ids: Any) -> Array | None:
    """Rows that follow each other, or one row everywhere: a slice of the table."""
    first = int(ids.reshape(-1)[0])
    varying = [dim for dim in range(ids.ndim) if bool((ids != ids.narrow(dim, 0, 1)).any())]
    lead: list[Group] = [(TensorAxis(size),) if size > 1 else () for size in ids.shape]
    if not varying:
        row = squeezed(reader.draft, narrowed(reader.draft, table, 0, first, 1), (0,))
        return Array(row.tensor, (*lead, *row.dims))
    line = ids.movedim(varying[0], 0).reshape(ids.shape[varying[0]], -1)[:, 0]
    if len(varying) == 1 and bool((line[1:] - line[:-1] == 1).all()):
        rows = narrowed(reader.draft, table, 0, first, len(line))
        lead[varying[0]] = rows.dims[0]
        return Array(rows.tensor, (*lead, *rows.dims[1:]))
    return None


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "linear": _linear,
    "einsum": _einsum,
    "embedding": embedding,
}
