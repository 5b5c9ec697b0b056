"""Optimizers, totals, the learning rate and the end of a step, against the NumPy kernels."""

from collections.abc import Sequence
from functools import cache
from math import inf, nan

import numpy as np
import pytest

from millrace.executor.cuda.calls import Calls, CopyCall, Launch, Operand, same_calls
from millrace.executor.cuda.control import (
    CONTROL_DTYPE,
    HISTORY_FIELDS,
    control_bytes,
    finish_step_call,
)
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.pieces import HostArray, in_pieces
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import KernelContext, make_kernel
from millrace.executor.kernels.context import Array, Shard, whole_shard
from millrace.executor.shards import RankShards
from millrace.planner.compile import compile_plan
from millrace.planner.sbp import BROADCAST, PARTIAL_SUM, split
from tests.executor.cuda.calling import Operands, context_of, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.kernel_calls import call as call_on_cpu
from tests.executor.kernel_calls import run_state
from tests.plan_requests import plan_of
from tests.small_models import small

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

ADAMW = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "clip_norm": 0.5}
SIZE = 1000
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}
OPTIMIZERS = [
    ("adamw", ADAMW, 2),
    ("adamw", {"beta1": 0.0, "clip_norm": 0.0}, 2),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 0.5}, 1),
    ("sgd", {"momentum": 0.0, "weight_decay": 0.1}, 0),
]
every_optimizer = pytest.mark.parametrize(("kind", "attributes", "state_count"), OPTIMIZERS)


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    names = ["finish_step_alone"]
    names += [
        f"add_scalars<{type_name}, {n}>" for type_name in ("float", "double") for n in (1, 16, 480)
    ]
    for type_name in ("float", "double"):
        names += [
            f"{name}<{type_name}>" for name in ("store_totals", "learning_rate", "finish_step")
        ]
        names += [
            f"squared_sum<{type_name}, {type_name}>",
            f"squared_parts<{type_name}>",
            f"sum_of_parts<{type_name}>",
        ]
        for name in ("adamw", "sgd", "sgd_momentum"):
            names.append(f"{name}<{type_name}, {type_name}, {type_name}, {type_name}>")
    names += ["loss_scaled_fill<float>", "loss_scaled_fill<f16>"]
    names += [
        "squared_sum<bf16, float>",
        "squared_sum<f16, float>",
        "adamw<float, f16, float, float>",
    ]
    return Emulator({"optimizer": names, "pointwise": ["value<Same, float, bf16>"]})


def control_of(**fields: float) -> Array:
    """A `Control` with room behind it, as bytes."""
    control = np.frombuffer(control_bytes(0, "fp32"), CONTROL_DTYPE).copy()
    for name, value in fields.items():
        control[name] = value
    return np.concatenate([control.view(np.uint8), np.zeros(64, np.uint8)])


def fields_of(control: Array) -> dict[str, float]:
    (row,) = control[: CONTROL_DTYPE.itemsize].view(CONTROL_DTYPE)
    return {name: row[name].item() for name in CONTROL_DTYPE.names or ()}


def carry_out(
    emulator: Emulator,
    calls: Calls,
    reads: Sequence[Array],
    writes: Sequence[Array],
    *,
    control: Array | None = None,
    state: Sequence[Array] = (),
    buffer: Array | None = None,
) -> None:
    operands = Operands(calls, reads, writes)
    operands.control = control_of() if control is None else control
    operands.state, operands.buffer = state, buffer
    operands.carry_out(calls.of(0), emulator)


def single_output(
    emulator: Emulator,
    kind: str,
    inputs: Sequence[Array],
    output: Shard,
    dtypes: Sequence[str] = (),
    control: Array | None = None,
    **more: object,
) -> Array:
    """The one output of an actor."""
    names = dtypes or [str(array.dtype) for array in inputs]
    shards = [whole_shard(array.shape, dtype) for array, dtype in zip(inputs, names, strict=True)]
    calls = make_calls(context_of(kind, "", shards, [output], **more))  # type: ignore[arg-type]
    reads = [to_device(array, dtype) for array, dtype in zip(inputs, names, strict=True)]
    written = empty(output)
    carry_out(emulator, calls, reads, [written], control=control)
    return loaded(written, output.dtype)


