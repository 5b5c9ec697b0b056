"""Examples of embeddings and positions."""

from tests.executor.examples.example import Example


def rotary_example(labels: str, **changes: int | float | str | bool) -> Example:
    attributes = {"base": 100.0, "dims": 8, "interleaved": False, "inverse": False} | changes
    return Example(
        kind="rotary", labels=f"{labels} -> {labels}", attributes=attributes,
        large={"k": 64, "n": 64},
    )  # fmt: skip


EXAMPLES = (
    rotary_example("b t h k!"),
    rotary_example("b h t k!", inverse=True),
    rotary_example("b t k!", dims=6),
    rotary_example("b t h n!", interleaved=True),
    rotary_example("b t n!", interleaved=True, inverse=True, dims=4),
    rotary_example("b t k!", scaling="linear", factor=4.0),
    rotary_example(
        "b t h k!", scaling="yarn", factor=4.0, beta_fast=2.0, beta_slow=0.5,
        original_positions=100, amplitude=1.2,
    ),
    *(
        Example(
            kind=kind, labels=labels, sizes={"c": 8}, large={"h": 4},
            attributes={"bidirectional": bidirectional, "max_distance": 5},
        )
        for bidirectional in (True, False)
        for kind, labels in (
            ("relative_bias", "c! h -> h t s!"),
            ("relative_bias_grad", "h t s! -> c! h"),
        )
    ),
    Example(kind="embedding", labels="b t, v d -> b t d", ids=(0,), lowest_id=0),
    Example(kind="embedding_grad", labels="b t, b t d -> v d", ids=(0,), lowest_id=0),
)  # fmt: skip
