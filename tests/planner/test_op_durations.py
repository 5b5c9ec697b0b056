"""Arrays of work cost what each of its elements costs alone, measured or not."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster import Device
from planner.clusters import device
from planner.costs import Firings, op_duration_ns, op_durations_ns

A100 = device("a100-sxm-80gb")
TABLES = {
    "matmul": ((1_000, 900), (10**6, 4_000), (10**9, 1_500_000)),
    "relu": ((64, 500), (10**6, 80_000)),
    "attention/32": ((1_000, 2_000), (10**8, 900_000)),
    "attention/64": ((1_000, 1_500), (10**8, 700_000)),
}
MEASURED = msgspec.structs.replace(A100, kernels=TABLES)

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
    together = Firings("matmul", labels, {}, sizes, moved, precision)
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
    together = Firings(kind, "n -> n", {}, {}, 8 * n, "fp32")
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
    together = Firings("attention", labels, attributes, sizes, moved, "fp32")
    assert op_durations_ns(together, on).tolist() == alone


@pytest.mark.parametrize("on", [A100, MEASURED], ids=["catalogue", "measured"])
def test_durations_of_growing_work_never_fall(on: Device) -> None:
    work = np.unique(np.logspace(0, 17, 400).astype(np.int64))
    for kind in ("matmul", "relu"):
        one = np.array([1])
        sizes = {"m": work, "k": one, "n": one} if kind == "matmul" else {}
        labels = "m k, k n -> m n" if kind == "matmul" else "m -> m"
        found = op_durations_ns(Firings(kind, labels, {}, sizes, work, "bf16"), on)
        assert (np.diff(found) >= 0).all()
        assert found.dtype == np.int64