def optimizer_run(
    emulator: Emulator,
    kind: str,
    attributes: dict[str, float],
    state_count: int,
    dtype: str,
    *,
    device: bool = True,
    loss_scale: float = 1.0,
    buffer_bytes: int = 0,
    variable_in_host: bool = False,
    first_step: int = 0,
) -> list[Array]:
    """Fire an optimizer for three steps; return the variable and the state after them."""
    rng = np.random.default_rng(0)
    shards = (whole_shard((SIZE,), dtype),) * 2 + (whole_shard((3,), dtype), whole_shard((), dtype))
    state = [np.zeros(SIZE, dtype) for _ in range(state_count)]
    context = KernelContext(
        kind=kind, name="w.next", labels="n, n, z!, -> n",
        attributes={"variable": "w", **attributes}, inputs=shards, outputs=shards[:1],
        run=run_state(first_step=first_step), state=() if device else state,
        buffer_bytes=buffer_bytes, variable_in_host=variable_in_host,
    )  # fmt: skip
    w = rng.standard_normal(SIZE).astype(dtype)
    rate = np.array(0.01, dtype)
    calls = make_calls(context) if device else None
    kernel = None if device else make_kernel(context)
    buffer = np.full(buffer_bytes + 64, 77, np.uint8)
    for firing in range(3):
        gradient = (100 * rng.standard_normal(SIZE)).astype(dtype)
        gradient *= loss_scale
        totals = np.array([700, 100, np.sum(gradient**2)], dtype)
        # the next value lies in the memory of the value
        if kernel is not None:
            kernel(firing, [w, gradient, totals, rate], [w])
        if calls is not None:
            control = control_of(updates=first_step + firing, loss_scale=loss_scale)
            reads = [w, gradient, totals, rate]
            carry_out(emulator, calls, reads, [w], control=control, state=state, buffer=buffer)
    return [w, *state]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@every_optimizer
