"""Attention by the matrix units against its formulas: widths, masks, groups, rings, limits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from benchmarks.gpu.kernel_resources import resources_of
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import Array, KernelContext, Shard, whole_shard
from millrace.planner.sbp import split
from tests.executor.cuda.call_trees import last_options
from tests.executor.cuda.calling import call, context_of, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.cuda.kept_code import cached_cubin
from tests.executor.examples.attention import Attributes, Form
from tests.extras import optional

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

NEAR = {"bfloat16": 2.5e-2, "float16": 4e-3}  # relative to the largest value of a result
CAUSAL: Attributes = {"causal": True}


@dataclass(frozen=True, kw_only=True)
class AttentionSizes:
    """One attention: t queries from place `first` of s, b samples, g groups of r heads."""

    t: int
    s: int
    d: int
    u: int = 0
    b: int = 1
    g: int = 1
    r: int = 1
    first: int = 0
    attributes: Attributes = field(default_factory=lambda: CAUSAL)

    def __str__(self) -> str:
        masks = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"t{self.t} s{self.s} d{self.d} u{self.width} b{self.b} g{self.g} r{self.r} {masks}"

    @property
    def width(self) -> int:
        return self.u or self.d

    @property
    def form(self) -> Form:
        return Form(attributes=self.attributes | {"scale": self.scale}, grouped=True)

    @property
    def scale(self) -> float:
        return float(self.d) ** -0.5

    def input_arrays(self, dtype: str) -> list[Array]:
        """q, k, v and dout, exact in the dtype."""
        rng = np.random.default_rng(self.t + self.d)
        shapes = (
            (self.b, self.t, self.g, self.r, self.d),
            (self.b, self.s, self.g, self.d),
            (self.b, self.s, self.g, self.width),
            (self.b, self.t, self.g, self.r, self.width),
        )
        return [
            loaded(to_device(rng.standard_normal(shape).astype(np.float32), dtype), dtype)
            for shape in shapes
        ]

    def shard(self, array: Array, dtype: str) -> Shard:
        """Shard of queries: those from `first` on of all."""
        offsets = (0, self.first, *(0 for _ in array.shape[2:]))
        return Shard(
            global_shape=(self.b, self.first + self.t, *array.shape[2:]), offsets=offsets,
            shape=array.shape, dtype=dtype,
        )  # fmt: skip

    def contexts(self, dtype: str) -> tuple[KernelContext, KernelContext]:
        """Contexts of the op and of its gradient."""
        q, k, v, dout = self.input_arrays(dtype)
        query, key, value = (
            self.shard(q, dtype),
            whole_shard(k.shape, dtype),
            whole_shard(v.shape, dtype),
        )
        out, total = self.shard(dout, dtype), self.shard(dout[..., 0], "float32")
        forward, backward = self.form.labels
        attributes = self.form.attributes
        return (
            context_of("attention", forward, [query, key, value], [out, total], attributes),
            context_of(
                "attention_grad", backward, [query, key, value, out, total, out],
                [query, key, value], attributes,
            ),
        )  # fmt: skip

    def expected(self, given: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Out and logsumexp; dq, dk and dv: by the formula, zeros before query `first`."""
        q, k, v, dout = (array.astype(np.float64) for array in given)
        form, keep = self.form, slice(self.first, None)
        if self.first:
            nothing = ((0, 0), (self.first, 0), (0, 0), (0, 0), (0, 0))
            q, dout = np.pad(q, nothing), np.pad(dout, nothing)
        out, total = form.forward(q, k, v)
        dq, dk, dv = form.backward(q, k, v, out, total, dout)
        return [out[:, keep], total[:, keep]], [dq[:, keep], dk, dv]


WINDOW: Attributes = {"causal": True, "window": 20}
BOTH_WAYS: Attributes = {"causal": False, "window": 20}
PLAIN: Attributes = {"causal": False}
SIZES = [
    AttentionSizes(t=150, s=150, d=64, g=2),
    AttentionSizes(t=40, s=100, d=64, attributes=PLAIN),
    AttentionSizes(t=130, s=70, d=64, attributes=PLAIN),
    AttentionSizes(t=70, s=90, d=64, first=20),
    AttentionSizes(t=100, s=100, d=64, g=2, r=2, attributes=WINDOW),
    AttentionSizes(t=100, s=100, d=32, b=2, attributes=BOTH_WAYS),
    AttentionSizes(t=70, s=70, d=80, r=3),
    AttentionSizes(t=66, s=66, d=96),
    AttentionSizes(t=100, s=100, d=128, r=2),
    AttentionSizes(t=33, s=33, d=128, u=64),
    AttentionSizes(t=33, s=33, d=48, u=112),
    AttentionSizes(t=33, s=33, d=40, u=8, attributes=PLAIN),
    AttentionSizes(t=1, s=7, d=16, attributes=PLAIN),
]
# Kernels are templates over either kind of 16 bits, which come in turn.
TYPED = [(sizes, tuple(NEAR)[number % 2]) for number, sizes in enumerate(SIZES)]


