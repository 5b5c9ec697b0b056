"""Work on many tensors at once, on the emulator, against what is done to one after the other."""

from collections.abc import Sequence

import numpy as np
import pytest

from millrace.executor.cuda.calls import (
    POINTERS_MAX,
    Calls,
    CallTensor,
    Launch,
    Operand,
    Pointers,
    read,
    state,
    write,
)
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.multi_tensor.moves import accumulate, cast, squared_sum
from millrace.executor.cuda.kernels.multi_tensor.tensor_chunks import CHUNK_MAX, CHUNK_MIN, groups
from millrace.executor.cuda.kernels.multi_tensor.updates import UpdatedVariable, adamw, sgd
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.cuda.calling import Operands, context_of, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.cuda.test_optimizer import carry_out, control_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

SIZES = (1, 7, 64, 2048, 5001, 3)
ADAMW = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "clip_norm": 0.5}
SGD = {"weight_decay": 0.1, "clip_norm": 0.5}


def numbers(sizes: Sequence[int], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size) for size in sizes]


def carried_out(
    calls: Calls,
    reads: Sequence[Array],
    writes: Sequence[Array],
    states: Sequence[Array] = (),
    firings: Sequence[int] = (0,),
) -> None:
    operands = Operands(calls, reads, writes)
    operands.control, operands.state = control_of(updates=5), states
    operands.carry_out([call for firing in firings for call in calls.of(firing)])


@pytest.mark.parametrize("gradient_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "attributes", "states"),
    [("adamw", ADAMW, 2), ("sgd", SGD, 0), ("sgd", SGD | {"momentum": 0.9}, 1)],
)
def test_many_variables_are_updated_as_each_alone(
    kind: str, attributes: dict[str, float], states: int, gradient_dtype: str
) -> None:
    values = [to_device(array, "float32") for array in numbers(SIZES)]
    slopes = [to_device(array, gradient_dtype) for array in numbers(SIZES, 1)]
    initial_state = [
        to_device(abs(array), "float32")
        for array_number in range(states)
        for array in numbers(SIZES, 2 + array_number)
    ]  # fmt: skip
    totals, rate = np.array([3, 40, 500], np.float32), np.array(0.1, np.float32)
    alone_state, expected = [array.copy() for array in initial_state], []
    for number, size in enumerate(SIZES):
        shards = [
            whole_shard((size,), "float32"),
            whole_shard((size,), gradient_dtype),
            whole_shard((3,), "float32"),
            whole_shard((), "float32"),
        ]
        calls = make_calls(context_of(kind, "", shards, shards[:1], attributes))
        variable_state = alone_state[number :: len(SIZES)]
        room = [to_device(array, "float32") for array in variable_state]
        output = empty(shards[0])
        machine = Emulator(functions_of(calls.of(0)))
        reads = [values[number], slopes[number], totals, rate]
        carry_out(machine, calls, reads, [output], control=control_of(updates=5), state=room)
        expected.append(output)
        for old_state, new_state in zip(variable_state, room, strict=True):
            old_state[...] = new_state
    count = len(SIZES)
    variables = [
        UpdatedVariable(
            value=CallTensor(read(number), "float32", size),
            gradient=CallTensor(read(count + number), gradient_dtype, size),
            next_value=write(number),
            state=tuple(state(number + count * array_number) for array_number in range(states)),
        )
        for number, size in enumerate(SIZES)
    ]
    make = adamw if kind == "adamw" else sgd
    calls = make(
        variables,
        CallTensor(read(2 * count), "float32", 3),
        CallTensor(read(2 * count + 1), "float32", 1),
        **attributes,
    )
    assert len(calls.of(0)) == 1
    outputs = [empty(whole_shard((size,), "float32")) for size in SIZES]
    carried_out(calls, [*values, *slopes, totals, rate], outputs, initial_state)
    for updated, reference in zip(
        [*outputs, *initial_state], [*expected, *alone_state], strict=True
    ):
        np.testing.assert_array_equal(updated, reference)


PAIRS = [
    ("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32"),
    ("float32", "float32"), ("float64", "float64"), ("bfloat16", "bfloat16"),
]  # fmt: skip


