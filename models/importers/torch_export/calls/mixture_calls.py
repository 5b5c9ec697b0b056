"""Mixture calls: experts that transformers traces as products of gathered weights.

Every token's row meets a copy of its experts' weights there. Here tokens go to the experts
(dispatch), every expert makes one product, and the results come back by weight (combine): the same
numbers without a copy of a weight. Every expert has room for all tokens of a sample, as there.

Notes
-----
The calls are those of transformers' `batched_mm` experts (version 5).
"""

from typing import Any

from millrace.models.importers.patterns import Pattern, matched
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
from millrace.models.importers.torch_export.node_matching import CALLS, MatchedCall
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)
from millrace.models.labels import BATCH, EXPERT


def _gathered(weight: Pattern, rows: Pattern) -> Pattern:
    """Pattern of a product of rows and what an expert's id chooses of a weight."""
    chosen = ("index", weight, ("flatten", "ids"))
    return ("squeeze", ("matmul", chosen, ("unsqueeze", rows)))


_WIDE = _gathered("gate_up", ("repeat_interleave", "x"))
_ACTIVE = ("mul", ("silu", ("half0", _WIDE)), ("half1", _WIDE))
_WEIGHTED = ("mul", _gathered("down", _ACTIVE), ("unsqueeze", ("flatten", "weights")))


def mixture(node: Any) -> MatchedCall | None:
    """Match of weighted rows summed over choices, each a token times gathered weights."""
    bound = matched(CALLS, ("sum", ("flatten", _WEIGHTED)), node)
    return None if bound is None else ("mixture", dict(bound))


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
    of_output = slots_of((b, t, d), (*rows, expert_outputs.dims[-1]))
    out = draft.make("combine", (back, *routes, weight), of_output, ordered=True)
    return Array(out, (*x.dims[:-1], expert_outputs.dims[-1]))


HANDLERS: dict[str, Handler] = {"topk": _top_k, "mixture": _mixture}
