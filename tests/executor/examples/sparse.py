"""Examples of sparse attention and of the choice of its keys."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example
from tests.models.oracle import evaluate

GIVEN = "b t h d!, b s! d!, b s! u!, b t c!"
OUT = "b t h u!, b t h"
SCALE: dict[str, Any] = {"scale": 0.5}


def of_order(*inputs: Array) -> tuple[Array, ...]:
    """Make the places ascending and different, some none; and what a gradient reads consistent."""
    q, k, v, chosen, *rest = inputs
    draw = np.random.default_rng(1)
    for row in chosen.reshape(-1, chosen.shape[-1]):
        places = np.sort(draw.permutation(np.arange(-len(row) + 1, k.shape[1]))[: len(row)])
        row[:] = np.maximum(places, -1)
        row[-1] = max(row[-1], 0)
    given = (q, k, v, chosen)
    if not rest:
        return given
    return *given, *evaluate("sparse_attention", f"{GIVEN} -> {OUT}", given, (), SCALE), rest[-1]


def _examples() -> Iterator[Example]:
    for sizes in ({"u": 6, "c": 3}, {"t": 70, "s": 70, "d": 40, "u": 36, "c": 40, "b": 2}):
        yield Example(
            kind="choose_keys", labels="b t i! e!, b t i!, b s! e! -> b t c!",
            sizes=sizes | {"i": 3, "e": 5},
        )  # fmt: skip
        yield Example(
            kind="choose_keys", labels="b t i! e!, b t i!, b s! e! -> b t c!",
            sizes={"u": 6, "t": 70, "s": 17, "c": 12, "b": 2, "i": 3, "e": 5},
            attributes={"window": 5, "stride": 4},
        )  # fmt: skip
        yield Example(
            kind="seen_keys", labels="-> b t c!", sizes={"t": 70, "c": 22, "b": 2},
            attributes={"window": 5, "stride": 4, "tokens": 70},
        )  # fmt: skip
        yield Example(
            kind="sparse_attention", labels=f"{GIVEN} -> {OUT}", attributes=SCALE, ids=(3,),
            ids_below="s", derive=of_order, sizes=sizes,
        )  # fmt: skip
        yield Example(
            kind="sparse_attention_grad", labels=f"{GIVEN}, {OUT}, b t h u! -> "
            "b t h d!, b s! d!, b s! u!", attributes=SCALE, ids=(3,), ids_below="s",
            derive=of_order, sizes=sizes,
        )  # fmt: skip


EXAMPLES = tuple(_examples())
