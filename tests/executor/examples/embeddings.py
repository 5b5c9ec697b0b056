"""Examples of embeddings and positions."""

from collections.abc import Callable

import numpy as np

from millrace.executor.kernels.context import Array
from millrace.models.rotary import rotary_frequencies
from tests.executor.examples.example import Example, one_hot


def rotary(attributes: dict[str, int | float | str | bool], dim: int) -> Callable[[Array], Array]:
    """Formula by a rotation matrix per position and pair; positions lie along dim `dim`."""
    dims = int(attributes["dims"])
    pairs = np.arange(dims).reshape(-1, 2) if attributes["interleaved"] else None
    if pairs is None:
        pairs = np.arange(dims).reshape(2, -1).T
    sign = -1 if attributes["inverse"] else 1

    def formula(x: Array) -> Array:
        turned = np.moveaxis(x.copy(), dim, 0)
        for position in range(turned.shape[0]):
            for pair, frequency in zip(pairs, rotary_frequencies(attributes), strict=True):
                a = sign * position * frequency
                matrix = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
                matrix = matrix * attributes.get("amplitude", 1.0)
                turned[position][..., pair] = turned[position][..., pair] @ matrix.T
        return np.moveaxis(turned, 0, dim)

    return formula


def rotary_example(labels: str, dim: int, **changes: int | float | str | bool) -> Example:
    attributes = {"base": 100.0, "dims": 8, "interleaved": False, "inverse": False} | changes
    return Example(
        kind="rotary",
        labels=f"{labels} -> {labels}",
        formula=rotary(attributes, dim),
        attributes=attributes,
        large={"k": 64, "n": 64},
    )


def bucket(distance: int, buckets: int, bidirectional: bool, farthest: int) -> int:
    """The bucket of one distance, by T5's rule in whole numbers as far as it goes."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = np.log(distance / exact) / np.log(farthest / exact) * (buckets - exact)
    return first + min(exact + int(steps + 1e-9), buckets - 1)


def bias_examples(bidirectional: bool) -> list[Example]:
    attributes = {"bidirectional": bidirectional, "max_distance": 5}

    def members(queries: int, keys: int, buckets: int) -> Array:
        """One-hot buckets [t, s, m]."""
        numbers = [
            [bucket(s - t, buckets, bidirectional, 5) for s in range(keys)] for t in range(queries)
        ]
        return one_hot(np.array(numbers), buckets)

    return [
        Example(
            kind="relative_bias",
            labels="c! h -> h t s!",
            formula=lambda table: np.einsum("tsm,mh->hts", members(6, 6, 8), table),
            attributes=attributes,
            sizes={"c": 8},
            large={"h": 4},
        ),
        Example(
            kind="relative_bias_grad",
            labels="h t s! -> c! h",
            formula=lambda dy: np.einsum("tsm,hts->mh", members(6, 6, 8), dy),
            attributes=attributes,
            sizes={"c": 8},
            large={"h": 4},
        ),
    ]


EXAMPLES = (
    rotary_example("b t h k!", 1),
    rotary_example("b h t k!", 2, inverse=True),
    rotary_example("b t k!", 1, dims=6),
    rotary_example("b t h n!", 1, interleaved=True),
    rotary_example("b t n!", 1, interleaved=True, inverse=True, dims=4),
    rotary_example("b t k!", 1, scaling="linear", factor=4.0),
    rotary_example(
        "b t h k!",
        1,
        scaling="yarn",
        factor=4.0,
        beta_fast=2.0,
        beta_slow=0.5,
        original_positions=100,
        amplitude=1.2,
    ),
    *bias_examples(True),
    *bias_examples(False),
    Example(
        kind="embedding",
        labels="b t, v d -> b t d",
        formula=lambda ids, table: table[ids],
        ids=(0,),
        lowest_id=0,
    ),
    Example(
        kind="embedding_grad",
        labels="b t, b t d -> v d",
        formula=lambda ids, dy: np.einsum("btv,btd->vd", one_hot(ids, 12), dy),
        ids=(0,),
        lowest_id=0,
    ),
)  # fmt: skip
