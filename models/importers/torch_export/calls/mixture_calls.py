"""Mixture calls: experts that transformers traces as products of gathered weights.

Every token's row meets a copy of its experts' weights there. Here tokens go to the experts
(dispatch), every expert makes one product, and the results come back by weight (combine): the same
numbers without a copy of a weight. Every expert has room for all tokens of a sample, as there.

In between, a row of the program, a token with one of its choices, is a place of an expert: the
dim of rows is one of experts, samples and places, and what the program does to the features of rows
is done to those of places. What lies at a place that no token got is never read.

Notes
-----
The calls are those of transformers' `batched_mm` experts (version 5).
"""

from typing import Any

from millrace.models.importers.patterns import Pattern, matched
from millrace.models.importers.torch_export.algebra import materialize_axes, product, without_units
from millrace.models.importers.torch_export.calls.product_calls import matmul
from millrace.models.importers.torch_export.calls.router_calls import chosen_by
from millrace.models.importers.torch_export.draft import (
    Array,
    Route,
    StepOperand,
    slots_of,
    tokens,
)
from millrace.models.importers.torch_export.extents import Group, TensorAxis, leaves, pair_all
from millrace.models.importers.torch_export.node_matching import CALLS, MatchedCall, is_call
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)
from millrace.models.labels import BATCH, EXPERT

_WEIGHTED: Pattern = ("mul", "rows", ("unsqueeze", ("flatten", "weights")))
_CALLS_MAX = 16  # between the last product of an expert and the sum over a token's choices


def mixture(node: Any) -> MatchedCall | None:
    """Match of the weighted rows of a token's experts, summed over its choices."""
    bound = matched(CALLS, ("sum", ("flatten", _WEIGHTED)), node)
    if bound is None or not hasattr(bound["rows"], "meta"):
        return None
    maker = bound["rows"]
    for _ in range(_CALLS_MAX):
        if is_call(maker, "bmm"):
            return ("mixture", dict(bound)) if _is_experts(maker) else None
        maker = next(iter(maker.all_input_nodes), None)
    return None


def _is_experts(node: Any) -> bool:
    """True if one factor of a product is what chosen experts' ids choose of a weight."""
    return any(
        is_call(x, "index") and len(x.args[1]) == 1 and chosen_by(x.args[1][0]) is not None
        for x in node.args
    )


def chosen_weights(reader: ProgramReader, table: Any, ids: Any) -> Array | None:
    """Weights (or biases) of experts, as rows chosen by ids of a `topk` see them.

    Parameters
    ----------
    reader : ProgramReader
        Holds the choices.
    table : Array
        Experts first; None is returned for one that has samples.
    ids : Array
        None is returned for other ids.
    """
    route = reader.routes.get(ids.tensor) if isinstance(ids, Array) else None
    if route is None or not isinstance(table, Array):
        return None
    experts = leaves(table.dims[0])
    if any(x.role == BATCH for x in table.tensor.leaves()) or len(experts) != 1:
        return None
    experts[0].extent.root().role = EXPERT
    if route.experts is None:
        route.experts = experts[0].extent
    route.experts.join(experts[0].extent)
    rows = (experts[0], TensorAxis(route.expert.axes[0].extent), TensorAxis(route.places))
    return Array(table.tensor, (rows, *table.dims[1:]))


def _route_of(reader: ProgramReader, array: Array) -> Route | None:
    """The choices whose places the rows of an array are, if they are any."""
    extents = [axis.extent.root() for axis in leaves(array.dims[0])]
    return next((x for x in reader.routes.values() if x.places.root() in extents), None)


def _product(reader: ProgramReader, a: Arguments) -> Array:
    """Product of matrices; rows that meet the weights of their experts go there first."""
    left, right = reader.array(a["self"]), reader.array(a["mat2"])
    routes = [_route_of(reader, array) for array in (left, right)]
    if routes == [None, None]:
        return matmul(reader, a)
    if routes[0] is None and routes[1] is not None:
        left = _dispatched(reader, left, routes[1])
    elif routes[1] is None and routes[0] is not None:
        right = _dispatched(reader, right, routes[0])
    if len(left.tensor.leaves()) < len(right.tensor.leaves()):
        return product(reader.draft, right, left, ("akz", "axk", "axz"))
    return product(reader.draft, left, right, ("axk", "akz", "axz"))


def _rows(array: Array) -> tuple[Group, Group, Group]:
    """Samples, tokens and choices of an array whose first dims are those."""
    batch, sequence, *choices = (x for group in array.dims for x in leaves(group))
    return (batch,), (sequence,), tuple(choices)


def _dispatched(reader: ProgramReader, array: Array, route: Route) -> Array:
    """Rows of tokens, one for each choice and the same for all, at the places of experts."""
    draft = reader.draft
    array = without_units(draft, array)
    *lead, last = (x for x in leaves(array.dims[0]) if x.size > 1 or x.role == BATCH)
    batch, sequence, choice = route.expert.axes
    if choice.size == 1:
        lead = [*lead, last]
    if len(lead) != 2 or (choice.size > 1 and array.real(last)):
        raise UnsupportedCallError("rows that differ from choice to choice meet experts' weights")
    samples, sequences = (lead[0],), (lead[1],)
    pair_all([(samples, (batch,)), (sequences, (sequence,))])
    features = tuple(x for group in array.dims[1:] for x in leaves(group))
    array = materialize_axes(draft, array, (samples, sequences, features))
    e, b, k, t, c, d = tokens("_* _* k! _! c! d")
    routes = _routes(route, (b, t, k))
    of_token = StepOperand(array.tensor, slots_of((b, t, d), (samples, sequences, features)))
    assert route.experts is not None
    rows = (TensorAxis(route.experts), TensorAxis(batch.extent), TensorAxis(route.places))
    to = slots_of((e, b, c, d), (*((axis,) for axis in rows), features))
    sent = draft.make("dispatch", (of_token, *routes), to, ordered=True)
    return Array(sent, (rows, *array.dims[1:]))


def _routes(route: Route, labels: Any) -> list[StepOperand]:
    return [
        StepOperand(ids, slots_of(labels, [(axis,) for axis in ids.axes]))
        for ids in (route.expert, route.place)
    ]


def _mixture(reader: ProgramReader, a: Arguments) -> Array:
    """Outputs of a token's experts, added up by weight."""
    draft, outputs = reader.draft, a["rows"]
    route = _route_of(reader, outputs)
    if route is None:
        raise UnsupportedCallError("its experts are not those of a topk")
    outputs = materialize_axes(draft, outputs, outputs.dims)
    weights = reader.array(a["weights"])
    weights = materialize_axes(draft, weights, weights.dims)
    batch, sequence, choice = route.expert.axes
    pair_all([(tuple(x for group in weights.dims for x in group), (batch, sequence, choice))])
    e, b, k, t, c, d = tokens("_* _* k! _! c! d")
    experts, samples, places = leaves(outputs.dims[0])
    features = leaves(outputs.dims[1])
    back = slots_of((e, b, c, d), ((experts,), (samples,), (places,), features))
    weight = StepOperand(weights.tensor, slots_of((b, t, k), _rows(weights)))
    of_output = slots_of((b, t, d), ((batch,), (sequence,), features))
    inputs = (StepOperand(outputs.tensor, back), *_routes(route, (b, t, k)), weight)
    out = draft.make("combine", inputs, of_output, ordered=True)
    return Array(out, ((batch, sequence), features))


HANDLERS: dict[str, Handler] = {"bmm": _product, "mixture": _mixture}