def tensors(sizes: Sequence[int], source: str, target: str) -> list[tuple[CallTensor, CallTensor]]:
    return [
        (CallTensor(read(number), source, size), CallTensor(write(number), target, size))
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_many_tensors_are_cast(source: str, target: str) -> None:
    given = [to_device(array, source) for array in numbers(SIZES)]
    outputs = [empty(whole_shard((size,), target)) for size in SIZES]
    carried_out(cast(tensors(SIZES, source, target)), given, outputs)
    for output, input_array in zip(outputs, given, strict=True):
        np.testing.assert_array_equal(output, to_device(loaded(input_array, source), target))


@pytest.mark.parametrize(("source", "target"), PAIRS[2:])
def test_many_sums_begin_anew_with_every_version(source: str, target: str) -> None:
    given = [to_device(array, source) for array in numbers(SIZES)]
    outputs = [empty(whole_shard((size,), target)) for size in SIZES]
    calls = accumulate(tensors(SIZES, source, target), hold=3)
    carried_out(calls, given, outputs, firings=(0, 1, 3, 4, 5))
    for output, input_array in zip(outputs, given, strict=True):
        value = loaded(input_array, source)
        twice = loaded(to_device(value + value, target), target)
        np.testing.assert_array_equal(output, to_device(twice + value, target))


@pytest.mark.parametrize(
    ("source", "target"), [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")]
)
def test_sums_of_squares_of_many_go_to_their_own_places(source: str, target: str) -> None:
    sizes = (*SIZES, CHUNK_MIN * 5 + 1, 0)
    given = [to_device(array, source) for array in numbers(sizes)]
    outputs = [empty(whole_shard((), target)) for _ in sizes]
    pairs = [
        (tensor, sum_tensor._replace(size=1))
        for tensor, sum_tensor in tensors(sizes, source, target)
    ]
    carried_out(squared_sum(pairs), given, outputs)
    for output, input_array in zip(outputs, given, strict=True):
        expected = np.sum(loaded(input_array, source).astype(np.float64) ** 2)
        np.testing.assert_allclose(output, expected, rtol=1e-13 if target == "float64" else 1e-7)


def test_tensors_of_several_dtypes_are_told_apart() -> None:
    sizes, dtypes = (5, 6, 7), ("float32", "float16", "float32")
    pairs = [
        (CallTensor(read(number), dtype, size), CallTensor(write(number), "bfloat16", size))
        for number, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True))
    ]
    given = [to_device(array, dtype) for array, dtype in zip(numbers(sizes), dtypes, strict=True)]
    outputs = [empty(whole_shard((size,), "bfloat16")) for size in sizes]
    calls = cast(pairs)
    assert len(calls.of(0)) == 2
    carried_out(calls, given, outputs)
    for output, input_array, dtype in zip(outputs, given, dtypes, strict=True):
        np.testing.assert_array_equal(output, to_device(loaded(input_array, dtype), "bfloat16"))


def test_more_tensors_than_a_launch_takes_are_several_launches() -> None:
    count = POINTERS_MAX // 2 + 3
    sizes = [1 + number % 5 for number in range(count)]
    given = [to_device(array, "float32") for array in numbers(sizes)]
    outputs = [empty(whole_shard((size,), "bfloat16")) for size in sizes]
    calls = cast(tensors(sizes, "float32", "bfloat16"))
    launches = [launch for launch in calls.of(0) if isinstance(launch, Launch)]
    assert [launch.function for launch in launches] == [
        "move_many<false, float, bf16, 240>",
        "move_many<false, float, bf16, 8>",
    ]
    assert [
        len(launch.args[0].operands) for launch in launches if isinstance(launch.args[0], Pointers)
    ] == [
        480,
        16,
    ]
    carried_out(calls, given, outputs)
    for output, input_array in zip(outputs, given, strict=True):
        np.testing.assert_array_equal(output, to_device(input_array, "bfloat16"))


def test_chunks_are_equal_and_cover_every_tensor_once() -> None:
    sizes = (3 * CHUNK_MAX, 100_000_000, 5)
    (group,) = groups("cast", tensors(sizes, "float32", "bfloat16"))
    chunks = group.chunks
    assert group.length == CHUNK_MAX
    assert group.chunks_of_tensors == (3, 6104, 1)
    assert chunks[:, 2].max() == CHUNK_MAX
    for tensor, size in enumerate(sizes):
        tensor_chunks = chunks[chunks[:, 0] == tensor]
        assert tensor_chunks[:, 2].sum() == size
        np.testing.assert_array_equal(
            tensor_chunks[:, 1], np.arange(len(tensor_chunks)) * CHUNK_MAX
        )
    (small,) = groups("cast", tensors((5, 6), "float32", "bfloat16"))
    assert small.length == CHUNK_MIN


def test_what_does_not_fit_together_is_refused() -> None:
    source, target = CallTensor(read(0), "float32", 5), CallTensor(write(0), "int32", 5)
    with pytest.raises(ExecutorError, match="needs operands of one size, found 5, 4"):
        cast([(source, target._replace(size=4))])
    with pytest.raises(ExecutorError, match="from float32 to int32 would lose fractions"):
        cast([(source, target)])
    variable = UpdatedVariable(value=source, gradient=source, next_value=Operand("write"))
    with pytest.raises(ExecutorError, match="keeps 2 arrays of state of each, found 0"):
        adamw([variable], source, source)
