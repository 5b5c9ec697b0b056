"""Effect of rounding alone on a small model's training: the measure of what a device may do.

A trajectory in 32 or 16 bits goes its own way soon; how soon depends on the model. So the same
steps are made in NumPy at two precisions, and a device may be off by a few times what these differ.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from msgspec.structs import replace

from millrace.executor.data import open_dataset
from millrace.executor.kernels import Kernel
from millrace.executor.kernels.context import Array
from millrace.executor.reference import Reference
from millrace.models.graph import Op
from millrace.models.zoo.catalogue import build_training
from tests.executor.cuda.emulation.machine import to_stored, to_wide
from tests.executor.gpu.plans import MICROBATCHES, TRAINING, batch_of
from tests.small_models import small

FACTOR = 8  # factors up to 3 were seen in runs of a few steps (November 2026)
NARROW = ("bfloat16", "float16")
Changes = tuple[tuple[str, object], ...]  # changes of a model's configuration


def losses_and_norms(totals: Sequence[tuple[float, float, float]]) -> Array:
    """Mean loss, and norm of the gradients of a token, of every step [steps, 2]."""
    return np.array([(loss / count, np.sqrt(squares) / count) for loss, count, squares in totals])


def assert_off_by_rounding_alone(
    actual: Array, model: str, precision: str, changes: Changes = ()
) -> None:
    """Assert that a device's losses and gradient norms are as near to exact ones as NumPy's are."""
    batch = batch_of(model, precision)
    exact, rounded = (
        in_numpy(model, arithmetic, len(actual), batch, changes)
        for arithmetic in ("fp64", precision)
    )
    spread = np.abs(rounded - exact).max(axis=0)
    off = np.abs(actual - exact).max(axis=0)
    np.testing.assert_array_less(off, FACTOR * spread)


@cache
def in_numpy(model: str, precision: str, steps: int, batch: int, changes: Changes) -> Array:
    """Losses and norms of a single device: all that a plan stores in 16 bits is rounded to them."""
    spec = small(model, precision)
    spec = replace(spec, config=spec.config | dict(changes))
    graph = build_training(spec, TRAINING, batch // MICROBATCHES)
    narrow = {tensor.name: tensor.dtype for tensor in graph.tensors if tensor.dtype in NARROW}
    tensors = tuple(
        replace(tensor, dtype="float32") if tensor.name in narrow else tensor
        for tensor in graph.tensors
    )

    def rounding(op: Op, kernel: Kernel) -> Kernel:
        def run(firing: int, inputs: list[Array], outputs: list[Array]) -> None:
            kernel(firing, inputs, outputs)
            for name, output in zip(op.outputs, outputs, strict=True):
                if name in narrow:
                    output[...] = to_wide(to_stored(output, narrow[name]), narrow[name])

        return run

    dataset = open_dataset(None, spec, 0)
    run = Reference(replace(graph, tensors=tensors), MICROBATCHES, dataset, 0)
    for group in (run._begin, run._microbatch, run._end, run._update):
        group[:] = [(op, rounding(op, kernel)) for op, kernel in group]
    for _ in range(steps):
        run.step()
    return losses_and_norms(run.run.totals)
