"""Examples of dropout: every bit by the definition of Philox, in whole numbers of Python."""

from collections.abc import Callable

import numpy as np

from millrace.executor.kernels.context import Array
from millrace.executor.kernels.random_bits import key_of
from tests.executor.examples.example import Example

WORD = 2**32
RATE = 0.3
OP = "block.dropout"


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Four random words of a counter: ten rounds."""
    a, b, c, d = counter
    for turn in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        here = [(k + turn * w) % WORD for k, w in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        a, b, c, d = (
            second // WORD ^ b ^ here[0], second % WORD, first // WORD ^ d ^ here[1], first % WORD,
        )  # fmt: skip
    return a, b, c, d


def is_kept(sample: int, index: int) -> bool:
    """True if an element of a sample stays, in a run of seed 0."""
    words = philox((index // 4, 0, sample, 0), key_of(0, OP))
    return words[index % 4] >= RATE * WORD


def dropout(batch_dim: int | None) -> Callable[[Array], Array]:
    """Formula of dropout, one element after the other."""

    def formula(x: Array) -> Array:
        given = x[None] if batch_dim is None else np.moveaxis(x, batch_dim, 0)
        output = np.empty_like(given)
        for sample, values in enumerate(given):
            bits = np.array([is_kept(sample, index) for index in range(values.size)])
            output[sample] = values / (1 - RATE) * bits.reshape(values.shape)
        return output[0] if batch_dim is None else np.moveaxis(output, 0, batch_dim)

    return formula


EXAMPLES = tuple(
    Example(
        kind="dropout",
        labels=f"{labels} -> {labels}",
        formula=dropout(batch_dim),
        attributes={"rate": RATE, "op": OP},
    )
    for labels, batch_dim in (("b t n", 0), ("t b n", 1), ("b z c", 0), ("k n", None), ("b", 0))
)
