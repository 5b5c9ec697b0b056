"""Examples of embeddings and positions."""

import numpy as np

from tests.executor.examples.example import Example, one_hot

EXAMPLES = (
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
