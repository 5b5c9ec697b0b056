"""Examples of products and sums."""

from tests.executor.examples.example import Example, einsum

EXAMPLES = (
    Example(kind="matmul", labels="b t k, k n -> b t n", formula=einsum("btk,kn->btn")),
    Example(kind="matmul", labels="b t n, k n -> b t k", formula=einsum("btn,kn->btk")),
    Example(kind="matmul", labels="b t k, b t n -> k n", formula=einsum("btk,btn->kn")),
    Example(kind="matmul", labels="b t k, k h d -> b t h d", formula=einsum("btk,khd->bthd")),
    Example(kind="matmul", labels="b t h d, h d n -> b t n", formula=einsum("bthd,hdn->btn")),
    Example(kind="matmul", labels="b t h d, k h d -> b t k", formula=einsum("bthd,khd->btk")),
    Example(kind="matmul", labels="b t k, b t h d -> k h d", formula=einsum("btk,bthd->khd")),
    Example(kind="matmul", labels="b t h d, b s h d -> b h t s", formula=einsum("bthd,bshd->bhts")),
    Example(kind="matmul", labels="b t k, d k h -> h b d t", formula=einsum("btk,dkh->hbdt")),
    Example(kind="matmul", labels="k, n -> n k", formula=einsum("k,n->nk")),
    Example(kind="matmul", labels="b k, b k -> ", formula=einsum("bk,bk->")),
    Example(kind="add", labels="b t n, n -> b t n", formula=lambda x, y: x + y),
    Example(kind="add", labels="b t d, t d -> b t d", formula=lambda x, y: x + y),
    Example(kind="add", labels="k n, k n, k n -> k n", formula=lambda x, y, z: x + y + z),
    Example(kind="add", labels="k n, n k -> n k", formula=lambda x, y: x.T + y),
    Example(kind="mul", labels="b t n, b t n -> b t n", formula=lambda x, y: x * y),
    Example(kind="mul", labels="b t n, n -> b t n", formula=lambda x, y: x * y),
    Example(kind="mul", labels="b t, b t n -> b n t", formula=einsum("bt,btn->bnt")),
    Example(kind="mul", labels="b t n, () -> b t n", formula=lambda x, y: x * y),
    Example(kind="mul", labels="b t n, b t n -> n", formula=einsum("btn,btn->n")),
    Example(kind="mul", labels="b t n, b t n -> b t", formula=einsum("btn,btn->bt")),
    Example(kind="mul", labels="b t n, b t -> b n", formula=einsum("btn,bt->bn")),
    Example(kind="mul", labels="b t, b t -> ", formula=einsum("bt,bt->")),
    Example(
        kind="scale", labels="b n -> b n", formula=lambda x: -1.5 * x, attributes={"factor": -1.5}
    ),
    Example(kind="shift", labels="b n -> b n", formula=lambda x: x + 3, attributes={"value": 3}),
    Example(kind="sum", labels="b t n -> n", formula=lambda x: x.sum((0, 1))),
    Example(kind="sum", labels="b t n -> b n", formula=lambda x: x.sum(1)),
    Example(kind="sum", labels="b t h -> h b", formula=lambda x: x.sum(1).T),
    Example(kind="sum", labels="b t -> ", formula=lambda x: x.sum()),
)  # fmt: skip
