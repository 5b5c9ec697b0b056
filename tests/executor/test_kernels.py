"""Every kernel against the oracle of `tests.models`, whole and cut along any labels it may be."""

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from millrace.executor.cuda.kernels.kernel_table import CALLS
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import KERNELS, KernelContext, make_kernel
from millrace.executor.kernels.context import Array, Shard, whole_shard
from millrace.models.labels import parse, shape_of
from millrace.models.ops import OPS
from tests.executor.examples.example import Example, splittable
from tests.executor.examples.table import EXAMPLES
from tests.executor.kernel_calls import call, call_sharded, run_state

NO_KERNEL = {"variable", "repeat"}  # read from registers, which hold them
LOCAL_BOXING = {"slice", "pad"}
TOLERANCE = {"float64": 1e-11, "float32": 2e-4}

every_kind = pytest.mark.parametrize("kind", dict.fromkeys(example.kind for example in EXAMPLES))


def of_kind(kind: str, check: Callable[[Example], None]) -> None:
    """Check every example of a kind, and tell of all that fail."""
    complaints = []
    for example in EXAMPLES:
        if example.kind == kind:
            try:
                check(example)
            except AssertionError as error:
                complaints.append(f"{example.labels} {example.attributes or ''}: {error}")
    assert not complaints, "\n".join(complaints)


def is_large(example: Example) -> bool:
    """True if an example may be as large as a test of memory wants it."""
    return bool(example.large) or not example.sizes


def output_shards(example: Example, dtype: str) -> list[Shard]:
    integers = OPS[example.kind].integer_outputs
    return [
        whole_shard(
            shape_of(operand, example.label_sizes), "int32" if position in integers else dtype
        )
        for position, operand in enumerate(parse(example.labels).outputs)
    ]


def assert_close(outputs: list[Array], expected: tuple[Array, ...], dtype: str) -> None:
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_every_op_kind_has_a_kernel_and_every_kernel_an_op_kind():
    assert set(KERNELS) == set(OPS) - NO_KERNEL | LOCAL_BOXING


def test_every_kernel_of_a_cpu_has_one_on_gpus():
    assert set(CALLS) == set(KERNELS)


def test_every_kernel_has_an_example_or_a_test_of_its_own():
    elsewhere = LOCAL_BOXING | {"input", "adamw", "sgd", "step_totals", "learning_rate"}
    elsewhere |= {"momentum", "muon", "newton_schulz"}
    assert {example.kind for example in EXAMPLES} | elsewhere == set(KERNELS)


@every_kind
def test_a_kernel_computes_what_the_oracle_does(kind: str):
    of_kind(kind, assert_computes_what_the_oracle_does)


def assert_computes_what_the_oracle_does(example: Example) -> None:
    for dtype in TOLERANCE:
        inputs = example.inputs(dtype)
        shards = output_shards(example, dtype)
        outputs = call(example.kind, example.labels, inputs, shards, attributes=example.attributes)
        assert_close(outputs, example.expected(inputs), dtype)


def splits_of(example: Example) -> Iterator[dict[str, int]]:
    """Yield every split of one label that the op table allows, and all labels split at once."""
    parts = {
        label: [count for count in (2, 3, 4, 8) if example.label_sizes[label] % count == 0]
        for label in splittable(example)
    }
    yield from ({label: count} for label, counts in parts.items() for count in counts)
    yield {label: counts[0] for label, counts in parts.items() if counts}


@every_kind
def test_shards_put_together_equal_the_whole(kind: str):
    of_kind(kind, assert_shards_equal_the_whole)


def assert_shards_equal_the_whole(example: Example) -> None:
    inputs = example.inputs("float64")
    expected = example.expected(inputs)
    for splits in splits_of(example):
        outputs = call_sharded(
            example.kind, example.labels, inputs, output_shards(example, "float64"), splits,
            attributes=example.attributes, reduction=OPS[example.kind].reduction,
        )  # fmt: skip
        assert_close(outputs, expected, "float64")


@pytest.mark.parametrize("kind", dict.fromkeys(e.kind for e in EXAMPLES if OPS[e.kind].linear))
def test_partial_inputs_give_partial_outputs_where_the_table_says_linear(kind: str):
    of_kind(kind, assert_is_linear)