def functions() -> Iterator[dict[str, set[str]]]:
    for sizes, dtype in TYPED:
        for context in sizes.contexts(dtype):
            yield functions_of(make_calls(context).of(0))
    for context in ring_contexts():
        yield functions_of(make_calls(context).of(0))


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    """Emulator of all that the tests of this module launch."""
    names_by_source: dict[str, set[str]] = {}
    for functions_by_source in functions():
        for source, names in functions_by_source.items():
            names_by_source.setdefault(source, set()).update(names)
    return Emulator(names_by_source)


def assert_near(outputs: Sequence[Array], expected: Sequence[Array], dtype: str) -> None:
    for output, reference in zip(outputs, expected, strict=True):
        size = max(1.0, np.abs(reference[np.isfinite(reference)]).max(initial=0))
        np.testing.assert_allclose(output, reference, atol=NEAR[dtype] * size, rtol=0)


def carried_out(context: KernelContext, given: Sequence[Array], emulator: Emulator) -> list[Array]:
    return call(
        context.kind, context.labels, given, context.outputs, input_shards=context.inputs,
        attributes=context.attributes, emulator=emulator, input_sbp=context.input_sbp,
        coordinate=context.coordinate, axis_sizes=context.axis_sizes,
    )  # fmt: skip


@pytest.mark.parametrize(("sizes", "dtype"), TYPED, ids=str)
def test_forward_and_gradients(sizes: AttentionSizes, dtype: str, emulator: Emulator):
    forward, backward = sizes.contexts(dtype)
    given = sizes.input_arrays(dtype)
    q, k, v, dout = given
    expected, slopes = sizes.expected(given)
    outputs = carried_out(forward, [q, k, v], emulator)
    assert_near(outputs, expected, dtype)
    gradients = carried_out(backward, [q, k, v, *outputs, dout], emulator)
    assert_near(gradients, slopes, dtype)


RING, PART = 2, 40


def ring_context(
    sizes: AttentionSizes, dtype: str, place: int, number: int, *, backward: bool
) -> KernelContext:
    """Context of a round of the device at `place` of a ring; results are float32."""
    kind, labels = ("attention_grad", 1) if backward else ("attention", 0)
    text = sizes.form.labels[labels]
    q, k, v, dout = sizes.input_arrays(dtype)

    def shard(array: Array, of: str) -> Shard:
        return Shard(
            global_shape=(sizes.b, RING * PART, *array.shape[2:]),
            offsets=(0, place * PART, *(0 for _ in array.shape[2:])),
            shape=(sizes.b, PART, *array.shape[2:]), dtype=of,
        )  # fmt: skip

    query, key, value, slope = (shard(array, dtype) for array in (q, k, v, dout))
    out, total = shard(dout, "float32"), shard(dout[..., 0], "float32")
    inputs, outputs = [query, key, value], [out, total]
    if backward:
        inputs, outputs = [*inputs, out, total, slope], [shard(q, "float32"), key, value]
    if number:
        given, out_labels = text.split(" -> ")
        carried = outputs[:1] if backward else outputs
        inputs, kind = [*inputs, *carried], f"{kind}_round"
        text = f"{given}, {out_labels.split(', ')[0] if backward else out_labels} -> {out_labels}"
    return context_of(
        kind, text, inputs, outputs, sizes.form.attributes | ({"round": number} if number else {}),
        input_sbp=((split(1),),) * len(inputs), coordinate=(place,), axis_sizes=(RING,),
    )  # fmt: skip


ROUNDS = AttentionSizes(t=RING * PART, s=RING * PART, d=64, r=2)


def ring_contexts() -> Iterator[KernelContext]:
    for backward in (False, True):
        for number in range(RING):
            yield ring_context(ROUNDS, "bfloat16", 0, number, backward=backward)


def test_rounds_of_a_ring_give_what_all_keys_at_once_give(emulator: Emulator):
    """In the last round the first device has keys that none of its queries sees."""
    dtype = "bfloat16"
    q, k, v, dout = sizes_given = ROUNDS.input_arrays(dtype)
    expected, slopes = ROUNDS.expected(sizes_given)
    parts = [slice(device * PART, (device + 1) * PART) for device in range(RING)]
    results: list[list[Array]] = []
    keys = [np.zeros(k.shape), np.zeros(v.shape)]
    for place, query_rows in enumerate(parts):
        outputs: list[Array] = []
        for number in range(RING):
            key_rows = parts[(place - number) % RING]
            context = ring_context(ROUNDS, dtype, place, number, backward=False)
            outputs = carried_out(
                context, [q[:, query_rows], k[:, key_rows], v[:, key_rows], *outputs], emulator
            )
        query: list[Array] = []
        for number in range(RING):
            key_rows = parts[(place - number) % RING]
            context = ring_context(ROUNDS, dtype, place, number, backward=True)
            given = [
                q[:, query_rows],
                k[:, key_rows],
                v[:, key_rows],
                *outputs,
                dout[:, query_rows],
                *query,
            ]
            *query, of_keys, of_values = carried_out(context, given, emulator)
            for total, added in zip(keys, (of_keys, of_values), strict=True):
                total[:, key_rows] += added
        results.append([*outputs, *query])
    joined = [np.concatenate(pieces, 1) for pieces in zip(*results, strict=True)]
    assert_near(joined, [*expected, slopes[0]], dtype)
    assert_near(keys, slopes[1:], dtype)


