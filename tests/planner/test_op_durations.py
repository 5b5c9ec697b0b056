"""Arrays of work cost what each of its elements costs alone, measured or not."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.planner.cluster import Device
from millrace.planner.clusters import device
from millrace.planner.costs import OpFirings, op_duration_ns, op_durations_ns

A100 = device("a100-sxm-80gb")
TABLES = {
    "matmul": ((1_000, 900), (10**6, 4_000), (10**9, 1_500_000)),
    "relu": ((64, 500), (10**6, 80_000)),
    "attention/32": ((1_000, 2_000), (10**8, 900_000)),
    "attention/64": ((1_000, 1_500), (10**8, 700_000)),
}
MEASURED = msgspec.structs.replace(A100, kernels=TABLES)
PRECISE = msgspec.structs.replace(
    A100,
    kernels={
        "matmul@fp32": ((1_000, 8_000), (10**9, 8_000_000)),
        "matmul@bf16": ((1_000, 1_000), (10**9, 1_000_000)),
        "relu": ((64, 500), (10**6, 80_000)),
        "relu@bf16": ((64, 700), (10**6, 90_000)),
        "attention/64@fp32": ((1_000, 9_000), (10**9, 9_000_000)),
        "attention/64@bf16": ((1_000, 2_000), (10**9, 2_000_000)),
        "attention/64": ((1_000, 5_000), (10**9, 5_000_000)),
    },
)

SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(
    rows=SIZES, on=st.sampled_from((A100, MEASURED)), dtype=st.sampled_from(("float32", "bfloat16"))
)
def test_products_of_many_shapes_cost_what_each_costs_alone(
    rows: list[int], on: Device, dtype: str
) -> None:
    labels, k, n = "m k, k n -> m n", 33, 77
    item = 4 if dtype == "float32" else 2
    alone = [
        op_duration_ns(
            "matmul", labels, {}, ((m, k), (k, n)), ((m, n),), (dtype,) * 2, (dtype,), on
        )
        for m in rows
    ]
    m = np.array(rows)
    precision = "fp32" if dtype == "float32" else "bf16"
    moved = (m * k + k * n + m * n) * item
    sizes = {"m": m, "k": np.array([k]), "n": np.array([n])}
    together = OpFirings("matmul", labels, {}, sizes, moved, precision)
    assert op_durations_ns(together, on).tolist() == alone


@settings(deadline=None, max_examples=60)
@given(
    counts=SIZES,
    on=st.sampled_from((A100, MEASURED)),
    kind=st.sampled_from(("relu", "tanh", "scale")),
)
def test_ops_that_only_move_bytes_cost_what_each_costs_alone(
    counts: list[int], on: Device, kind: str
) -> None:
    f32 = ("float32",)
    alone = [op_duration_ns(kind, "n -> n", {}, ((n,),), ((n,),), f32, f32, on) for n in counts]
    n = np.array(counts)
    together = OpFirings(kind, "n -> n", {}, {}, 8 * n, "fp32")
    assert op_durations_ns(together, on).tolist() == alone


@settings(deadline=None, max_examples=60)
@given(
    tokens=SIZES,
    head_size=st.sampled_from((16, 32, 48, 64, 128)),
    on=st.sampled_from((A100, MEASURED)),
)
def test_attention_by_head_size_costs_what_each_costs_alone(
    tokens: list[int], head_size: int, on: Device
) -> None:
    labels = "b t h d!, b s! h d!, b s! h u! -> b t h u!, b t h"
    attributes = {"causal": False, "scale": 1.0}
    heads, f32 = 3, "float32"
    alone = []
    for t in tokens:
        q, row = (2, t, heads, head_size), (2, t, heads)
        alone.append(
            op_duration_ns(
                "attention", labels, attributes, (q, q, q), (q, row), (f32,) * 3, (f32,) * 2, on
            )
        )
    t = np.array(tokens)
    fixed = {"b": 2, "h": heads, "d": head_size, "u": head_size}
    sizes = {label: np.array([size]) for label, size in fixed.items()} | {"t": t, "s": t}
    moved = 4 * (4 * 2 * t * heads * head_size + 2 * t * heads)
    together = OpFirings("attention", labels, attributes, sizes, moved, "fp32")
    assert op_durations_ns(together, on).tolist() == alone


def firings(kind: str, precision: str, work: int) -> OpFirings:
    """Firings of an op of `work` FLOPs (a product of [m, 1] and [1, 1]) or bytes (any other op)."""
    if kind == "matmul":
        sizes = {"m": np.array([work // 2]), "k": np.array([1]), "n": np.array([1])}
        return OpFirings(kind, "m k, k n -> m n", {}, sizes, np.array([work]), precision)
    return OpFirings(kind, "n -> n", {}, {}, np.array([work]), precision)


@pytest.mark.parametrize(
    ("kind", "precision", "work", "expected"),
    [
        ("matmul", "fp32", 1_000, 8_000),
        ("matmul", "bf16", 1_000, 1_000),
        ("relu", "bf16", 10**6, 90_000),
        ("relu", "fp32", 10**6, 80_000),
        ("tanh", "bf16", 10**6, 90_000),
        ("tanh", "fp16", 10**6, 80_000),
    ],
)
def test_the_table_of_the_precision_is_read_before_the_kinds_own(
    kind: str, precision: str, work: int, expected: int
) -> None:
    assert op_durations_ns(firings(kind, precision, work), PRECISE).tolist() == [expected]


def test_products_of_a_precision_that_was_not_measured_are_priced_by_the_peak() -> None:
    (duration_ns,) = op_durations_ns(firings("matmul", "fp16", 10**9), PRECISE)
    assert duration_ns == op_durations_ns(firings("matmul", "fp16", 10**9), A100)[0]


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", 9_000), ("bfloat16", 2_000), ("float16", 5_000)]
)
def test_attention_has_tables_by_head_size_and_precision(dtype: str, expected: int) -> None:
    q, row = (1, 2, 1, 64), (1, 2, 1)
    duration_ns = op_duration_ns(
        "attention",
        "b t h d!, b s! h d!, b s! h u! -> b t h u!, b t h",
        {"causal": False},
        (q, q, q),
        (q, row),
        (dtype,) * 3,
        (dtype, "float32"),
        PRECISE,
    )
    assert expected <= duration_ns <= 1.2 * expected


def test_statistics_do_not_decide_the_precision_of_an_op() -> None:
    shapes = ((8, 64), (8, 64), (64,), (8,), (8,))
    dtypes = (*["bfloat16"] * 3, *["float32"] * 2)
    norm = msgspec.structs.replace(
        A100,
        kernels={
            "layer_norm_grad_input@bf16": ((10**4, 77),),
            "layer_norm_grad_input": ((10**4, 10**6),),
        },
    )
    labels = "t d!, t d!, d!, t, t -> t d!"
    duration_ns = op_duration_ns(
        "layer_norm_grad_input", labels, {}, shapes, ((8, 64),), dtypes, ("bfloat16",), norm
    )
    assert duration_ns == 77


@pytest.mark.parametrize("on", [A100, MEASURED], ids=["catalogue", "measured"])
def test_durations_of_growing_work_never_fall(on: Device) -> None:
    work = np.unique(np.logspace(0, 17, 400).astype(np.int64))
    for kind in ("matmul", "relu"):
        unit = np.array([1])
        sizes = {"m": work, "k": unit, "n": unit} if kind == "matmul" else {}
        labels = "m k, k n -> m n" if kind == "matmul" else "m -> m"
        durations_ns = op_durations_ns(OpFirings(kind, labels, {}, sizes, work, "bf16"), on)
        assert (np.diff(durations_ns) >= 0).all()
        assert durations_ns.dtype == np.int64
