"""Bytes that kernels bound by memory move, counted by their loads and stores: all once, no more.

Beside what is as large as the data itself, threads read what all rows share (weights, tables), what
is kept of a row, and ids; caches hold these, so they are counted apart. `pytest -s` prints all.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from millrace.executor.cuda.calls import Calls, CallTensor, read, same_calls, workspace, write
from millrace.executor.cuda.kernels.column_sums import ColumnSums, column_sum
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.multi_tensor.moves import accumulate, cast, squared_sum
from millrace.executor.cuda.kernels.multi_tensor.updates import UpdatedVariable, adamw
from millrace.executor.cuda.kernels.rows.norms import NormResidual, norm, norm_grad_input
from millrace.executor.kernels.context import Array, Shard, whole_shard
from tests.executor.cuda.call_trees import operands_of
from tests.executor.cuda.calling import Operands, context_of, empty, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of, traffic

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

ROWS, COLUMNS = 64, 2048
SIZE = ROWS * COLUMNS
BF16 = whole_shard((ROWS, COLUMNS), "bfloat16")
WIDE = whole_shard((ROWS, COLUMNS), "float32")


def traffic_bytes(
    calls: Calls, inputs: Sequence[Shard], outputs: Sequence[Shard], states: Sequence[Shard] = ()
) -> tuple[int, int]:
    """Bytes that all calls read and write of what is large, and of the rest."""
    rng = np.random.default_rng(0)

    def random_array(shard: Shard) -> Array:
        if shard.dtype == "int32":
            return to_device(rng.integers(0, COLUMNS, shard.shape), "int32")
        return to_device(rng.standard_normal(shard.shape), shard.dtype)

    operands = Operands(
        calls, [random_array(shard) for shard in inputs], [empty(shard) for shard in outputs]
    )
    operands.state = [random_array(shard) for shard in states]
    machine, large, small = Emulator(functions_of(calls.of(1))), 0, 0
    for call in calls.of(1):
        ranges = list(dict.fromkeys(operands.ranges(call)))
        machine.run(call, operands.address, ranges)
        assert len(list(operands_of(call))) >= len(ranges)
        for (begin, end), counts in zip(ranges, traffic(ranges), strict=True):
            if end - begin >= SIZE:
                large += sum(counts)
            else:
                small += sum(counts)
    return large, small


def tensor(number: int, dtype: str = "bfloat16", size: int = SIZE) -> CallTensor:
    return CallTensor(read(number), dtype, size)


def norm_calls(*, added: bool) -> Calls:
    residual = NormResidual(other=read(3), total=write(0)) if added else None
    return same_calls(
        norm(
            tensor(0), tensor(1, size=COLUMNS), write(1), CallTensor(write(3), "float32", ROWS),
            columns=COLUMNS, epsilon=1e-5, beta=read(2), mean=write(2), residual=residual,
        )
    )  # fmt: skip


def gradient_calls(*, added: bool, weights: bool) -> Calls:
    outputs = tuple(CallTensor(write(1 + number), "float32", COLUMNS) for number in range(2))
    sums = ColumnSums(outputs=outputs, hold=2, scratch=workspace())
    return norm_grad_input(
        tensor(0), tensor(1), tensor(2, size=COLUMNS), tensor(4, "float32", ROWS), write(0),
        columns=COLUMNS, mean=read(3), other=read(5) if added else None,
        weights=sums if weights else None,
    )  # fmt: skip


STATISTICS = whole_shard((ROWS,), "float32")
WEIGHT = whole_shard((COLUMNS,), "bfloat16")
FORWARD = [BF16, WEIGHT, WEIGHT, BF16], [BF16, BF16, STATISTICS, STATISTICS]
BACKWARD = (
    [BF16, BF16, WEIGHT, STATISTICS, STATISTICS, BF16],
    [BF16, whole_shard((COLUMNS,), "float32"), whole_shard((COLUMNS,), "float32")],
)
LOSS = [whole_shard((ROWS, COLUMNS), "bfloat16"), whole_shard((ROWS,), "int32"), STATISTICS]


def op(kind: str, labels: str, inputs: Sequence[Shard], outputs: Sequence[Shard]) -> Calls:
    return make_calls(context_of(kind, labels, inputs, outputs))


def update_calls() -> Calls:
    variable = UpdatedVariable(
        value=tensor(0, "float32"), gradient=tensor(1, "float32"), next_value=read(0),
        state=(write(0), write(1)),
    )  # fmt: skip
    return adamw([variable], tensor(2, "float32", 3), tensor(3, "float32", 1))


def pairs(source: str, target: str, size: int = SIZE) -> list[tuple[CallTensor, CallTensor]]:
    return [(tensor(0, source), CallTensor(write(0), target, size))]


FLAT = "b n, b n -> b n"
SCALAR = whole_shard((), "float32")
# A case has a name, calls, inputs, outputs, and the bytes of every element that must be moved.
CASES = [
    ("add", op("add", FLAT, [BF16] * 2, [BF16]), [BF16] * 2, [BF16], 6),
    ("bias", op("add", "b n, n -> b n", [BF16, WEIGHT], [BF16]), [BF16, WEIGHT], [BF16], 4),
    (
        "swiglu_grad",
        op("swiglu_grad", "b n, b n, b n -> b n, b n", [BF16] * 3, [BF16] * 2),
        [BF16] * 3,
        [BF16] * 2,
        10,
    ),
    ("cast", op("cast", "b n -> b n", [WIDE], [BF16]), [WIDE], [BF16], 6),
    (
        "transpose",
        op("rearrange", "b n -> n b", [BF16], [whole_shard((COLUMNS, ROWS), "bfloat16")]),
        [BF16],
        [BF16],
        4,
    ),
    ("softmax", op("softmax", "b n! -> b n!", [BF16], [BF16]), [BF16], [BF16], 4),
    (
        "cross_entropy",
        op("cross_entropy", "b v!, b -> b, b", LOSS[:2], [STATISTICS] * 2),
        LOSS[:2],
        [STATISTICS] * 2,
        2,
    ),
    (
        "cross_entropy_grad",
        op("cross_entropy_grad", "b v, b, b -> b v", LOSS, [BF16]),
        LOSS,
        [BF16],
        4,
    ),
    ("layer_norm", norm_calls(added=False), *FORWARD, 4),
    ("add + layer_norm", norm_calls(added=True), *FORWARD, 8),
    ("layer_norm_grad_input", gradient_calls(added=False, weights=False), *BACKWARD, 6),
    ("layer_norm_grad_input + add", gradient_calls(added=True, weights=False), *BACKWARD, 8),
    ("all gradients of layer_norm + add", gradient_calls(added=True, weights=True), *BACKWARD, 8),
    (
        "sum of rows + accumulate",
        column_sum(
            tensor(0),
            ColumnSums(outputs=(CallTensor(write(0), "float32", COLUMNS),), hold=2),
            columns=COLUMNS,
        ),
        [BF16],
        [whole_shard((COLUMNS,), "float32")],
        2,
    ),
    (
        "adamw of many",
        update_calls(),
        [WIDE, WIDE, whole_shard((3,), "float32"), SCALAR],
        [WIDE] * 2,
        28,
    ),
    ("cast of many", cast(pairs("float32", "bfloat16")), [WIDE], [BF16], 6),
    ("accumulate of many", accumulate(pairs("bfloat16", "float32"), 2), [BF16], [WIDE], 10),
    ("squared_sum of many", squared_sum(pairs("float32", "float32", 1)), [WIDE], [SCALAR], 4),
]


@pytest.mark.parametrize(
    ("name", "calls", "inputs", "outputs", "least"), CASES, ids=[case[0] for case in CASES]
)
def test_what_is_large_is_moved_once(
    name: str, calls: Calls, inputs: Sequence[Shard], outputs: Sequence[Shard], least: int
) -> None:
    large, small = traffic_bytes(calls, inputs, outputs)
    print(f"{name}: {large / SIZE:.3f} bytes an element of {least}, and {small / SIZE:.3f} shared")
    # sums of slabs are as large as the data where there are as few rows as here
    assert large <= least * SIZE + (16 * SIZE if "gradients" in name else ROWS * 64)
