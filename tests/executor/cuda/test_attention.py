"""Attention on a device, against its formulas: forms, dtypes, cuts, tiles, rings and limits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from millrace.executor.cuda.calls import Launch
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, KernelContext, Shard, whole_shard
from millrace.planner.sbp import split
from tests.executor.cuda.call_trees import last_options
from tests.executor.cuda.calling import call, context_of, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.cuda.example_cases import (
    TOLERANCE,
    ExampleCase,
    cases_of,
    check_all,
    parametrize_cases,
    selected_cases,
)
from tests.executor.cuda.usual import enumerate_by_kind
from tests.executor.examples.attention import EXAMPLES, Attributes, Form, both
from tests.executor.examples.example import Example

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

WIDE = {
    "attention_grad": (4,),
    "biased_attention_grad": (5,),
    "attention_round": (3, 4),
    "attention_grad_round": (3, 4, 6),
    "attention_sink": (1,),
    "attention_sink_grad": (1,),
}  # inputs that are float32 in a plan of 16 bits
PLAIN: Attributes = {"causal": False, "scale": 0.5}
CAUSAL: Attributes = {"causal": True, "scale": 0.5}
GROUPED = {"b": 1, "g": 2, "r": 2, "u": 6}
TILES = {"b": 1, "h": 2, "t": 70, "s": 70}  # more than one tile of 32 or 64, and a part of one
SHORT, FAR = 64, 20


def tiled() -> Iterator[Example]:
    """Forms over several tiles, with more queries than keys and fewer, and of other widths."""
    everything = CAUSAL | {"window": FAR, "alibi": 8.0}
    yield from both(Form(attributes=CAUSAL), TILES)
    yield from both(Form(attributes=CAUSAL), TILES | {"t": 40})
    yield from both(Form(attributes=PLAIN), TILES | {"s": 40})
    yield from both(Form(attributes=everything, grouped=True), TILES | GROUPED)
    both_ways = PLAIN | {"window": FAR}
    yield from both(Form(attributes=both_ways, grouped=True), TILES | GROUPED | {"b": 2})
    for bias in ("h", "b t", "t s", "b h t s"):
        yield from both(Form(attributes=CAUSAL, bias=bias), TILES | {"b": 2})
    for head_dim, value_dim in ((40, 72), (130, 20), (250, 100)):
        sizes = GROUPED | {"t": 5, "s": 5, "d": head_dim, "u": value_dim}
        yield from both(Form(attributes=CAUSAL, grouped=True), sizes)


def cases() -> Iterator[ExampleCase]:
    kinds = {*WIDE, "attention", "biased_attention"}
    small = [e for e in EXAMPLES if e.kind in kinds and e.label_sizes["t"] <= SHORT]
    yield from cases_of(small, WIDE)
    for number, example in enumerate_by_kind(tiled()):
        for dtype in ("float64", "float32"):
            usual = dtype == ("float64", "float32")[number % 2]
            yield ExampleCase(
                example=example, dtype=dtype, wide=WIDE.get(example.kind, ()), usual=usual
            )  # fmt: skip


CASES = list(cases())


@dataclass(frozen=True, kw_only=True)
class Round:
    """Call of one device of a ring in one round, forward or backward."""

    context: KernelContext
    place: int
    source: int


RING, RING_LENGTH = 3, 12
FORWARD, BACKWARD = Form(attributes=CAUSAL).labels


def ring_rounds(dtype: str, attributes: Attributes, *, backward: bool) -> Iterator[Round]:
    """Rounds of a ring, one by one and device by device; what is carried on is float32 at least."""
    wide = "float64" if dtype == "float64" else "float32"
    part, length = RING_LENGTH // RING, RING_LENGTH
    kind, labels = ("attention_grad", BACKWARD) if backward else ("attention", FORWARD)
    given, output_labels = labels.split(" -> ")
    carried = output_labels.split(", ")[0] if backward else output_labels

    def shard(place: int, last: tuple[int, ...], dtype: str) -> Shard:
        return Shard(
            global_shape=(2, length, 2, *last), offsets=(0, place * part, 0, *(0 for _ in last)),
            shape=(2, part, 2, *last), dtype=dtype,
        )  # fmt: skip

    for number in range(RING):
        later = number > 0
        for place in range(RING):
            rows, statistics = shard(place, (4,), dtype), shard(place, (), wide)
            result = shard(place, (4,), wide)
            inputs = [rows] * 3
            outputs = [result, statistics]
            if backward:
                inputs = [rows] * 3 + [result, statistics, rows]
                outputs = [result, rows, rows]
            if later:
                inputs = [*inputs, *(outputs[:1] if backward else outputs)]
            yield Round(
                context=context_of(
                    f"{kind}_round" if later else kind,
                    f"{given}, {carried} -> {output_labels}" if later else labels,
                    inputs,
                    outputs,
                    attributes | ({"round": number} if later else {}),
                    input_sbp=((split(1),),) * len(inputs),
                    coordinate=(place,),
                    axis_sizes=(RING,),
                ),
                place=place,
                source=(place - number) % RING,
            )


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    """Emulator of all that the tests of this module launch."""
    names_by_source: dict[str, set[str]] = {}
    contexts = [
        ring_round.context
        for dtype in ("float64", "bfloat16")
        for backward in (False, True)
        for ring_round in ring_rounds(dtype, CAUSAL, backward=backward)
    ]
    launched = [functions_of(make_calls(context).of(0)) for context in contexts]
    for functions in [*launched, *(case.functions() for case in selected_cases(CASES, request))]:
        for source, names in functions.items():
            names_by_source.setdefault(source, set()).update(names)
    return Emulator(names_by_source)


@parametrize_cases(CASES)
def test_attention_computes_what_its_formula_says(cases: list[ExampleCase], emulator: Emulator):
    check_all(cases, emulator)


def ring_outputs(
    dtype: str,
    given: Sequence[Array],
    attributes: Attributes,
    emulator: Emulator,
    *,
    backward: bool,
) -> list[Array]:
    """Outputs of a ring on whole inputs, what travels added up."""
    part = RING_LENGTH // RING
    before: dict[int, list[Array]] = {}
    keys = [np.zeros(given[1].shape), np.zeros(given[2].shape)]
    for turn in ring_rounds(dtype, attributes, backward=backward):
        query_rows, key_rows = (
            slice(device * part, (device + 1) * part) for device in (turn.place, turn.source)
        )
        arrays = [
            array[:, key_rows if position in (1, 2) else query_rows].copy()
            for position, array in enumerate(given)
        ]
        context = turn.context
        outputs = call(
            context.kind, context.labels, [*arrays, *before.get(turn.place, [])], context.outputs,
            input_shards=context.inputs, attributes=context.attributes, emulator=emulator,
            input_sbp=context.input_sbp, coordinate=context.coordinate,
            axis_sizes=context.axis_sizes,
        )  # fmt: skip
        before[turn.place] = outputs[:1] if backward else outputs
        if backward:
            for total, added in zip(keys, outputs[1:], strict=True):
                total[:, key_rows] += added
    joined = [np.concatenate(x, 1) for x in zip(*(before[p] for p in range(RING)), strict=True)]
    return [*joined, *keys] if backward else joined


@pytest.mark.parametrize(
    ("dtype", "window"),
    [
        ("float64", 6),
        ("bfloat16", 0),
        pytest.param("float64", 0, marks=pytest.mark.exhaustive),
        pytest.param("bfloat16", 6, marks=pytest.mark.exhaustive),
    ],
)
def test_rounds_of_a_ring_give_what_all_keys_at_once_give(
    dtype: str, window: int, emulator: Emulator
):
    attributes = CAUSAL | {"window": window}
    rng = np.random.default_rng(0)
    shape = (2, RING_LENGTH, 2, 4)
    q, k, v, dout = (
        loaded(to_device(rng.standard_normal(shape), dtype), dtype).astype(np.float64)
        for _ in range(4)
    )
    form = Form(attributes=attributes)
    near = TOLERANCE[dtype]
    expected = form.forward(q, k, v)
    outputs = ring_outputs(dtype, [q, k, v], attributes, emulator, backward=False)
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=near, atol=near)
    given = [q, k, v, *expected, dout]
    outputs = ring_outputs(dtype, given, attributes, emulator, backward=True)
    for output, reference in zip(outputs, form.backward(*given), strict=True):
        np.testing.assert_allclose(output, reference, rtol=near, atol=near)


def test_a_query_that_has_seen_no_key_gives_zero_and_no_gradient(emulator: Emulator):
    rng = np.random.default_rng(0)
    blocks = [
        ring_round
        for ring_round in ring_rounds("float64", CAUSAL, backward=False)
        if ring_round.source > ring_round.place
    ]
    shape = blocks[0].context.outputs[0].shape
    q, k, v = (rng.standard_normal(shape) for _ in range(3))
    nothing = [np.zeros(shape), np.full(shape[:-1], -np.inf)]
    context = blocks[0].context
    place = {
        "input_sbp": context.input_sbp, "coordinate": context.coordinate,
        "axis_sizes": context.axis_sizes, "attributes": context.attributes, "emulator": emulator,
    }  # fmt: skip
    out, logsumexp = call(
        context.kind, context.labels, [q, k, v, *nothing], context.outputs,
        input_shards=context.inputs, **place,
    )  # fmt: skip
    assert not out.any()
    assert (logsumexp == -np.inf).all()
    back = next(
        ring_round.context
        for ring_round in ring_rounds("float64", CAUSAL, backward=True)
        if ring_round.source > ring_round.place
    )
    slopes = call(
        back.kind, back.labels, [q, k, v, *nothing, q, np.zeros(shape)], back.outputs,
        input_shards=back.inputs, **place | {"input_sbp": back.input_sbp},
    )  # fmt: skip
    for slope in slopes:
        assert not slope.any()


@pytest.mark.parametrize("shift", [-500.0, -95.0, 500.0])
def test_logits_far_from_zero_change_the_logsumexp_alone(shift: float, emulator: Emulator):
    """A feature that adds the same to every score; exp of it is 0 or infinite in float32."""
    q, k, v = next(both(Form(attributes=CAUSAL), TILES)).inputs("float32")
    q[..., 3], k[..., 3] = 0, 0
    without = [array.astype(np.float64) for array in (q, k, v)]
    expected = Form(attributes=CAUSAL).forward(*without)
    q[..., 3], k[..., 3] = 1, shift / 0.5
    output_shards = [whole_shard(q.shape, "float32"), whole_shard(q.shape[:-1], "float32")]
    out, logsumexp = call(
        "attention", FORWARD, [q, k, v], output_shards, attributes=CAUSAL, emulator=emulator,
    )  # fmt: skip
    np.testing.assert_allclose(out, expected[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(logsumexp, expected[1] + shift, rtol=1e-5, atol=1e-3)
    dout = np.random.default_rng(1).standard_normal(q.shape).astype(np.float32)
    given = [q, k, v, out, logsumexp, dout]
    gradients = call(
        "attention_grad", BACKWARD, given, [whole_shard(q.shape, "float32")] * 3, attributes=CAUSAL,
        emulator=emulator,
    )  # fmt: skip
    slopes = Form(attributes=CAUSAL).backward(*without, *expected, dout.astype(np.float64))
    for gradient, slope, features in zip(gradients, slopes, (3, 3, 4), strict=True):
        np.testing.assert_allclose(
            gradient[..., :features], slope[..., :features], rtol=1e-3, atol=1e-3
        )


def attention_context(
    queries: int, keys: int, head_dim: int, dtype: str = "float32", **attributes: int | bool
) -> KernelContext:
    """Context of attention of one sample with one head."""
    query, key = (1, queries, 1, head_dim), whole_shard((1, keys, 1, head_dim), "float32")
    return context_of(
        "attention",
        FORWARD,
        [whole_shard(query, dtype), key, key],
        [whole_shard(query, dtype), whole_shard(query[:-1], "float32")],
        {"causal": True, **attributes},
    )


def test_what_attention_cannot_do_is_refused_by_name():
    with pytest.raises(ExecutorError, match="query 8 sees none of 3 keys through a window of 5"):
        make_calls(attention_context(9, 3, 4, window=5))
    with pytest.raises(ExecutorError, match="at most 256 features, found 260; split"):
        make_calls(attention_context(4, 4, 260))
    with pytest.raises(ExecutorError, match="one dtype, found float16, float32; cast"):
        make_calls(attention_context(4, 4, 4, dtype="float16"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_that_labels_leave_out_makes_the_same_calls(dtype: str):
    def calls(heads: str, *sizes: int) -> tuple[str, list[list[float]]]:
        q, k = (whole_shard((2, t, *sizes, 8), dtype) for t in (5, 5))
        statistic = whole_shard((2, 5, *sizes), "float32")
        labels = f"b t {heads}d!, b s! {heads}d!, b s! {heads}d! -> b t {heads}d!, b t {heads}"
        attention_calls = make_calls(
            context_of("attention", labels.rstrip(), [q, k, k], [q, statistic], CAUSAL)
        )
        return repr(attention_calls.of(0)), [
            np.ravel(table).tolist() for table in attention_calls.tables
        ]

    assert calls("") == calls("h ", 1)


@pytest.mark.parametrize(("dtype", "numbers", "tile"), [("float32", 1, 64), ("bfloat16", 2, 128)])
def test_a_long_sequence_takes_memory_for_few_numbers_per_query(
    dtype: str, numbers: int, tile: int
):
    length = 1 << 17
    shape, key = (1, length, 8, 4, 128), (1, length, 8, 128)
    q, k, statistic = (
        whole_shard(shape, dtype),
        whole_shard(key, dtype),
        whole_shard(shape[:-1], "float32"),
    )
    labels = Form(attributes=CAUSAL, grouped=True).labels
    forward = make_calls(context_of("attention", labels[0], [q, k, k], [q, statistic], CAUSAL))
    turned = 0 if dtype == "float32" else 4 * statistic.size  # which the library may want turned
    assert forward.workspace_bytes == turned
    backward = make_calls(
        context_of("attention_grad", labels[1], [q, k, k, q, statistic, q], [q, k, k], CAUSAL)
    )
    assert backward.workspace_bytes == 4 * numbers * statistic.size
    launches = [launch for launch in last_options(*backward.of(0)) if isinstance(launch, Launch)]
    blocks = [launch.grid[0] for launch in launches[1:]]
    assert blocks == [32 * length // tile, 8 * length // 64]
