"""Examples of kernels that move values."""

import numpy as np

from tests.executor.examples.example import Example

EXAMPLES = (
    Example(
        kind="rearrange", labels="b i j -> b (i j)", formula=lambda x: x.reshape(x.shape[0], -1)
    ),
    Example(
        kind="rearrange",
        labels="b t (h i) -> b h i t",
        formula=lambda x: x.reshape(4, 6, 2, 2).transpose(0, 2, 3, 1),
        sizes={"h": 2, "i": 2},
    ),
    Example(kind="narrow", labels="p! d -> t! d", formula=lambda x: x[:6], attributes={"start": 0}),
    Example(
        kind="widen",
        labels="t! d -> p! d",
        attributes={"start": 0},
        formula=lambda x: np.concatenate([x, np.zeros((3, x.shape[1]))]),
    ),
    Example(kind="cast", labels="k n -> k n", formula=lambda x: x),
    Example(kind="accumulate", labels="k n -> k n", formula=lambda x: x),
)  # fmt: skip
