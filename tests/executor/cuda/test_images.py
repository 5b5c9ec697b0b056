"""Convolution, pooling and batch norm on a device, against their formulas."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from benchmarks.gpu.kernel_resources import resources_of
from millrace.executor.cuda.calls import Launch, ProductCall
from millrace.executor.cuda.kernels.images import units
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import whole_shard
from tests.executor.cuda.calling import call, context_of
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import (
    ExampleCase,
    cases_of,
    check_all,
    emulator_of,
    parametrize_cases,
    selected_cases,
)
from tests.executor.cuda.kept_code import cached_cubin
from tests.executor.cuda.usual import NARROW, enumerate_by_kind
from tests.executor.examples.example import Example
from tests.executor.examples.images import (
    EXAMPLES,
    channels_last,
    convolutions,
    poolings,
    window,
)
from tests.extras import optional

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

STATISTICS = {
    "channel_squares": (1,),
    "batch_norm": (1, 2),
    "batch_norm_grad_sums": (2, 3),
    "batch_norm_grad_input": (2, 3, 5, 6),
}  # inputs that are float32 in a plan of 16 bits


def dilated_poolings() -> Iterator[Example]:
    """Windows with gaps, which the builders make none of but kernels know.

    The second reach so far that a byte cannot number all of their places.
    """
    for attributes, sizes in (
        (
            window((2, 1), (1, 1), (2, 3)) | {"size_y": 3, "size_x": 2},
            {"y": 9, "x": 6, "j": 4, "i": 5},
        ),
        (
            window((3, 1), (2, 0), (7, 6)) | {"size_y": 4, "size_x": 3},
            {"y": 25, "x": 15, "j": 3, "i": 3},
        ),
    ):
        yield from poolings(attributes, sizes)


def norms_in_slabs() -> Iterator[Example]:
    """Batch norms whose channels have more points than one slab."""
    for example in EXAMPLES:
        if not example.kind.startswith(("channel", "batch_norm")) or "grad_input" in example.kind:
            continue
        images, last = "y" in example.labels, "y x c" in example.labels
        sizes = {"b": 5, "c": 8 if last else 3, "y": 33, "x": 47}
        sizes = sizes if images else {"b": 6000, "c": 35}
        yield replace(example, sizes=sizes, large={})


def pieces_pooled() -> Iterator[Example]:
    """Pooling of channels that fill pieces of 16 bytes."""
    for example in (*EXAMPLES, *dilated_poolings()):
        if example.kind.endswith(("pool", "pool_grad")) and "b c" in example.labels:
            yield replace(example, sizes=example.sizes | {"c": 16}, large={})


LARGER = (
    # several tiles of channels, of places and of taps, in two slabs of places
    *convolutions(
        window((1, 1), (1, 1)),
        {"b": 2, "c": 18, "n": 70, "y": 33, "x": 32, "q": 3, "p": 3, "j": 33, "i": 32},
    ),
    *convolutions(
        window((3, 2), (2, 1)),
        {"b": 3, "g": 2, "c": 10, "n": 12, "y": 13, "x": 12, "q": 4, "p": 3, "j": 5, "i": 6},
    ),
    # strides beyond the window: some inputs are read by no tap
    *convolutions(
        window((3, 3), (0, 0), (2, 1)),
        {"b": 2, "c": 16, "n": 16, "y": 10, "x": 9, "q": 2, "p": 1, "j": 3, "i": 3},
    ),
    # three samples of which two have partial gradients at a time
    tuple(
        convolutions(
            window((1, 1), (0, 0)),
            {"b": 3, "c": 1400, "n": 1400, "y": 1, "x": 2, "q": 1, "p": 1, "j": 1, "i": 2},
        )
    )[2],
    *norms_in_slabs(),
)
# Of 16 bits on matrix units: several tiles and steps, windows that skip inputs, one place of stride
# 2, channels that 8 does not divide on either side.
UNITS = tuple(
    channels_last(example)
    for attributes, sizes in (
        (
            window((1, 1), (1, 1)),
            {"b": 2, "c": 80, "n": 72, "y": 9, "x": 8, "q": 3, "p": 3, "j": 9, "i": 8},
        ),
        (
            window((2, 2), (1, 1)),
            {"b": 3, "c": 40, "n": 136, "y": 9, "x": 7, "q": 3, "p": 3, "j": 5, "i": 4},
        ),
        (
            window((2, 2), (3, 3)),
            {"b": 2, "c": 3, "n": 16, "y": 15, "x": 13, "q": 7, "p": 7, "j": 8, "i": 7},
        ),
        (
            window((2, 2), (0, 0)),
            {"b": 3, "c": 24, "n": 40, "y": 7, "x": 6, "q": 1, "p": 1, "j": 4, "i": 3},
        ),
        (
            window((3, 3), (0, 0), (2, 1)),
            {"b": 2, "c": 16, "n": 10, "y": 10, "x": 9, "q": 2, "p": 1, "j": 3, "i": 3},
        ),
        (
            window((1, 2), (2, 1), (2, 2)),
            {"b": 9, "c": 8, "n": 8, "y": 17, "x": 16, "q": 3, "p": 3, "j": 17, "i": 7},
        ),
    )
    for example in convolutions(attributes, sizes)
)  # fmt: skip
UNIT_CASES = [
    *(
        ExampleCase(example=example, dtype=dtype, usual=dtype == NARROW[number % 2])
        for number, example in enumerate_by_kind(UNITS)
        for dtype in NARROW
    ),
    *(
        ExampleCase(example=example, dtype="bfloat16", splits=splits)
        for example in UNITS[:3]
        for splits in ({"b": 2}, {"c": 2}, {"n": 2}, {"b": 2, "c": 2, "n": 2})
    ),
]
CASES = [
    *cases_of(
        (*EXAMPLES, *dilated_poolings(), *map(channels_last, dilated_poolings())), STATISTICS
    ),
    *(
        ExampleCase(example=channels_last(example), dtype=dtype)
        for example in pieces_pooled()
        for dtype in ("float32", "bfloat16")
    ),
    *UNIT_CASES,
    *(
        ExampleCase(
            example=example,
            dtype=dtype,
            wide=STATISTICS.get(example.kind, ()),
            usual=dtype == ("float32", "bfloat16")[number % 2],
        )
        for number, example in enumerate_by_kind(LARGER)
        for dtype in ("float32", "bfloat16")
    ),
]


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    return emulator_of(selected_cases(CASES, request))


@parametrize_cases(CASES)
def test_kernels_compute_what_their_formulas_say(cases: list[ExampleCase], emulator: Emulator):
    check_all(cases, emulator)


def test_tiles_are_wide_where_there_are_many_and_compute_the_same(monkeypatch):
    monkeypatch.setattr(units, "MULTIPROCESSORS", 0)
    emulator = emulator_of(UNIT_CASES)
    wide = [case for case in UNIT_CASES if "conv_units<bf16, 128" in str(case.functions())]
    assert {case.example.kind for case in wide} == {"conv", "conv_grad_input"}
    for case in wide:
        case.check(emulator)


@pytest.mark.parametrize(("architecture", "of"), [("sm_80", 0), ("sm_90", None), ("sm_100", 1)])
def test_convolutions_on_matrix_units_keep_their_sums_in_registers(
    architecture: str, of: int | None
):
    optional("cuda.core", extra="test")
    flags = ("false", "true")
    functions = [
        *(f"conv_units<bf16, 64, {', '.join(each)}>" for each in product(flags, repeat=3)),
        *(f"conv_units<bf16, 128, {backward}, true, true>" for backward in flags),
        *(
            f"conv_units_weight<bf16, float, {rows}, {', '.join(each)}>"
            for rows in (64, 128)
            for each in product(flags, repeat=2)
        ),
    ]
    cubin = cached_cubin("convolution_units", functions[of :: 1 if of is None else 2], architecture)
    taken = resources_of(cubin.code)
    for name, symbol in cubin.symbols.items():
        assert taken[symbol].stack_bytes == 0, (name, taken[symbol])
        assert taken[symbol].registers <= 128, name  # two blocks of 256 threads


def test_the_librarys_convolutions_read_and_write_the_same_memory():
    library = Emulator({}, option=0)
    for case in UNIT_CASES:
        case.check(library)


def calls_of(sizes: dict[str, int], kind: str = "conv_grad_weight") -> list[object]:
    """The calls of a convolution of float32."""
    attributes = window((1, 1), (sizes["q"] // 2, sizes["p"] // 2))
    (example,) = (e for e in convolutions(attributes, sizes) if e.kind == kind)
    (part,) = ExampleCase(example=example, dtype="float32").parts()
    context = context_of(kind, example.labels, part.inputs, part.outputs, example.attributes)
    return list(make_calls(context).of(0))


def test_a_window_of_one_place_is_a_product_of_matrices():
    sizes = {"b": 4, "c": 6, "n": 8, "y": 7, "x": 7, "q": 1, "p": 1, "j": 7, "i": 7}
    for kind in ("conv", "conv_grad_input"):
        (matrix_product,) = calls_of(sizes, kind)
        assert isinstance(matrix_product, ProductCall)
        assert matrix_product.batch == 4
    *products, last = calls_of(sizes)
    assert all(isinstance(matrix_product, ProductCall) for matrix_product in products)
    assert isinstance(last, Launch)
    (alone,) = calls_of(sizes | {"b": 1})
    assert isinstance(alone, ProductCall)


def test_places_go_in_slabs_where_weights_fill_no_device():
    sizes = {"b": 2, "c": 18, "n": 70, "y": 33, "x": 32, "q": 3, "p": 3, "j": 33, "i": 32}
    assert len(calls_of(sizes)) == 2
    assert len(calls_of(sizes | {"b": 1})) == 1


def test_a_window_that_holds_a_nan_has_no_largest_value(emulator: Emulator):
    attributes = window((2, 2), (0, 0)) | {"size_y": 2, "size_x": 2}
    x = np.array([[[[1, np.nan, 3, 4], [5, 6, 7, 8]]]])
    (largest,) = call(
        "max_pool", "b c y! x! -> b c j! i!", [x], [whole_shard((1, 1, 1, 2), "float64")],
        attributes=attributes, emulator=emulator,
    )  # fmt: skip
    np.testing.assert_array_equal(largest[0, 0], [[np.nan, 8]])
    (dx,) = call(
        "max_pool_grad", "b c y! x!, b c j! i! -> b c y! x!", [x, np.full((1, 1, 1, 2), 2.0)],
        [whole_shard(x.shape, "float64")], attributes=attributes, emulator=emulator,
    )  # fmt: skip
    np.testing.assert_array_equal(dx[0, 0], [[0, 0, 0, 0], [0, 0, 0, 2]])


def test_the_first_of_a_window_of_minus_infinity_is_its_largest(emulator: Emulator):
    attributes = window((2, 2), (1, 1)) | {"size_y": 3, "size_x": 3}
    (dx,) = call(
        "max_pool_grad", "b c y! x!, b c j! i! -> b c y! x!",
        [np.full((1, 1, 4, 4), -np.inf), np.arange(1.0, 5).reshape(1, 1, 2, 2)],
        [whole_shard((1, 1, 4, 4), "float64")], attributes=attributes, emulator=emulator,
    )  # fmt: skip
    np.testing.assert_array_equal(dx[0, 0], [[1, 2, 0, 0], [3, 4, 0, 0], [0] * 4, [0] * 4])


def test_convolution_of_two_dtypes_is_refused():
    shards = whole_shard((1, 2, 3, 3), "float32"), whole_shard((2, 2, 1, 1), "bfloat16")
    with pytest.raises(ExecutorError, match=r"computes in one dtype.*float32, bfloat16, float32"):
        make_calls(
            context_of(
                "conv", "b c y! x!, n c q! p! -> b n j! i!", shards, [shards[0]],
                window((1, 1), (0, 0)),
            )
        )  # fmt: skip
