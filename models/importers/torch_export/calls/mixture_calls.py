"""The mixture of experts that transformers traces as products of gathered weights.

Every token's row meets a copy of its experts' weights there. Here tokens go to the experts
(dispatch), every expert makes one product, and the results come back by weight (combine): the same
numbers without a copy of a weight. Every expert has room for all tokens of a sample, as there.

Notes
-----
The calls are those of transformers' `batched_mm` experts (version 5).
"""

from typing import Any

from millrace.models.importers.torch_export.algebra import combined, narrowed, product
from millrace.models.importers.torch_export.draft import (
    Array,
    DraftTensor,
    OperandSlot,
    StepOperand,
    Token,
    fresh,
)
from millrace.models.importers.torch_export.extents import TensorAxis, leaves
from millrace.models.importers.torch_export.node_matching import Found, is_call, without_casts
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)
from millrace.models.labels import BATCH, EXPERT


def mixture(node: Any) -> Found | None:
    """Match of weighted rows summed over choices, each a token times gathered weights."""
    if not is_call(node, "sum") or len(node.args) != 2 or list(node.args[1]) != [1]:
        return None
    weighted = _below(node.args[0], "view", "reshape")
    if not is_call(weighted, "mul"):
        return None
    rows, weights = without_casts(weighted.args[0]), _below(weighted.args[1], "unsqueeze")
    down = _gathered(rows)
    if down is None or not is_call(weights, "reshape", "view"):
        return None
    parameter, ids, active = down
    if not is_call(active, "mul") or not is_call(without_casts(active.args[0]), "silu"):
        return None
    gate, up = without_casts(without_casts(active.args[0]).args[0]), without_casts(active.args[1])
    if not (is_call(gate, "getitem") and is_call(up, "getitem") and gate.args[0] is up.args[0]):
        return None
    if (gate.args[1], up.args[1]) != (0, 1) or not is_call(gate.args[0], "split"):
        return None
    if gate.meta["val"].shape[-1] * 2 != gate.args[0].args[0].meta["val"].shape[-1]:
        return None
    wide = _gathered(without_casts(gate.args[0].args[0]))
    if wide is None or wide[1] is not ids or not is_call(wide[2], "repeat_interleave"):
        return None
    return "mixture", {
        "x": wide[2].args[0],
        "ids": ids,
        "weights": weights.args[0],
        "gate_up": wide[0],
        "down": parameter,
    }


def _below(node: Any, *names: str) -> Any:
    """Node that a call of one of these names reads, or None."""
    node = without_casts(node) if hasattr(node, "meta") else None
    return without_casts(node.args[0]) if is_call(node, *names) else None


def _gathered(node: Any) -> tuple[Any, Any, Any] | None:
    """Parameter, ids and rows of a product of gathered weights and rows, or None."""
    product_of = _below(node, "squeeze")
    if not is_call(product_of, "bmm"):
        return None
    weights, rows = without_casts(product_of.args[0]), _below(product_of.args[1], "unsqueeze")
    if not is_call(weights, "index") or rows is None or len(weights.args[1]) != 1:
        return None
    ids = _below(weights.args[1][0], "reshape", "view")
    if ids is None:
        ids = weights.args[1][0]
        ids = ids.args[0] if is_call(ids, "reshape", "view") else None
    return None if ids is None else (weights.args[0], ids, rows)


def _top_k(reader: ProgramReader, a: Arguments) -> list[Array]:
    """Chosen scores and their experts; the places they get go along with the experts."""
    scores = a["self"]
    axes = leaves(scores.dims[0])
    if len(scores.dims) == 3:
        axes += leaves(scores.dims[1])
    if (
        len(axes) != 2
        or axes[0].role != BATCH
        or a["dim"] % len(scores.dims) != 1 + (len(scores.dims) == 3)
    ):
        raise UnsupportedCallError("expected the scores of every token, experts last")
    size = int(a["k"])
    choice = fresh(size)
    b, t, n = Token(), Token(single=True, whole=True), Token(single=True, whole=True, label="n")
    k = Token(single=True, whole=True, label="k")
    lead = [OperandSlot(b, axes[:1]), OperandSlot(t, axes[1:])]
    values = reader.draft.make(
        "top_k",
        (StepOperand(scores.tensor, (*lead, OperandSlot(n, leaves(scores.dims[-1])))),),
        [*lead, OperandSlot(k, (choice,))],
        extras=((b, t, k), (b, t, k)),
        attributes={"capacity": axes[1].size, "groups": 1, "kept_groups": 1},
        ordered=True,
    )
    expert, place = (
        DraftTensor(name=f"{values.name}.{part}", axes=values.axes, integer=True, payload=values)
        for part in ("expert", "place")
    )
    reader.draft.steps[-1].more = (expert, place)
    dims = (*scores.dims[:-1], (choice,))
    return [Array(values, dims), Array(expert, dims)]


def _routes(reader: ProgramReader, ids: Any) -> tuple[DraftTensor, DraftTensor]:
    """Experts and places of a `top_k`."""
    for step in reader.draft.steps:
        if isinstance(ids, Array) and any(tensor is ids.tensor for tensor in step.more):
            expert, place = step.more
            return expert, place
    raise UnsupportedCallError("its experts are not those of a topk")


def _mixture(reader: ProgramReader, a: Arguments) -> Array:
    draft = reader.draft
    expert, place = _routes(reader, a["ids"])
    x, weights, gate_up, down = a["x"], a["weights"], a["gate_up"], a["down"]
    batch, tokens, choice = expert.axes
    experts = leaves(gate_up.dims[0])[0]
    experts.extent.root().role = EXPERT
    experts.extent.join(leaves(down.dims[0])[0].extent)
    places = fresh(tokens.size, "c")
    e, b, k = Token(), Token(), Token(single=True, whole=True, label="k")
    t, c = Token(single=True, whole=True), Token(single=True, whole=True, label="c")
    of_token = (OperandSlot(b, (batch,)), OperandSlot(t, (tokens,)))
    routes = [
        StepOperand(route, (*of_token, OperandSlot(k, (choice,)))) for route in (expert, place)
    ]
    features = OperandSlot(Token(single=True, label="d"), leaves(x.dims[-1]))
    to = (
        OperandSlot(e, (TensorAxis(experts.extent),)),
        OperandSlot(b, (batch,)),
        OperandSlot(c, (places,)),
    )
    sent = draft.make(
        "dispatch",
        (StepOperand(x.tensor, (*of_token, features)), *routes),
        [*to, features],
        ordered=True,
    )
    dims = (*(slot.axes for slot in to), features.axes)
    wide = product(draft, Array(sent, dims), gate_up, ("ebcd", "efd", "ebcf"))
    half = wide.shape[-1] // 2
    gate, up = (narrowed(draft, wide, -1, start, half) for start in (0, half))
    active = combined(draft, "swiglu", gate, up)
    expert_outputs = product(draft, active, down, ("ebcf", "edf", "ebcd"))
    back = tuple(
        OperandSlot(slot.token, group)
        for slot, group in zip((*to, features), expert_outputs.dims, strict=True)
    )
    weight = StepOperand(weights.tensor, (*of_token, OperandSlot(k, leaves(weights.dims[-1]))))
    out = draft.make(
        "combine",
        (StepOperand(expert_outputs.tensor, back), *routes, weight),
        [*of_token, OperandSlot(features.token, expert_outputs.dims[-1])],
        ordered=True,
    )
    return Array(out, (*x.dims[:-1], expert_outputs.dims[-1]))


HANDLERS: dict[str, Handler] = {"topk": _top_k, "mixture": _mixture}