@pytest.mark.parametrize("backward", [False, True])
def test_a_query_that_sees_no_key_gives_zero_and_no_gradient(backward: bool, emulator: Emulator):
    """Keys of a later device: all of them are hidden; and rubbish is not multiplied with zero."""
    context = ring_context(ROUNDS, "bfloat16", 0, 1, backward=backward)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shard.shape).astype(np.float32) for shard in context.inputs]
    total = 4
    given[total] = np.full(given[total].shape, -np.inf, np.float32)
    for carried in (3, 6):  # what other keys gave: nothing
        if carried < len(given):
            given[carried] = np.zeros_like(given[carried])
    if backward:
        assert all(not gradient.any() for gradient in carried_out(context, given, emulator))
    else:
        out, logsumexp = carried_out(context, given, emulator)
        assert not out.any()
        assert (logsumexp == -np.inf).all()


@pytest.mark.parametrize("shift", [-3008.0, -95.0, 500.0])
def test_logits_far_from_zero_change_the_logsumexp_alone(shift: float, emulator: Emulator):
    """A feature that adds the same to every score; exp of it is 0 or infinite in float32."""
    sizes, dtype = SIZES[0], "bfloat16"
    q, k, v, dout = sizes.input_arrays(dtype)
    q[..., 0], k[..., 0] = 0, 0
    expected, slopes = sizes.expected([q, k, v, dout])
    q[..., 0], k[..., 0] = 8, shift  # both exact; the scale is 1 / 8
    forward, backward = sizes.contexts(dtype)
    out, logsumexp = carried_out(forward, [q, k, v], emulator)
    assert_near([out], expected[:1], dtype)
    np.testing.assert_allclose(logsumexp, expected[1] + k[0, 0, 0, 0], rtol=1e-6, atol=1e-3)
    gradients = carried_out(backward, [q, k, v, out, logsumexp, dout], emulator)
    for gradient, reference in zip(gradients[:2], slopes[:2], strict=True):
        assert_near([gradient[..., 1:]], [reference[..., 1:]], dtype)
    assert_near(gradients[2:], slopes[2:], dtype)


def test_what_the_matrix_units_do_not_take_goes_to_the_other_kernels():
    def launched(d: int, dtype: str, attributes: Attributes) -> set[str]:
        query, total = whole_shard((1, 8, 2, d), dtype), whole_shard((1, 8, 2), "float32")
        labels = Form(attributes=attributes).labels
        given = [query] * 3
        calls = (
            make_calls(context_of("attention", labels[0], given, [query, total], attributes)),
            make_calls(
                context_of(
                    "attention_grad", labels[1], [*given, query, total, query], given, attributes
                )
            ),
        )
        return {
            source for op_calls in calls for source in functions_of(last_options(*op_calls.of(0)))
        }

    by_matrix_units = {"attention_mma", "attention_mma_grad"}
    for d in (8, 64, 128):
        assert launched(d, "float16", CAUSAL) == by_matrix_units
    others = [(64, "float32", CAUSAL), (136, "bfloat16", CAUSAL), (60, "bfloat16", CAUSAL)]
    others.append((64, "bfloat16", CAUSAL | {"alibi": 8.0}))
    for d, dtype, attributes in others:
        assert launched(d, dtype, attributes) == {"attention", "attention_grad"}


SHAPES = ((64, 64), (80, 80), (128, 128), (128, 64))  # d and u of models
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")  # of the second all shapes, of the others either half


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_large_models_launch_stays_in_registers(architecture: str):
    optional("cuda.core", extra="test")
    names_by_source: dict[str, set[str]] = {}
    turn = ARCHITECTURES.index(architecture)
    for d, u in SHAPES if turn == 1 else SHAPES[turn // 2 :: 2]:
        for context in AttentionSizes(t=256, s=256, d=d, u=u).contexts("bfloat16"):
            ours = functions_of(last_options(*make_calls(context).of(0)))
            for source, names in ours.items():
                names_by_source.setdefault(source, set()).update(names)
    assert set(names_by_source) == {"attention_mma", "attention_mma_grad"}
    for source, names in names_by_source.items():
        cubin = cached_cubin(source, names, architecture)
        for name, resources in resources_of(cubin.code).items():
            assert resources.stack_bytes == 0, (name, resources)
