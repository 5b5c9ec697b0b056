"""Examples of causal convolutions and of recurrences.

Labels beside the usual ones: g groups of r heads, n features of a key, p of a value, k taps.
"""

from collections.abc import Iterator

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example

_QUERY, _VALUE, _HEAD = "b t! g n!", "b t! g r p", "b t! g r"
_SMALL = {"b": 2, "t": 11, "g": 2, "r": 3, "n": 5, "p": 4}  # chunks of 3 tokens, the last of 2
_WIDE = _SMALL | {"t": 5, "g": 3, "r": 2, "n": 40, "p": 10}  # more than a warp and a tile
_SINGLE_TOKEN = _SMALL | {"t": 1}
_LARGE = {"b": 2, "t": 64, "g": 4, "r": 2, "n": 64, "p": 64}


def _convolutions(x: str, w: str, sizes: dict[str, int]) -> Iterator[Example]:
    for kind, labels in (
        ("causal_conv1d", f"{x}, {w} -> {x}"),
        ("causal_conv1d_grad_input", f"{x}, {w} -> {x}"),
        ("causal_conv1d_grad_weight", f"{x}, {x} -> {w}"),
    ):
        yield Example(kind=kind, labels=labels, sizes=sizes, large={"k": 4, "c": 512})


def _consistent(*inputs: Array) -> tuple[Array, ...]:
    """Inputs with keys of length one, states that decay, and betas between zero and one."""
    query, key, value, decay, *rest = inputs
    key = key / np.sqrt((key * key).sum(-1, keepdims=True))
    betas = [1 / (1 + np.exp(-x)) for x in rest[:1] if x.shape != value.shape]
    return query, key, value, -np.abs(decay), *betas, *rest[len(betas) :]


def _recurrences(kind: str, labels: str, sizes: dict[str, int]) -> Iterator[Example]:
    yield Example(
        kind=kind, labels=f"{labels} -> {_VALUE}", sizes=sizes, large=_LARGE, derive=_consistent
    )
    yield Example(
        kind=f"{kind}_grad", labels=f"{labels}, {_VALUE} -> {labels}", sizes=sizes, large=_LARGE,
        derive=_consistent,
    )  # fmt: skip


def _examples() -> Iterator[Example]:
    yield from _convolutions("b t! c", "c k!", {"k": 4, "c": 6})
    yield from _convolutions(
        "b t! h c", "h c k!", {"k": 9, "h": 4, "c": 3}
    )  # more taps than tokens
    yield from _convolutions("b t! c", "c k!", {"k": 1, "c": 6})
    keyed = f"{_QUERY}, {_QUERY}, {_VALUE}"
    for sizes in (_SMALL, _WIDE, _SINGLE_TOKEN):
        yield from _recurrences("state_space_scan", f"{keyed}, {_HEAD}", sizes)
        yield from _recurrences("state_space_scan", f"{keyed}, {_HEAD} n!", sizes)
        yield from _recurrences("delta_rule", f"{keyed}, {_HEAD}, {_HEAD}", sizes)
        yield from _recurrences("delta_rule", f"{keyed}, {_HEAD} n!, {_HEAD}", sizes)


EXAMPLES = tuple(_examples())
