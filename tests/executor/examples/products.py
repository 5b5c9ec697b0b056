"""Examples of products and sums."""

from tests.executor.examples.example import Example

LABELS = {
    "matmul": (
        "b t k, k n -> b t n",
        "b t n, k n -> b t k",
        "b t k, b t n -> k n",
        "b t k, k h d -> b t h d",
        "b t h d, h d n -> b t n",
        "b t h d, k h d -> b t k",
        "b t k, b t h d -> k h d",
        "b t h d, b s h d -> b h t s",
        "b t k, d k h -> h b d t",
        "k, n -> n k",
        "b k, b k -> ",
    ),
    "add": (
        "b t n, n -> b t n",
        "b t d, t d -> b t d",
        "k n, k n, k n -> k n",
        "k n, n k -> n k",
    ),
    "mul": (
        "b t n, b t n -> b t n",
        "b t n, n -> b t n",
        "b t, b t n -> b n t",
        "b t n, () -> b t n",
        "b t n, b t n -> n",
        "b t n, b t n -> b t",
        "b t n, b t -> b n",
        "b t, b t -> ",
    ),
    "sum": ("b t n -> n", "b t n -> b n", "b t h -> h b", "b t -> "),
}

EXAMPLES = (
    *(Example(kind=kind, labels=text) for kind, texts in LABELS.items() for text in texts),
    Example(kind="scale", labels="b n -> b n", attributes={"factor": -1.5}),
    Example(kind="shift", labels="b n -> b n", attributes={"value": 3}),
)
