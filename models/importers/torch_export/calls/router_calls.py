"""Router calls: the experts that every token chooses, and their scores.

What a program writes in several calls (a bias that counts for choosing alone, groups of which the
best are kept, scores looked up at what was chosen) is one `top_k` here.

Notes
-----
DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437 (2024), section 2.1.2: bias and groups.
"""

from collections.abc import Iterator
from typing import Any

from millrace.models.importers.torch_export.draft import (
    Array,
    DraftTensor,
    Route,
    StepOperand,
    fresh,
    slots_of,
    tokens,
)
from millrace.models.importers.torch_export.extents import Extent, leaves, pair_all
from millrace.models.importers.torch_export.node_matching import SAME, MatchedCall, is_call
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    MissingBuffer,
    ProgramReader,
    UnsupportedCallError,
)
from millrace.models.labels import BATCH

_MOVED = SAME | {"view", "_unsafe_view", "reshape", "expand", "unsqueeze"}
_POSITIVE = ("sigmoid", "softmax", "_softmax")  # functions without values below zero


def _getitems(node: Any, index: int) -> list[Any]:
    return [x for x in node.users if is_call(x, "getitem") and x.args[1] == index]


def _behind(node: Any, names: set[str]) -> Any:
    """Node that a row of such calls begins with."""
    while is_call(node, *names):
        node = node.args[0]
    return node


def chosen_by(ids: Any) -> Any:
    """The `topk` whose ids a node holds, behind views and casts, or None."""
    ids = _behind(ids, _MOVED)
    if is_call(ids, "getitem") and ids.args[1] == 1 and is_call(ids.args[0], "topk"):
        return ids.args[0]
    return None


def router(node: Any) -> MatchedCall | None:
    """Match of a `topk` of scores, biased or masked by groups, that are looked up behind it."""
    if not is_call(node, "topk") or node.meta["val"][0].ndim > 3:
        return None
    choice, limits = _without_groups(node.args[0])
    arguments = {"self": choice, "k": node.args[1], "dim": -1, **limits}
    arguments["dim"] = node.args[2] if len(node.args) > 2 else -1
    scores = {looked_up.args[0] for looked_up in _look_ups(node)}
    if not scores or any(value.users for value in _getitems(node, 0)):
        return ("topk", arguments) if limits else None
    for self in scores:
        if limits.get("hidden") == 0 and not is_call(self, *_POSITIVE):
            return None
        if self is choice or (self < node and _in_order(self, choice)):
            return "topk", {**arguments, "self": self}
        if is_call(choice, "add") and not choice.kwargs and self in choice.args[:2]:
            bias = choice.args[1 - choice.args.index(self)]
            return "topk", {**arguments, "self": self, "choice_bias": bias}
    return None


def _look_ups(choice: Any) -> Iterator[Any]:
    """Calls of `gather` at the ids of a `topk`."""
    queue = _getitems(choice, 1)
    while queue:
        node = queue.pop()
        for user in node.users:
            if is_call(user, *SAME):
                queue.append(user)
            elif is_call(user, "gather") and user.args[2] is node:
                yield user


def _in_order(scores: Any, choice: Any) -> bool:
    """True if scores rank as what is chosen from: a rising function of it."""
    return is_call(scores, *_POSITIVE) and _behind(scores.args[0], SAME) is _behind(choice, SAME)


def _without_groups(choice: Any) -> tuple[Any, dict[str, Any]]:
    """Scores of all experts behind a mask of all but the best groups, and what that says."""
    unlimited: tuple[Any, dict[str, Any]] = (choice, {})
    if not is_call(choice, "masked_fill") or not is_call(choice.args[1], "bitwise_not"):
        return unlimited
    below, hidden = choice.args[0], choice.args[2]
    marks = _behind(choice.args[1].args[0], _MOVED)
    if not is_call(marks, "scatter") or marks.args[1] not in (1, -1) or marks.args[3] != 1:
        return unlimited
    best = chosen_by(marks.args[2])
    if best is None or not is_call(marks.args[0], "zeros_like", "new_zeros", "zeros"):
        return unlimited
    sums = best.args[0]
    if not is_call(sums, "sum") or sums.args[1] != [-1] or sums.args[2:]:
        return unlimited
    largest = sums.args[0]
    if not is_call(largest, "getitem") or largest.args[1] != 0:
        return unlimited
    inside = largest.args[0]
    if not is_call(inside, "topk") or inside.args[1] != 2:
        return unlimited
    apart = inside.args[0]
    if not is_call(apart, "view", "reshape") or apart.args[0] is not below:
        return unlimited
    if hidden not in (0, float("-inf")):
        return unlimited
    groups = int(apart.meta["val"].shape[-2])
    return below, {"groups": groups, "kept_groups": best.args[1], "hidden": hidden}


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
    bias = _bias(reader, a)
    inputs = []
    if bias is not None:
        pair_all([(scores.dims[-1], bias.dims[-1])])
        inputs.append(StepOperand(bias.tensor, slots_of((n,), (leaves(bias.dims[-1]),))))
    of_scores = slots_of((b, t, n), (axes[:1], axes[1:], leaves(scores.dims[-1])))
    inputs.insert(0, StepOperand(scores.tensor, of_scores))
    values = reader.draft.make(
        "top_k",
        inputs,
        slots_of((b, t, k), (axes[:1], axes[1:], (choice,))),
        extras=((b, t, k), (b, t, k)),
        attributes={
            "capacity": axes[1].size,
            "groups": int(a.get("groups", 1)),
            "kept_groups": int(a.get("kept_groups", 1)),
        },
        ordered=True,
    )
    expert, place = (
        DraftTensor(name=f"{values.name}.{part}", axes=values.axes, integer=True)
        for part in ("expert", "place")
    )
    reader.draft.steps[-1].more = (expert, place)
    dims = (*scores.dims[:-1], (choice,))
    route = Route(
        scores=scores.tensor,
        values=Array(values, dims),
        expert=expert,
        place=place,
        places=Extent(axes[1].size, hint="c"),
    )
    reader.routes[expert] = route
    return [route.values, Array(expert, dims)]


def _bias(reader: ProgramReader, a: Arguments) -> Array | None:
    """Bias of every expert that counts for choosing alone; it gets no gradient."""
    bias = a.get("choice_bias")
    if isinstance(bias, MissingBuffer):
        reader.notes.append(f"{bias.why}: choices of experts are taken as without a bias")
        bias = None
    if bias is not None:
        bias = reader.array(bias)
    if bias is None or not bias.tensor.leaves():
        return None
    if a.get("hidden") == 0:
        raise UnsupportedCallError("experts of other groups count as zero beside a bias")
    if bias.tensor.leaves() != leaves(bias.dims[-1]):
        raise UnsupportedCallError("its bias is not one number for every expert")
    if bias.tensor.kind == "variable":
        bias.tensor.trained = False
    return bias


def _gather(reader: ProgramReader, a: Arguments) -> Array:
    """Scores at the experts that were chosen among them."""
    ids, scores = a["index"], a["self"]
    route = reader.routes.get(ids.tensor) if isinstance(ids, Array) else None
    if route is None or not isinstance(scores, Array) or route.scores is not scores.tensor:
        raise UnsupportedCallError(
            "its places are not those that a topk chose among the same values"
        )
    return route.values


HANDLERS: dict[str, Handler] = {"topk": _top_k, "gather": _gather}
