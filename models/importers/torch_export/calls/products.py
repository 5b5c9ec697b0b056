"""Calls of matrix products and embeddings."""

from typing import Any

from millrace.models.importers.torch_export.algebra import combined, narrowed, product, scaled
from millrace.models.importers.torch_export.calls.elementwise import added, floating
from millrace.models.importers.torch_export.draft import Array, Operand, Slot, Tensor, Token
from millrace.models.importers.torch_export.extents import (
    Axis,
    leaves,
    size_of,
)
from millrace.models.importers.torch_export.reading import (
    Arguments,
    Handler,
    Reader,
    UnsupportedError,
)
from millrace.models.importers.torch_export.views import squeezed, viewed

_LETTERS = "abcdefghijklmnopqrstuvw"


def _linear(reader: Reader, a: Arguments) -> Array:
    x, weight = reader.array(floating(a["input"])), reader.array(a["weight"])
    lead = _LETTERS[: len(x.dims) - 1]
    out = lead + ("z" if len(weight.dims) == 2 else "")
    right = "zk" if len(weight.dims) == 2 else "k"
    return _biased(reader, x, weight, (lead + "k", right, out), a["bias"])


def _biased(
    reader: Reader, x: Array, weight: Array, equation: tuple[str, str, str], bias: Any
) -> Array:
    made = product(reader.draft, x, weight, equation)
    return made if bias is None else combined(reader.draft, "add", made, reader.array(bias))


def _addmm(reader: Reader, a: Arguments) -> Array:
    left = reader.array(floating(a.get("mat1", a.get("batch1"))))
    right = reader.array(a.get("mat2", a.get("batch2")))
    made = scaled(reader.draft, matrices(reader, left, right), float(a["alpha"]))
    return added(reader, made, a["self"], float(a["beta"]))


def matrices(reader: Reader, left: Array, right: Array) -> Array:
    """`matmul`: the last dims are matrices (or a vector), the others broadcast."""
    if len(left.dims) == 1 or len(right.dims) == 1:
        mine = "k" if len(left.dims) == 1 else _LETTERS[: len(left.dims) - 1] + "k"
        yours = "k" if len(right.dims) == 1 else _LETTERS[: len(right.dims) - 2] + "kz"
        kept = "".join(x for x in dict.fromkeys(mine + yours) if x != "k")
        return product(reader.draft, left, right, (mine, yours, kept))
    depth = max(len(left.dims), len(right.dims)) - 2
    lead = _LETTERS[:depth]
    mine = lead[depth - len(left.dims) + 2 :] + "xk"
    yours = lead[depth - len(right.dims) + 2 :] + "kz"
    return product(reader.draft, left, right, (mine, yours, lead + "xz"))


def _matmul(reader: Reader, a: Arguments) -> Array:
    left = reader.array(floating(a["self"]))
    right = reader.array(floating(a.get("other", a.get("mat2"))))
    return matrices(reader, left, right)


def _einsum(reader: Reader, a: Arguments) -> Array:
    equation = a["equation"].replace(" ", "")
    if "..." in equation:
        raise UnsupportedError(f"`{equation}` has an ellipsis; name the dims")
    left, _, out = equation.partition("->")
    operands = left.split(",")
    if not out and "->" not in equation:
        letters = sorted(left.replace(",", ""))
        out = "".join(x for x in letters if letters.count(x) == 1)
    if any(len(set(letters)) != len(letters) for letters in operands):
        raise UnsupportedError(f"`{equation}` takes a diagonal")
    arrays = [reader.array(floating(x)) for x in a["tensors"]]
    found, mine = arrays[0], operands[0]
    for at in range(1, len(arrays)):
        later = "".join(operands[at + 1 :]) + out
        both = dict.fromkeys(mine + operands[at])
        kept = "".join(x for x in both if x in later)
        kept = out if at == len(arrays) - 1 else kept
        found = product(reader.draft, found, arrays[at], (mine, operands[at], kept))
        mine = kept
    if len(arrays) == 1:
        raise UnsupportedError(f"`{equation}` has one operand; use sum and permute")
    return found


def embedding(reader: Reader, a: Arguments) -> Array:
    """Rows of a table by ids."""
    table, ids = a["weight"], a["indices"]
    padding = -1 if a.get("padding_idx") is None else int(a["padding_idx"])
    if not isinstance(ids, Array) and not bool((ids == padding).any()):
        found = _known_rows(reader, table, ids)
        if found is not None:
            return found
    ids = reader.array(ids)
    rows, width = table.dims
    token, row = Token(single=True, label="d"), Token(single=True, label="v")
    places = [Slot(Token(), (axis,)) for axis in ids.tensor.leaves()]
    made = Axis(leaves(width)[0].extent) if len(leaves(width)) == 1 else None
    features = width if made is None else (made,)
    tensor = reader.draft.make(
        "embedding",
        (
            Operand(ids.tensor, tuple(places)),
            Operand(table.tensor, (Slot(row, rows), Slot(token, width))),
        ),
        [*places, Slot(token, features)],
        attributes={"padding": padding} if padding >= 0 else None,
        ordered=True,
    )
    size = size_of(rows)
    for given in _origins(reader, ids.tensor):
        known = int(given.attributes.get("values", 0))
        given.attributes["values"] = min(known, size) if known else size
    return Array(tensor, (*ids.dims, features))


def _origins(reader: Reader, tensor: Tensor) -> list[Tensor]:
    """The inputs of which a tensor of ids is made."""
    makers = {id(step.output.tensor): step for step in reader.draft.steps}
    found, queue = [], [tensor]
    while queue:
        one = queue.pop()
        if id(one) in makers:
            queue += [operand.tensor for operand in makers[id(one)].inputs]
        elif one.kind == "input":
            found.append(one)
    return found


def _known_rows(reader: Reader, table: Array, ids: Any) -> Array | None:
    """Rows that follow each other, or one row everywhere: a slice of the table."""
    flat = ids.reshape(-1)
    first = int(flat[0])
    if bool((flat == first).all()):
        row = squeezed(reader.draft, narrowed(reader.draft, table, 0, first, 1), (0,))
        lead = tuple((Axis(size),) if size > 1 else () for size in ids.shape)
        return Array(row.tensor, (*lead, *row.dims))
    longest = max(ids.shape)
    if flat.numel() == longest and bool((flat[1:] - flat[:-1] == 1).all()):
        rows = narrowed(reader.draft, table, 0, first, longest)
        return viewed(reader.draft, rows, (*ids.shape, table.shape[1]))
    return None


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "linear": _linear,
    "einsum": _einsum,
    "embedding": embedding,
}
