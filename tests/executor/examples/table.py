"""Every example there is; a theme has a module of its own."""

from tests.executor.examples import (
    attention,
    dropout,
    embeddings,
    experts,
    images,
    losses,
    movement,
    norms,
    pointwise,
    products,
    recurrences,
    sparse,
)

THEMES = (
    products,
    movement,
    pointwise,
    dropout,
    norms,
    embeddings,
    attention,
    recurrences,
    sparse,
    losses,
    images,
    experts,
)

EXAMPLES = tuple(example for theme in THEMES for example in theme.EXAMPLES)
