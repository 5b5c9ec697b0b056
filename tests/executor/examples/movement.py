"""Examples of kernels that move values."""

import numpy as np

from tests.executor.examples.example import Example

EXAMPLES = (
    Example(kind="rearrange", labels="b i j -> b (i j)"),
    Example(kind="rearrange", labels="b t (h i) -> b h i t", sizes={"h": 2, "i": 2}),
    Example(kind="broadcast", labels="b n -> b t n"),
    Example(kind="broadcast", labels="n b -> t b n"),
    Example(kind="broadcast", labels="() -> b n"),
    Example(kind="broadcast", labels="n -> b (n t)"),
    Example(kind="narrow", labels="p! d -> t! d", attributes={"start": 0}),
    Example(kind="narrow", labels="b p! d -> b t! d", attributes={"start": 3}),
    Example(kind="narrow", labels="b t p! -> b t c!", attributes={"start": 4}),
    Example(kind="widen", labels="t! d -> p! d", attributes={"start": 0}),
    Example(kind="widen", labels="b t c! -> b t p!", attributes={"start": 4}),
    Example(
        kind="concat", labels="b i! d, b j! d -> b p! d", sizes={"p": 5}, large={"p": 256 + 64}
    ),
    Example(
        kind="concat", labels="b i!, b j!, b k! -> b p!", sizes={"p": 13},
        large={"p": 256 + 64 + 512},
    ),
    Example(
        kind="constant", labels=" -> k n", formula=lambda: np.full((8, 10), 2.5),
        attributes={"value": 2.5, "data": ""},
    ),
    Example(
        kind="fill", labels=" -> b t", formula=lambda: np.full((4, 6), 3), attributes={"value": 3}
    ),
    Example(kind="cast", labels="k n -> k n"),
    Example(kind="quantise", labels="b t n -> b t n"),
    Example(kind="accumulate", labels="k n -> k n"),
)  # fmt: skip
