"""Every kernel against the oracle of `tests.models`, on the samples of the op table.

Kernels and oracle were written apart, from the table's descriptions: where both read a description
in one way, it says what it means.
"""

import numpy as np
import pytest

from millrace.executor.kernels import KERNELS
from millrace.executor.kernels.context import whole_shard
from millrace.models.labels import parse, shape_of
from millrace.models.ops import OPS
from tests.executor.kernel_calls import call
from tests.models.op_samples import SAMPLES, Sample
from tests.models.oracle import evaluate

# Dropout's bits are a kernel's own matter; the totals are also recorded, in tests of their own.
APART = {"dropout", "step_totals"}
CASES = [
    pytest.param(kind, sample, id=f"{kind}: {sample.labels} {sample.attributes or ''}")
    for kind, samples in SAMPLES.items()
    if kind in KERNELS and kind not in APART
    for sample in samples
]


@pytest.mark.parametrize(("kind", "sample"), CASES)
def test_a_kernel_computes_what_the_oracle_does(kind: str, sample: Sample) -> None:
    inputs = [x if x.dtype == np.float64 else x.astype(np.int32) for x in sample.inputs()]
    shapes = [shape_of(operand, sample.all_sizes) for operand in parse(sample.labels).outputs]
    dtypes = [
        "int32" if position in OPS[kind].integer_outputs else "float64"
        for position in range(len(shapes))
    ]
    outputs = [whole_shard(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    computed = call(kind, sample.labels, inputs, outputs, attributes=sample.attributes)
    expected = evaluate(kind, sample.labels, inputs, shapes, sample.attributes)
    for output, reference in zip(computed, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=1e-8, atol=1e-8)
