"""Examples of a mixture of experts."""

from collections.abc import Callable, Iterator

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example
from tests.models.oracle import evaluate

Attributes = dict[str, int | float | str | bool]

CAPACITY = 2  # of two choices of six tokens among four experts: some are dropped
TOP_K = "b t! e! -> b t! k!, b t! k!, b t! k!"
BIASED_TOP_K = "b t! e!, e! -> b t! k!, b t! k!, b t! k!"
UNGROUPED: Attributes = {"capacity": CAPACITY, "groups": 1, "kept_groups": 1}


def choice(like: Array) -> tuple[Array, Array]:
    """Experts of random scores, for choices of this shape, and the places got there."""
    scores = np.random.default_rng(7).standard_normal((*like.shape[:2], 4))
    sizes = {"k": like.shape[2]}
    _, expert, place = evaluate("top_k", TOP_K, [scores], attributes=UNGROUPED, sizes=sizes)
    return expert.astype(np.int32), place.astype(np.int32)


def routed(first: int) -> Callable[..., tuple[Array, ...]]:
    """Derivation that makes inputs `first` and `first + 1` a choice of experts and its places."""

    def derive(*inputs: Array) -> tuple[Array, ...]:
        return *inputs[:first], *choice(inputs[first]), *inputs[first + 2 :]

    return derive


_SIZES = {"e": 4, "k": 2, "c": CAPACITY}
_LARGE = {"b": 8, "t": 256, "d": 128}


def _top_k() -> Iterator[Example]:
    grouped: Attributes = {"capacity": 3, "groups": 3, "kept_groups": 2}
    for attributes, sizes in ((UNGROUPED, {}), (grouped, {"e": 6}), (grouped, {"e": 9, "k": 4})):
        for decimals in (0, 8):
            yield Example(
                kind="top_k", labels=TOP_K, attributes=attributes, sizes=_SIZES | sizes,
                large=_LARGE | {"e": 24},
                # rounded scores have equals among them
                derive=lambda scores, decimals=decimals: (np.round(scores, decimals),),
            )  # fmt: skip
        yield Example(
            kind="top_k", labels=BIASED_TOP_K, attributes=attributes, sizes=_SIZES | sizes,
            large=_LARGE | {"e": 24},
        )  # fmt: skip


EXAMPLES = (
    *_top_k(),
    *(
        Example(kind=kind, labels=labels, derive=routed(first), sizes=_SIZES, large=_LARGE)
        for kind, labels, first in (
            ("dispatch", "b t! d, b t! k!, b t! k! -> e b c! d", 1),
            ("dispatch_grad", "e b c! d, b t! k!, b t! k! -> b t! d", 1),
            ("combine", "e b c! d, b t! k!, b t! k!, b t! k! -> b t! d", 1),
            ("combine_grad_input", "b t! d, b t! k!, b t! k!, b t! k! -> e b c! d", 1),
            ("combine_grad_weight", "b t! d, e b c! d, b t! k!, b t! k! -> b t! k!", 2),
        )
    ),
    Example(
        kind="top_k_grad", labels="b t! k!, b t! k! -> b t! e!", sizes=_SIZES,
        large=_LARGE | {"e": 24}, derive=lambda dvalue, expert: (dvalue, choice(expert)[0]),
    ),
    Example(
        kind="expert_load", labels="b t! k! -> b e!", sizes=_SIZES, large=_LARGE,
        derive=lambda expert: (choice(expert)[0],),
    ),
)  # fmt: skip
