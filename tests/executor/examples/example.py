"""Example of a kernel: labels, sizes and inputs; what comes out the oracle of `tests.models` says.

Labels: b batch, t queries, s keys, h heads, d and k features, n made, v vocabulary, p positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from millrace.executor.kernels.context import Array
from millrace.models.labels import parse, shape_of
from millrace.models.ops import OPS
from tests.models.oracle import evaluate

SIZES = {
    "b": 4, "t": 6, "s": 6, "h": 2, "d": 4, "k": 8, "n": 10, "v": 12, "p": 9, "c": 2,
    "i": 2, "j": 3, "z": 3,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Example:
    """One kind on small tensors.

    `ids` are the inputs that hold ids (from `lowest_id`, -1 for no target, up to the size of the
    label `ids_below`), `derive` replaces the random inputs by consistent ones, `formula` maps the
    inputs to the outputs of a kind of which the oracle knows nothing. `large` are sizes at which a
    firing's own memory is measured, where the usual ones do not fit; examples with `sizes` and no
    `large` are left out there.
    """

    kind: str
    labels: str
    formula: Callable[..., Array] | None = None
    ids: tuple[int, ...] = ()
    lowest_id: int = -1
    ids_below: str = "v"
    attributes: dict[str, int | float | str | bool] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    large: dict[str, int] = field(default_factory=dict)
    derive: Callable[..., tuple[Array, ...]] = lambda *inputs: inputs

    @property
    def label_sizes(self) -> dict[str, int]:
        return SIZES | self.sizes

    def inputs(self, dtype: str, seed: int = 0) -> list[Array]:
        """Random inputs, made consistent; float ones in `dtype`."""
        rng = np.random.default_rng(seed)
        arrays = []
        for number, operand in enumerate(parse(self.labels).inputs):
            shape = shape_of(operand, self.label_sizes)
            if number in self.ids:
                below = self.label_sizes[self.ids_below]
                arrays.append(rng.integers(self.lowest_id, below, shape).astype(np.int32))
            else:
                arrays.append(rng.standard_normal(shape))
        derived = self.derive(*arrays)
        return [array if array.dtype == np.int32 else array.astype(dtype) for array in derived]

    def expected(self, inputs: list[Array]) -> tuple[Array, ...]:
        """The outputs by the oracle, in float64."""
        wide = [a if a.dtype == np.int32 else a.astype(np.float64) for a in inputs]
        if self.formula is not None:
            return (self.formula(*wide),)
        return evaluate(
            self.kind, self.labels, wide, attributes=self.attributes, sizes=self.label_sizes
        )


def splittable(example: Example) -> list[str]:
    """Labels that the op table lets be split."""
    expression = parse(example.labels)
    reduction = OPS[example.kind].reduction
    outputs = [{x for dim in operand for x in dim} for operand in expression.outputs]
    return [
        label
        for label in expression.splittable
        if reduction is not None or all(label in labels for labels in outputs)
    ]