def test_an_optimizer_does_as_the_numpy_kernel(
    emulator: Emulator, kind: str, attributes: dict[str, float], state_count: int, dtype: str
) -> None:
    run = (emulator, kind, attributes, state_count, dtype)
    expected = optimizer_run(*run, device=False, first_step=5)
    for output, reference in zip(optimizer_run(*run, first_step=5), expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@every_optimizer
def test_the_loss_scale_is_divided_out(
    emulator: Emulator, kind: str, attributes: dict[str, float], state_count: int
) -> None:
    run = (emulator, kind, attributes, state_count, "float32")
    for output, reference in zip(
        optimizer_run(*run, loss_scale=1024.0), optimizer_run(*run), strict=True
    ):
        np.testing.assert_allclose(output, reference, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("variable_in_host", [False, True])
@pytest.mark.parametrize(("kind", "attributes", "state_count"), OPTIMIZERS[:3])
def test_state_that_passes_through_a_buffer_in_pieces_gives_the_same_bits(
    emulator: Emulator,
    kind: str,
    attributes: dict[str, float],
    state_count: int,
    dtype: str,
    variable_in_host: bool,
) -> None:
    run = (emulator, kind, attributes, state_count, dtype)
    expected = optimizer_run(*run)
    arrays = state_count + variable_in_host
    for pieces in (1, 3, 7):
        size = -(-SIZE * arrays * np.dtype(dtype).itemsize // pieces) + 16 * arrays
        outputs = optimizer_run(*run, buffer_bytes=size, variable_in_host=variable_in_host)
        for output, reference in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(output, reference)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("squares", [inf, nan])
@every_optimizer
def test_a_step_whose_gradients_are_not_finite_changes_nothing(
    emulator: Emulator,
    kind: str,
    attributes: dict[str, float],
    state_count: int,
    squares: float,
    dtype: str,
) -> None:
    rng = np.random.default_rng(1)
    shards = (whole_shard((SIZE,), dtype),) * 2 + (whole_shard((3,), dtype), whole_shard((), dtype))
    calls = make_calls(context_of(kind, "", shards, shards[:1], attributes))
    w = rng.standard_normal(SIZE).astype(dtype)
    state = [rng.standard_normal(SIZE).astype(dtype) for _ in range(state_count)]
    before = [w.copy(), *(array.copy() for array in state)]
    next_w = empty(shards[0])
    reads = [w, np.full(SIZE, squares, dtype), np.array([1, 2, squares], dtype)]
    carry_out(emulator, calls, [*reads, np.array(0.1, dtype)], [next_w], state=state)
    for array, original in zip((next_w, *state), before, strict=True):
        np.testing.assert_array_equal(array, original)


def test_a_step_without_tokens_changes_nothing_but_decay(emulator: Emulator) -> None:
    inputs = [np.ones(2), np.zeros(2), np.zeros(3), np.array(0.1)]
    output = single_output(
        emulator, "sgd", inputs, whole_shard((2,), "float64"), attributes={"clip_norm": 1.0}
    )
    np.testing.assert_array_equal(output, np.ones(2))


def test_adamw_reads_gradients_of_16_bits(emulator: Emulator) -> None:
    gradient = np.arange(8.0)
    shards = [
        whole_shard((8,), "float32"), whole_shard((8,), "float16"), whole_shard((3,), "float32"),
        whole_shard((), "float32"),
    ]  # fmt: skip
    calls = make_calls(context_of("adamw", "", shards, shards[:1]))
    state, w = [np.zeros(8, np.float32) for _ in range(2)], np.ones(8, np.float32)
    totals, rate = np.array([0, 1, 140], np.float32), np.array(0.5, np.float32)
    carry_out(emulator, calls, [w, to_device(gradient, "float16"), totals, rate], [w], state=state)
    np.testing.assert_allclose(state[0], 0.1 * gradient, rtol=1e-6)
    np.testing.assert_allclose(w, [1] + [0.5] * 7, rtol=1e-6)


def test_an_optimizer_that_narrows_is_refused() -> None:
    shards = [whole_shard((8,), dtype) for dtype in ("float32", "float32", "float32", "float32")]
    with pytest.raises(ExecutorError, match="found float32 and float64"):
        make_calls(context_of("sgd", "", shards, [whole_shard((8,), "float64")]))


def test_a_buffer_that_holds_no_element_is_refused() -> None:
    arrays = [HostArray(Operand("state", number), 4) for number in range(3)]
    with pytest.raises(ExecutorError, match=r"actor `w`: .*96 bytes or more, found 95"):
        in_pieces("w", 5, arrays, 95, lambda start, count, places: ())


def test_an_array_that_is_only_read_is_not_copied_back() -> None:
    seen: list[tuple[int, int]] = []

    def work(start: int, count: int, places: tuple[Operand, ...]) -> tuple[CopyCall, ...]:
        seen.append((start, count))
        return (CopyCall(places[0], Operand("write", 0, start * 2), count * 2),)

    calls = in_pieces("w.cast", 20, [HostArray(Operand("read", 0), 4)], 48, work)
    assert seen == [(0, 8), (8, 8), (16, 4)]
    assert calls[2:4] == (
        CopyCall(Operand("read", 0, 32), Operand("buffer"), 32),
        CopyCall(Operand("buffer"), Operand("write", 0, 16), 16),
    )
    assert len(calls) == 6


@pytest.mark.parametrize("buffer_bytes", [0, 64, 1000, 4096])
def test_a_variable_is_cast_in_pieces(emulator: Emulator, buffer_bytes: int) -> None:
    w = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    x, y = whole_shard((SIZE,), "float32"), whole_shard((SIZE,), "bfloat16")
    calls = make_calls(context_of("cast", "n -> n", [x], [y], buffer_bytes=buffer_bytes))
    output, buffer = empty(y), np.full(buffer_bytes + 64, 77, np.uint8)
    carry_out(emulator, calls, [w], [output], buffer=buffer)
    np.testing.assert_array_equal(output, to_device(w, "bfloat16"))


@pytest.mark.parametrize("size", [1, 300, 4096, 4097, 50_000])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_sum_of_squares_is_added_up_in_double(
    emulator: Emulator, size: int, dtype: str
) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    total = single_output(emulator, "squared_sum", [x], whole_shard((), dtype))
    expected = np.sum(x.astype(np.float64) ** 2)
    np.testing.assert_allclose(total, expected, rtol=1e-13 if dtype == "float64" else 1e-7)
    again = single_output(emulator, "squared_sum", [x], whole_shard((), dtype))
    np.testing.assert_array_equal(total, again)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_sum_of_squares_of_16_bits_is_wide(emulator: Emulator, dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal(500)
    total = single_output(emulator, "squared_sum", [x], whole_shard((), "float32"), dtypes=[dtype])
    rounded = loaded(to_device(x, dtype), dtype).astype(np.float64)
    np.testing.assert_allclose(total, np.sum(rounded**2), rtol=1e-6)


def test_step_totals_count_a_broadcast_value_once_over_the_mesh(emulator: Emulator) -> None:
    values = [np.array(x, np.float64) for x in (6.0, 4.0, 3.0, 5.0)]
    sbps = (
        (PARTIAL_SUM, BROADCAST), (BROADCAST, BROADCAST), (split(0), BROADCAST), (BROADCAST,) * 2
    )  # fmt: skip
    total = np.zeros(3)
    for coordinate in ((0, 0), (0, 1), (1, 0), (1, 1)):
        total += single_output(
            emulator, "step_totals", values, whole_shard((3,), "float64"),
            input_sbp=sbps, coordinate=coordinate, axis_sizes=(2, 2),
        )  # fmt: skip
    np.testing.assert_array_equal(total, [12, 4, 2 * 3 + 5])


def test_step_totals_take_any_number_of_squares_and_add_them_up_in_double(
    emulator: Emulator,
) -> None:
    squares = [np.array(1e8, np.float32), *(np.array(1, np.float32) for _ in range(39))]
    out = whole_shard((3,), "float32")
    attributes = {"has_loss": False}
    totals = single_output(emulator, "step_totals", squares, out, attributes=attributes)
    np.testing.assert_array_equal(totals, np.array([0, 0, 1e8 + 39], np.float32))
    loss = [np.array(2.5), np.array(3, np.float32)]
    totals = single_output(emulator, "step_totals", [*loss, *squares], out)
    np.testing.assert_array_equal(totals, np.array([2.5, 3, 1e8 + 39], np.float32))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"learning_rate": 2.0, "warmup_steps": 4, "decay_steps": 14, "final_fraction": 0.1},
        {"learning_rate": 2.0},
        {"learning_rate": 2.0, "warmup_steps": 4, "decay_steps": 4},
    ],
)
def test_the_learning_rate_follows_the_step(
    emulator: Emulator, attributes: dict[str, float], dtype: str
) -> None:
    out = whole_shard((), dtype)
    for step in (0, 3, 4, 9, 14, 1000):
        control = control_of(step=step, run_step=1, updates=2)
        rate = single_output(
            emulator, "learning_rate", [], out, attributes=attributes, control=control
        )
        (expected,) = call_on_cpu(
            "learning_rate", " -> ", [], [out], attributes=attributes,
            run=run_state(first_step=step),
        )  # fmt: skip
        np.testing.assert_allclose(rate, expected, rtol=1e-12 if dtype == "float64" else 1e-6)


@pytest.mark.parametrize(("dtype", "expected"), [("float32", 131072.0), ("float16", inf)])
def test_gradients_begin_at_the_loss_scale(emulator: Emulator, dtype: str, expected: float) -> None:
    shard = whole_shard((5,), dtype)
    for scale, found_at in ((2.0, 4.0), (65536.0, expected)):
        attributes = {"value": 2.0, "loss_scaled": True}
        calls = make_calls(context_of("fill", "", [], [shard], attributes))
        y = empty(shard)
        carry_out(emulator, calls, [], [y], control=control_of(loss_scale=scale))
        np.testing.assert_array_equal(y, np.full(5, found_at))


def finish(emulator: Emulator, control: Array, totals: Array | None, history: Array) -> None:
    """Carry out the launch that ends a step."""
    dtype = "float32" if totals is None else str(totals.dtype)
    where = None if totals is None else Operand("read")
    call = finish_step_call(where, dtype, Operand("write"), len(history))
    reads = [] if totals is None else [totals]
    carry_out(emulator, same_calls(call), reads, [history], control=control)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_end_of_a_step_keeps_its_totals_and_counts_on(emulator: Emulator, dtype: str) -> None:
    control = control_of(
        step=17, run_step=4, updates=12, good_steps=6, loss_scale=8.0, scale_growth=3.0,
        growth_interval=8, margin_bits=5, skipped=2,
    )  # fmt: skip
    history = np.zeros((3, len(HISTORY_FIELDS)))
    finish(emulator, control, np.array([2.5, 10, 128], dtype), history)
    np.testing.assert_array_equal(history, [[0] * 5, [2.5, 10, 2, 8, 1], [0] * 5])
    after = {
        "step": 18, "run_step": 5, "updates": 13, "good_steps": 7, "loss_scale": 8.0,
        "scale_growth": 3.0, "growth_interval": 8, "margin_bits": 5, "skipped": 2,
    }  # fmt: skip
    assert fields_of(control) == after
    finish(emulator, control, np.array([2.5, 10, 128], dtype), history)
    grown = {"step": 19, "run_step": 6, "updates": 14, "good_steps": 0, "loss_scale": 24.0}
    assert fields_of(control) == after | grown
    finish(emulator, control, np.array([2.5, 10, nan], dtype), history)
    shrunk = {"step": 20, "run_step": 7, "updates": 14, "loss_scale": 12.0, "skipped": 3}
    assert fields_of(control) == after | grown | shrunk
    np.testing.assert_array_equal(history[0], [2.5, 10, nan, 24, 0])
    assert not control[CONTROL_DTYPE.itemsize :].any()


def test_the_loss_scale_does_not_fall_for_ever(emulator: Emulator) -> None:
    control = control_of(loss_scale=1.5 / 65536, scale_growth=2.0, good_steps=3)
    history = np.zeros((1, 5))
    for _ in range(2):
        finish(emulator, control, np.array([1, 1, inf], np.float32), history)
        assert fields_of(control)["loss_scale"] == 1 / 65536
        assert fields_of(control)["good_steps"] == 0


def test_a_scale_that_does_not_grow_stays_where_gradients_are_not_finite(
    emulator: Emulator,
) -> None:
    control = control_of(loss_scale=1.0, scale_growth=1.0)
    finish(emulator, control, np.array([1, 1, inf], np.float32), np.zeros((1, 5)))
    assert fields_of(control)["loss_scale"] == 1
    assert fields_of(control)["skipped"] == 1


def test_a_rank_without_totals_goes_on_too(emulator: Emulator) -> None:
    control = control_of(growth_interval=2)
    history = np.zeros((1, 5))
    for step in (1, 2, 3):
        finish(emulator, control, None, history)
        assert fields_of(control)["step"] == fields_of(control)["run_step"] == step
    assert not history.any()


def test_the_first_control_of_a_run() -> None:
    def first(step: int, precision: str) -> dict[str, float]:
        return fields_of(np.frombuffer(control_bytes(step, precision), np.uint8))

    assert CONTROL_DTYPE.itemsize == 64
    begun = {"step": 7, "run_step": 0, "updates": 7, "good_steps": 0, "skipped": 0}
    plain = {"loss_scale": 1.0, "scale_growth": 1.0, "growth_interval": 2000}
    scaled = {"loss_scale": 65536.0, "scale_growth": 2.0, "growth_interval": 2000}
    margin = {"margin_bits": 0x7F800000}
    for precision in ("fp64", "fp32", "tf32", "bf16"):
        assert first(7, precision) == begun | plain | margin
    assert first(7, "fp16") == begun | scaled | margin
    with pytest.raises(ExecutorError, match=r"above 0, found -2"):
        control_bytes(0, "fp16", loss_scale=-2)


def test_a_short_sum_is_one_launch() -> None:
    context = context_of(
        "squared_sum", "", [whole_shard((64, 64), "float32")], [whole_shard((), "float32")]
    )
    (launch,) = make_calls(context).of(0)
    assert isinstance(launch, Launch)
    assert launch.grid == (1, 1, 1)


@cache
def offloaded(precision: str) -> RankShards:
    """Rank 0 of a plan that keeps optimizer state in host memory."""
    plan = plan_of(
        small("gpt", precision), "a100-sxm-80gb:2x1", 16, dp=2, tp=1, pp=1, micro_batch=2,
        offload="optimizer",
    )  # fmt: skip
    return RankShards(compile_plan(plan), 0)


@pytest.mark.parametrize(("precision", "arrays"), [("fp32", 2), ("fp16", 3)])
def test_an_offloaded_plan_passes_what_lies_on_the_host(precision: str, arrays: int) -> None:
    shards = offloaded(precision)
    for actor in shards.program.actors:
        if actor.kind != "adamw":
            continue
        context = shards.context(actor, run_state())
        calls = make_calls(context).of(0)
        # the whole of a small variable is one piece
        assert len(calls) == 2 * arrays + 1
        operands = [call.source for call in calls[:arrays] if isinstance(call, CopyCall)]
        assert operands == [Operand("state", 0), Operand("state", 1), Operand("read", 0)][:arrays]
        (launch,) = (call for call in calls if isinstance(call, Launch))
        assert launch.function == "adamw<float, float, float, float>"


def test_an_actor_of_a_float16_plan_is_told_to_scale_the_loss() -> None:
    marked = [a for a in offloaded("fp16").program.actors if a.attributes.get("loss_scaled")]
    assert [actor.kind for actor in marked] == ["cross_entropy_grad"]