def assert_is_linear(example: Example) -> None:
    row = OPS[example.kind]
    inputs = example.inputs("float64")
    shards = output_shards(example, "float64")
    joint = row.linear == "joint"
    for positions in [tuple(range(len(inputs)))] if joint else [(index,) for index in row.linear]:
        other = example.inputs("float64", seed=1)
        first = [other[i] if i in positions else x for i, x in enumerate(inputs)]
        second = [x - other[i] if i in positions else x for i, x in enumerate(inputs)]
        partial = [
            call(example.kind, example.labels, given, shards, attributes=example.attributes)
            for given in (first, second)
        ]
        total = [a + b for a, b in zip(*partial, strict=True)]
        assert_close(total, example.expected(inputs), "float64")


NUMPY_BUFFERS_BYTES = 3 * 8192 * 4 + 4096  # a ufunc's own, of three operands
LARGE = {
    "b": 8, "t": 256, "s": 256, "h": 4, "d": 64, "k": 512, "n": 512, "v": 512, "p": 400,
    "i": 256, "j": 64,
}  # fmt: skip


@pytest.mark.parametrize("kind", dict.fromkeys(e.kind for e in EXAMPLES if is_large(e)))
def test_a_firing_takes_little_memory_of_its_own(kind: str):
    of_kind(kind, assert_takes_little_memory)


def assert_takes_little_memory(example: Example) -> None:
    if not is_large(example):
        return
    large = replace(example, sizes=LARGE | example.sizes | example.large)
    inputs, shards = large.inputs("float32"), output_shards(large, "float32")
    kernel = make_kernel(
        KernelContext(
            kind=large.kind, name="large", labels=large.labels, attributes=large.attributes,
            inputs=tuple(whole_shard(array.shape, str(array.dtype)) for array in inputs),
            outputs=tuple(shards), run=run_state(),
        )
    )  # fmt: skip
    outputs = [np.zeros(shard.shape, shard.dtype) for shard in shards]
    kernel(0, inputs, outputs)
    tracemalloc.start()
    kernel(0, inputs, outputs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = max(array.nbytes for array in (*inputs, *outputs))
    assert peak < NUMPY_BUFFERS_BYTES + largest / 8


def test_logits_far_from_zero_overflow_nothing():
    logits = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    targets = np.array([1], np.int32)
    loss, logsumexp = call(
        "cross_entropy", "b v!, b -> b, b", [logits, targets], [whole_shard((1,), "float32")] * 2
    )
    np.testing.assert_allclose(loss, [1 + np.log1p(np.exp(-1))], rtol=1e-3)
    (slope,) = call(
        "cross_entropy_grad", "b v, b, b -> b v", [logits, targets, logsumexp],
        [whole_shard((1, 3), "float32")],
    )  # fmt: skip
    np.testing.assert_allclose(slope.sum(), 0, atol=1e-3)


def test_accumulate_overwrites_at_the_first_of_its_firings_and_adds_after():
    shard = whole_shard((3,), "float32")
    kernel = make_kernel(
        KernelContext(
            kind="accumulate", name="a", labels="n -> n", attributes={}, inputs=(shard,),
            outputs=(shard,), output_hold=3, run=run_state(),
        )
    )  # fmt: skip
    total = np.full(3, 99, np.float32)
    seen = []
    for firing in range(6):
        kernel(firing, [np.full(3, firing, np.float32)], [total])
        seen.append(float(total[0]))
    assert seen == [0, 1, 3, 3, 7, 12]


def test_cast_goes_between_float_widths():
    x = np.array([1.0, 1 / 3], np.float64)
    (narrow,) = call("cast", "n -> n", [x], [whole_shard((2,), "float32")])
    np.testing.assert_array_equal(narrow, x.astype(np.float32))


def test_matmul_refuses_a_label_that_only_one_operand_has():
    with pytest.raises(ExecutorError, match="sum it with an op `sum` first"):
        call(
            "matmul", "b t k, k n -> b n",
            [np.zeros((2, 3, 4)), np.zeros((4, 5))], [whole_shard((2, 5), "float64")],
        )  # fmt: skip


def test_an_unknown_kind_is_named():
    with pytest.raises(ExecutorError, match="no NumPy kernel for op kind `fold`"):
        call("fold", "n -> n", [np.zeros(2)], [whole_shard((2,), "float64")])
