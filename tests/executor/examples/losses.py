"""Examples of losses, softmax, and what a step ends with."""

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example

MARGIN = {"scale": 16.0, "margin": 0.5}


def with_cosines(given: Array, *rest: Array) -> tuple[Array, ...]:
    return np.tanh(given), *rest


EXAMPLES = (
    Example(kind="cross_entropy", labels="b t v!, b t -> b t, b t", ids=(1,)),
    Example(
        kind="cross_entropy_grad", labels="b t v, b t, b t -> b t v", ids=(1,),
        derive=lambda logits, targets, _: (logits, targets, np.log(np.exp(logits).sum(-1))),
    ),
    Example(kind="row_max", labels="b t v -> b t"),
    Example(
        kind="shifted_sums", labels="b t v, b t, b t -> b t c!", ids=(2,),
        derive=lambda logits, _, targets: (logits, logits.max(-1), targets),
    ),
    Example(
        kind="loss_from_sums", labels="b t, b t c!, b t -> b t, b t", ids=(2,),
        derive=lambda largest, sums, targets: (largest, np.abs(sums) + 1, targets),
    ),
    Example(kind="count_valid", labels="b t -> ", ids=(0,)),
    Example(kind="squared_sum", labels="k n -> "),
    Example(kind="logistic_loss", labels="b t, b t -> b t", ids=(1,), ids_below="c"),
    Example(kind="logistic_loss_grad", labels="b t, b t -> b t", ids=(1,), ids_below="c"),
    Example(
        kind="arc_margin", labels="b v, b -> b v", ids=(1,), derive=with_cosines,
        attributes=MARGIN,
    ),
    Example(
        kind="arc_margin_grad", labels="b v, b, b v -> b v", ids=(1,), derive=with_cosines,
        attributes=MARGIN,
    ),
)  # fmt: skip
