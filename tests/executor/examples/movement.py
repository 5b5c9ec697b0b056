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
    Example(kind="broadcast", labels="b n -> b t n", formula=lambda x: np.repeat(x[:, None], 6, 1)),
    Example(kind="broadcast", labels="n b -> t b n", formula=lambda x: np.stack([x.T] * 6)),
    Example(kind="broadcast", labels="() -> b n", formula=lambda x: np.full((4, 10), x)),
    Example(kind="narrow", labels="p! d -> t! d", formula=lambda x: x[:6], attributes={"start": 0}),
    Example(
        kind="narrow",
        labels="b p! d -> b t! d",
        formula=lambda x: x[:, 3:],
        attributes={"start": 3},
    ),
    Example(
        kind="narrow",
        labels="b t p! -> b t c!",
        formula=lambda x: x[:, :, 4:6],
        attributes={"start": 4},
    ),
    Example(
        kind="widen",
        labels="t! d -> p! d",
        attributes={"start": 0},
        formula=lambda x: np.pad(x, ((0, 3), (0, 0))),
    ),
    Example(
        kind="widen",
        labels="b t c! -> b t p!",
        attributes={"start": 4},
        formula=lambda x: np.pad(x, ((0, 0), (0, 0), (4, 3))),
    ),
    Example(
        kind="concat",
        labels="b i! d, b j! d -> b p! d",
        formula=lambda *inputs: np.concatenate(inputs, 1),
        sizes={"p": 5},
        large={"p": 256 + 64},
    ),
    Example(
        kind="concat",
        labels="b i!, b j!, b k! -> b p!",
        formula=lambda *inputs: np.concatenate(inputs, 1),
        sizes={"p": 13},
        large={"p": 256 + 64 + 512},
    ),
    Example(
        kind="constant",
        labels=" -> k n",
        formula=lambda: np.full((8, 10), 2.5),
        attributes={"value": 2.5, "data": ""},
    ),
    Example(
        kind="fill", labels=" -> b t", formula=lambda: np.full((4, 6), 3), attributes={"value": 3}
    ),
    Example(kind="cast", labels="k n -> k n", formula=lambda x: x),
    Example(kind="quantise", labels="b t n -> b t n", formula=lambda x: x),
    Example(kind="accumulate", labels="k n -> k n", formula=lambda x: x),
)  # fmt: skip
