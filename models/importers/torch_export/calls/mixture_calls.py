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
    StepOperand,
    fresh,
    slots_of,
    tokens,
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
    b, t, n, k = tokens("_* _! n! k!")
    of_scores = slots_of((b, t, n), (axes[:1], axes[1:], leaves(scores.dims[-1])))
    values = reader.draft.make(
        "top_k",
        (StepOperand(scores.tensor, of_scores),),
        slots_of((b, t, k), (axes[:1], axes[1:], (choice,))),
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
    batch, sequence, choice = expert.axes
    experts = leaves(gate_up.dims[0])[0]
    experts.extent.root().role = EXPERT
    experts.extent.join(leaves(down.dims[0])[0].extent)
    places = fresh(sequence.size, "c")
    e, b, k, t, c, d = tokens("_* _* k! _! c! d")
    rows = ((batch,), (sequence,))
    routes = [
        StepOperand(route, slots_of((b, t, k), (*rows, (choice,)))) for route in (expert, place)
    ]
    of_token = StepOperand(x.tensor, slots_of((b, t, d), (*rows, leaves(x.dims[-1]))))
    dims = ((TensorAxis(experts.extent),), (batch,), (places,), leaves(x.dims[-1]))
    to = slots_of((e, b, c, d), dims)
    sent = draft.make("dispatch", (of_token, *routes), to, ordered=True)
    wide = product(draft, Array(sent, dims), gate_up, ("ebcd", "efd", "ebcf"))
    half = wide.shape[-1] // 2
    gate, up = (narrowed(draft, wide, -1, start, half) for start in (0, half))
    active = combined(draft, "swiglu", gate, up)
    expert_outputs = product(draft, active, down, ("ebcf", "edf", "ebcd"))
    back = StepOperand(expert_outputs.tensor, slots_of((e, b, c, d), expert_outputs.dims))
    weight = StepOperand(weights.tensor, slots_of((b, t, k), (*rows, leaves(weights.dims[-1]))))
    made_slots = slots_of((b, t, d), (*rows, expert_outputs.dims[-1]))
    out = draft.make("combine", (back, *routes, weight), made_slots, ordered=True)
    return Array(out, (*x.dims[:-1], expert_outputs.dims[-1]))


HANDLERS: dict[str, Handler] = {"topk": _top_k, "mixture": _mixture}
