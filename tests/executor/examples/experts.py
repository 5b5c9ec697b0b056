"""Examples of a mixture of experts, token by token."""

from collections.abc import Callable, Iterator

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example

Attributes = dict[str, int | float | str | bool]

CAPACITY = 2  # of two choices of six tokens among four experts: some are dropped


def best(values: Array, count: int) -> list[int]:
    """Indexes of the largest values, the lower of equals first."""
    return sorted(range(len(values)), key=lambda index: (-values[index], index))[:count]


def mask_groups(values: Array, groups: int, kept_groups: int) -> Array:
    """The values, minus infinity outside the groups with the largest two-value sums."""
    apart = values.reshape(groups, -1)
    sums = np.sort(apart, axis=1)[:, -2:].sum(1)
    masked = np.full(apart.shape, -np.inf)
    for group in best(sums, kept_groups):
        masked[group] = apart[group]
    return masked.reshape(-1)


def top_k(choices: int, attributes: Attributes) -> Callable[[Array], tuple[Array, ...]]:
    groups, kept_groups = int(attributes["groups"]), int(attributes["kept_groups"])

    def formula(scores: Array) -> tuple[Array, ...]:
        shape = (*scores.shape[:2], choices)
        value, expert = np.zeros(shape), np.zeros(shape, np.int32)
        for b, t in np.ndindex(shape[:2]):
            chosen = best(mask_groups(scores[b, t], groups, kept_groups), choices)
            expert[b, t], value[b, t] = chosen, scores[b, t, chosen]
        return value, expert, places(expert, int(attributes["capacity"]))

    return formula


def places(expert: Array, capacity: int) -> Array:
    """Places [b, t, k] of choices: first choices first, then by token; -1 where it is full."""
    choice_places = np.full(expert.shape, -1, np.int32)
    for b in range(expert.shape[0]):
        taken: dict[int, int] = {}
        for k in range(expert.shape[2]):
            for t in range(expert.shape[1]):
                place = taken.get(int(expert[b, t, k]), 0)
                taken[int(expert[b, t, k])] = place + 1
                if place < capacity:
                    choice_places[b, t, k] = place
    return choice_places


def routes(expert: Array, place: Array) -> Array:
    """1 where choice [b, t, k] has place [e, c], for four experts of `CAPACITY` places."""
    at_expert = expert[..., None, None] == np.arange(4)[:, None]
    return np.asarray(at_expert & (place[..., None, None] == np.arange(CAPACITY)), float)


def dispatch(x: Array, expert: Array, place: Array) -> Array:
    return np.einsum("btd,btkec->ebcd", x, routes(expert, place))


def dispatch_grad(dy: Array, expert: Array, place: Array) -> Array:
    return np.einsum("ebcd,btkec->btd", dy, routes(expert, place))


def combine(y: Array, expert: Array, place: Array, weight: Array) -> Array:
    return np.einsum("ebcd,btkec,btk->btd", y, routes(expert, place), weight)


def combine_grad_input(dout: Array, expert: Array, place: Array, weight: Array) -> Array:
    return np.einsum("btd,btkec,btk->ebcd", dout, routes(expert, place), weight)


def combine_grad_weight(dout: Array, y: Array, expert: Array, place: Array) -> Array:
    return np.einsum("btd,ebcd,btkec->btk", dout, y, routes(expert, place))


def top_k_grad(dvalue: Array, expert: Array) -> Array:
    return np.einsum("btk,btke->bte", dvalue, expert[..., None] == np.arange(4))


def expert_load(expert: Array) -> Array:
    return np.mean(expert[..., None] == np.arange(4), axis=(1, 2))


def choice(like: Array) -> Array:
    """Experts of random scores, for choices of this shape."""
    scores = np.random.default_rng(7).standard_normal((*like.shape[:2], 4))
    return np.argsort(-scores, axis=2)[..., : like.shape[2]].astype(np.int32)


def routed(first: int) -> Callable[..., tuple[Array, ...]]:
    """Derivation that makes inputs `first` and `first + 1` a choice of experts and its places."""

    def derive(*inputs: Array) -> tuple[Array, ...]:
        expert = choice(inputs[first])
        return *inputs[:first], expert, places(expert, CAPACITY), *inputs[first + 2 :]

    return derive


_SIZES = {"e": 4, "k": 2, "c": CAPACITY}
_LARGE = {"b": 8, "t": 256, "d": 128}


def _top_k() -> Iterator[Example]:
    ungrouped: Attributes = {"capacity": CAPACITY, "groups": 1, "kept_groups": 1}
    grouped: Attributes = {"capacity": 3, "groups": 3, "kept_groups": 2}
    for attributes, sizes in ((ungrouped, {}), (grouped, {"e": 6}), (grouped, {"e": 9, "k": 4})):
        for decimals in (0, 8):
            yield Example(
                kind="top_k",
                labels="b t! e! -> b t! k!, b t! k!, b t! k!",
                formula=top_k({**_SIZES, **sizes}["k"], attributes),
                attributes=attributes,
                sizes=_SIZES | sizes,
                large=_LARGE | {"e": 24},
                # rounded scores have equals among them
                derive=lambda scores, decimals=decimals: (np.round(scores, decimals),),
            )


_LABELS: tuple[tuple[str, str, Callable[..., Array], int], ...] = (
    ("dispatch", "b t! d, b t! k!, b t! k! -> e b c! d", dispatch, 1),
    ("dispatch_grad", "e b c! d, b t! k!, b t! k! -> b t! d", dispatch_grad, 1),
    ("combine", "e b c! d, b t! k!, b t! k!, b t! k! -> b t! d", combine, 1),
    ("combine_grad_input", "b t! d, b t! k!, b t! k!, b t! k! -> e b c! d", combine_grad_input, 1),
    ("combine_grad_weight", "b t! d, e b c! d, b t! k!, b t! k! -> b t! k!",
     combine_grad_weight, 2),
)  # fmt: skip

EXAMPLES = (
    *_top_k(),
    *(
        Example(
            kind=kind,
            labels=labels,
            formula=formula,
            derive=routed(first),
            sizes=_SIZES,
            large=_LARGE,
        )
        for kind, labels, formula, first in _LABELS
    ),
    Example(
        kind="top_k_grad",
        labels="b t! k!, b t! k! -> b t! e!",
        formula=top_k_grad,
        derive=lambda dvalue, expert: (dvalue, choice(expert)),
        sizes=_SIZES,
        large=_LARGE | {"e": 24},
    ),
    Example(
        kind="expert_load",
        labels="b t! k! -> b e!",
        formula=expert_load,
        derive=lambda expert: (choice(expert),),
        sizes=_SIZES,
        large=_LARGE,
    ),
)
