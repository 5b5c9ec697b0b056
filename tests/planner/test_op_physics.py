"""Op durations that follow from the data sheet: tiles and waves, flash attention, and bytes."""

from itertools import starmap
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.models.labels import parse, shape_of
from millrace.models.ops import OPS
from millrace.planner.cluster import Device, Software
from millrace.planner.clusters import device, names
from millrace.planner.costs import op_duration_ns
from millrace.planner.costs.attention import (
    BACKWARD_SPEED,
    DIAGONAL_KEYS,
    HEAD_SIZES,
    TILE_ENDS_KEYS,
    TILE_ENDS_KEYS_BACKWARD,
)
from millrace.planner.costs.gemm import DEPTHWISE_RATE, TILE_ENDS_BYTES, UNALIGNED, WINOGRAD
from millrace.planner.costs.memory_bound import RAMP_NS
from millrace.planner.errors import ClusterError
from tests.plain_links import plain_device

# 100 multiprocessors of 1 FLOP per ns each, and memory that costs nothing.
GPU = plain_device(
    name="gpu",
    flops_per_s={"fp32": 1e11, "bf16": 1e11, "fp8": 2e11},
    memory_bandwidth_bytes_per_s=1e15,
    attention_efficiency=1.0,
    multiprocessors=100,
)
PLAIN = msgspec.structs.replace(GPU, multiprocessors=0)
SLOW = msgspec.structs.replace(GPU, memory_bandwidth_bytes_per_s=1e9)
BF16, F32 = "bfloat16", "float32"


def op_ns(*work: Any) -> int:
    """Duration of a firing without the ramps of every kernel on a device with multiprocessors."""
    on = next(argument for argument in work if isinstance(argument, Device))
    return op_duration_ns(*work) - (RAMP_NS if on.multiprocessors else 0)


def matmul_ns(m: int, n: int, k: int, on: Device, dtype: str = BF16, **attributes: str) -> int:
    shapes = ((m, k), (k, n))
    return op_ns(
        "matmul", "m k, k n -> m n", attributes, shapes, ((m, n),), (dtype,) * 2, (dtype,), on
    )


def wave_ns(k: int) -> int:
    """Duration of one wave of the largest tiles."""
    return 2 * 256 * 128 * (k + TILE_ENDS_BYTES // 2)


def test_a_full_wave_takes_what_one_of_its_tiles_takes() -> None:
    full = matmul_ns(256 * 10, 128 * 10, 4096, GPU)
    assert full == pytest.approx(wave_ns(4096), abs=1)
    assert matmul_ns(256 * 20, 128 * 10, 4096, GPU) == pytest.approx(2 * full, abs=2)


def test_a_wave_of_one_tile_takes_longer_than_its_share_of_the_work() -> None:
    full = matmul_ns(256 * 10, 128 * 10, 4096, GPU)
    more = matmul_ns(256 * 10, 128 * 10 + 1, 4096, GPU)
    assert 1.1 * full < more <= 2 * full


def test_a_small_output_of_a_long_contraction_is_cut_along_it() -> None:
    alone = 2 * 64 * 64 * (2**17 + TILE_ENDS_BYTES // 2)
    assert matmul_ns(64, 64, 2**17, GPU) < alone / 3


def test_batches_of_products_fill_waves_together() -> None:
    labels = "b m k, b k n -> b m n"
    duration_ns = op_ns(
        "matmul", labels, {}, ((100, 256, 4096), (100, 4096, 128)), ((100, 256, 128),),
        (BF16,) * 2, (BF16,), GPU,
    )  # fmt: skip
    assert duration_ns == pytest.approx(wave_ns(4096), abs=1)


def test_sixteen_bit_dims_are_filled_up_to_multiples_of_eight() -> None:
    assert matmul_ns(4096, 4096, 1001, GPU) == matmul_ns(4096, 4096, 1008, GPU)
    assert matmul_ns(4096, 4096, 1001, GPU, F32) < matmul_ns(4096, 4096, 1008, GPU, F32)
    assert matmul_ns(1001, 1001, 1001, PLAIN) == pytest.approx(2 * 1008**3 / 100, abs=1)


def test_a_product_never_takes_less_than_its_bytes() -> None:
    on = msgspec.structs.replace(GPU, memory_bandwidth_bytes_per_s=1e6)
    moved = 2 * (8 * 4096 * 2 + 4096 * 4096)
    assert matmul_ns(8, 4096, 4096, on) == pytest.approx(1000 * moved, abs=1)


@pytest.mark.parametrize("arithmetic", ["fp8", "mxfp8"])
def test_products_in_eight_bits_have_their_rate(arithmetic: str) -> None:
    on = msgspec.structs.replace(GPU, narrow_efficiency=0.5)
    wide = 2 * 256 * 128 * (4096 + TILE_ENDS_BYTES)
    narrow = matmul_ns(2560, 1280, 4096, GPU, arithmetic=arithmetic)
    assert narrow == pytest.approx(wide / 2, rel=1e-3)
    assert matmul_ns(2560, 1280, 4096, on, arithmetic=arithmetic) == pytest.approx(wide, rel=1e-3)


def test_products_without_matrix_units_have_their_rate() -> None:
    on = msgspec.structs.replace(GPU, plain_efficiency=0.5)
    assert matmul_ns(4096, 4096, 4096, on) == matmul_ns(4096, 4096, 4096, GPU)
    once = matmul_ns(4096, 4096, 4096, GPU, F32)
    assert matmul_ns(4096, 4096, 4096, on, F32) == pytest.approx(2 * once, rel=1e-3)


def test_batched_products_of_unaligned_rows_are_far_slower() -> None:
    def batched_ns(k: int) -> int:
        shapes = ((64, 2048, k), (64, k, 2048))
        output_shapes = ((64, 2048, 2048),)
        return op_ns(
            "matmul", "b m k, b k n -> b m n", {}, shapes, output_shapes, (BF16,) * 2, (BF16,), GPU
        )

    assert batched_ns(108) == pytest.approx(UNALIGNED * batched_ns(112), rel=0.01)
    assert matmul_ns(2048, 2048, 108, GPU) == matmul_ns(2048, 2048, 112, GPU)


def test_a_device_without_eight_bits_refuses_them_by_name() -> None:
    with pytest.raises(ClusterError, match="`a100-sxm-80gb` has no mxfp8 arithmetic"):
        matmul_ns(8, 8, 8, device("a100-sxm-80gb"), arithmetic="mxfp8")


def test_four_bits_are_faster_than_eight_where_a_device_has_them() -> None:
    size = 16384
    for name in ("b200", "b300", "gb200", "gb300"):
        four, eight = (
            matmul_ns(size, size, size, device(name), arithmetic=arithmetic)
            for arithmetic in ("nvfp4", "fp8")
        )
        assert four < eight, name
        assert four == matmul_ns(size, size, size, device(name), arithmetic="mxfp4")
    assert matmul_ns(size, size, size, device("mi355x"), arithmetic="mxfp4") < matmul_ns(
        size, size, size, device("mi355x"), arithmetic="mxfp8"
    )
    with pytest.raises(ClusterError, match="`mi355x` has no nvfp4 arithmetic"):
        matmul_ns(8, 8, 8, device("mi355x"), arithmetic="nvfp4")
    with pytest.raises(ClusterError, match="`h100-sxm-80gb` has no nvfp4 arithmetic"):
        matmul_ns(8, 8, 8, device("h100-sxm-80gb"), arithmetic="nvfp4")


CONV = "b c y! x!, n c q! p! -> b n j! i!"
DEPTHWISE = "b (g c) y! x!, (g n) c q! p! -> b (g n) j! i!"


def conv_ns(kind: str, on: Device, b: int = 32, c: int = 128, n: int = 256) -> int:
    x, w, y = (b, c, 28, 28), (n, c, 3, 3), (b, n, 28, 28)
    x_, w_, y_ = "b c y! x!", "n c q! p!", "b n j! i!"
    labels, inputs, output = {
        "conv": (f"{x_}, {w_} -> {y_}", (x, w), y),
        "conv_grad_input": (f"{y_}, {w_} -> {x_}", (y, w), x),
        "conv_grad_weight": (f"{x_}, {y_} -> {w_}", (x, y), w),
    }[kind]
    return op_ns(kind, labels, {}, inputs, (output,), (BF16,) * 2, (BF16,), on)


@pytest.mark.parametrize(
    ("kind", "m", "n", "k"),
    [
        ("conv", 32 * 28 * 28, 256, 128 * 9),
        ("conv_grad_input", 32 * 28 * 28, 128, 256 * 9),
        ("conv_grad_weight", 256, 128 * 9, 32 * 28 * 28),
    ],
)
def test_a_convolution_costs_the_product_of_its_windows(kind: str, m: int, n: int, k: int) -> None:
    assert conv_ns(kind, GPU) == matmul_ns(m, n, k, GPU)


@pytest.mark.parametrize(("window", "stride", "faster"), [(3, 1, WINOGRAD), (3, 2, 1), (1, 1, 1)])
def test_a_3_x_3_convolution_of_stride_1_in_fp32_takes_fewer_multiplications(
    window: int, stride: int, faster: float
) -> None:
    shapes = ((32, 128, 28, 28), (256, 128, window, window))
    output_shapes = ((32, 256, 28 // stride, 28 // stride),)
    ways = {"stride_y": stride, "stride_x": stride}
    duration_ns = op_ns("conv", CONV, ways, shapes, output_shapes, (F32,) * 2, (F32,), GPU)
    rows, terms = 32 * (28 // stride) ** 2, 128 * window**2
    assert duration_ns == pytest.approx(matmul_ns(rows, 256, terms, GPU, F32) / faster, rel=1e-3)


def test_sums_and_squares_of_a_norm_are_taken_in_one_pass() -> None:
    shape, each = (32, 256, 28, 28), (256,)
    sums = op_ns("channel_sums", "b c y x -> c", {}, (shape,), (each,), (BF16,), (F32,), SLOW)
    labels = "b c y x, c -> c"
    squares = op_ns(
        "channel_squares", labels, {}, (shape, each), (each,), (BF16, F32), (F32,), SLOW
    )
    assert squares == 0 < sums


def test_a_depthwise_convolution_is_bound_by_memory() -> None:
    shape, window = (32, 256, 28, 28), (256, 1, 3, 3)
    duration_ns = op_ns(
        "conv", DEPTHWISE, {}, (shape, window), (shape,), (BF16,) * 2, (BF16,), SLOW
    )
    moved = 2 * (2 * 32 * 256 * 28 * 28 + 256 * 9)
    assert duration_ns == pytest.approx(moved / DEPTHWISE_RATE, rel=1e-6)


def attention_ns(
    t: int,
    size: int,
    on: Device,
    *,
    keys: int = 0,
    heads: int = 25,
    batch: int = 1,
    grad: bool = False,
    value_size: int = 0,
    **attributes: int | bool | str,
) -> int:
    s = keys or t
    q, k, row = (batch, t, heads, size), (batch, s, heads, size), (batch, t, heads)
    v, out = ((*shape[:3], value_size or size) for shape in (k, q))
    labels = "b t h d!, b s! h d!, b s! h u! -> b t h u!, b t h"
    ways = {"causal": False, "scale": 1.0, **attributes}
    if not grad:
        return op_ns("attention", labels, ways, (q, k, v), (out, row), (BF16,) * 3, (BF16, F32), on)
    labels = (
        "b t h d!, b s! h d!, b s! h u!, b t h u!, b t h, b t h u!"
        " -> b t h d!, b s! h d!, b s! h u!"
    )
    dtypes = (BF16,) * 4 + (F32, BF16)
    return op_ns(
        *("attention_grad", labels, ways, (q, k, v, out, row, out), (q, k, v), dtypes),
        *((BF16,) * 3, on),
    )


def test_attention_is_waves_of_tiles_of_128_queries() -> None:
    """25 heads of 4 tiles fill 100 multiprocessors once; at head size 128 products run at peak."""
    forward = attention_ns(512, 128, GPU)
    assert forward == pytest.approx(2 * 2 * 128 * 128 * (512 + TILE_ENDS_KEYS), rel=1e-6)
    assert attention_ns(512, 128, GPU, heads=26) == pytest.approx(2 * forward, rel=1e-6)
    backward = attention_ns(512, 128, GPU, grad=True)
    expected = 5 * 2 * 128 * 128 * (512 + TILE_ENDS_KEYS_BACKWARD) / BACKWARD_SPEED
    assert backward == pytest.approx(expected, rel=1e-6)


def test_frameworks_gain_on_a_device_up_to_what_kernels_reach() -> None:
    labels = "b t h d!, b s! h d!, b s! h u! -> b t h u!, b t h"
    q, row = (1, 4096, 32, 128), (1, 4096, 32)

    def rate(name: str, gain: float) -> float:
        work = ("attention", labels, {"causal": False, "scale": 1.0}, (q,) * 3, (q, row))
        dtypes = (BF16,) * 3, (BF16, F32)
        return 1 / op_duration_ns(*work, *dtypes, device(name), Software(attention=gain))

    assert rate("h100-sxm-80gb", 1.72) / rate("h100-sxm-80gb", 1.0) == pytest.approx(1.72, rel=0.02)
    assert rate("a100-sxm-80gb", 1.72) / rate("a100-sxm-80gb", 1.0) < 1.02


def test_masks_leave_what_lies_under_them() -> None:
    t = 2**14
    full = t + TILE_ENDS_KEYS
    ends = DIAGONAL_KEYS + TILE_ENDS_KEYS

    def share(**attributes: int | bool) -> float:
        return attention_ns(t, 128, GPU, **attributes) / attention_ns(t, 128, GPU)

    assert share(causal=True) == pytest.approx((t / 2 + ends) / full, rel=1e-5)
    inside = 4096 - 4096**2 / (2 * t)
    assert share(causal=True, window=4096) == pytest.approx((inside + ends) / full, rel=1e-5)
    assert share(causal=True, window=2 * t) == share(causal=True)


def test_head_sizes_cost_the_next_kernel_and_small_ones_are_slow() -> None:
    assert attention_ns(512, 80, GPU) == attention_ns(512, 96, GPU)
    assert attention_ns(512, 129, GPU) == attention_ns(512, 192, GPU)
    ratio = attention_ns(512, 64, GPU) / attention_ns(512, 128, GPU)
    assert ratio == pytest.approx(
        (64 + GPU.softmax_features) / (128 + GPU.softmax_features), rel=1e-5
    )
    assert list(HEAD_SIZES) == sorted(HEAD_SIZES)


def test_small_heads_cost_most_where_matrix_units_outrun_exponentials() -> None:
    def loss(name: str) -> float:
        on = device(name)
        return attention_ns(8192, 64, on, heads=64) / attention_ns(8192, 128, on, heads=64)

    assert loss("a100-sxm-80gb") < loss("h100-sxm-80gb") < loss("b200")
    assert loss("gb300") < loss("gb200")


# TFLOP/s of FlashAttention-3 forward on an H100 SXM5, head sizes 128 and 64, not causal, 16k tokens
# in all (arXiv 2407.08608, 2024, figure 5).
PUBLISHED = {(1024, 128): 565, (4096, 128): 638, (1024, 64): 392, (4096, 64): 476}


@pytest.mark.parametrize(("t", "size"), list(PUBLISHED))
def test_attention_comes_near_published_speeds(t: int, size: int) -> None:
    on = msgspec.structs.replace(device("h100-sxm-80gb"), attention_efficiency=0.65)
    heads, batch = 2048 // size, 16384 // t
    took = attention_ns(t, size, on, heads=heads, batch=batch)
    speed = 4 * batch * heads * t * t * size / took / 1000
    assert speed == pytest.approx(PUBLISHED[t, size], rel=0.2)


# Milliseconds on a GB300 of DeepSeek-V3's attention, causal, two samples: tokens, precision →
# forward, backward (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training, dsv3, 2026-04).
ON_GB300 = {
    (4096, "bf16"): (0.864, 3.127),
    (4096, "fp8"): (0.493, 1.803),
    (4096, "mxfp8"): (0.546, 2.348),
    (8192, "bf16"): (3.013, 11.074),
    (8192, "fp8"): (1.758, 6.188),
    (8192, "mxfp8"): (1.944, 8.030),
}


@pytest.mark.parametrize(("t", "precision"), list(ON_GB300))
def test_attention_in_8_bits_comes_near_published_times(t: int, precision: str) -> None:
    on = msgspec.structs.replace(device("gb300"), attention_efficiency=0.67)
    ways = {"heads": 128, "batch": 2, "value_size": 128, "causal": True}
    if precision != "bf16":
        ways["arithmetic"] = precision
    took = [attention_ns(t, 192, on, grad=grad, **ways) for grad in (False, True)]  # type: ignore[arg-type]
    assert took == [pytest.approx(1e6 * ms, rel=0.2) for ms in ON_GB300[t, precision]]


def test_small_heads_gain_little_backward_in_8_bits() -> None:
    """Llama's heads of 128 take 1.10 ms in 16 bits and 1.20 in MXFP8 (results/llama3.1)."""
    on, ways = device("gb300"), {"heads": 64, "batch": 2, "grad": True, "causal": True}
    wide = attention_ns(4096, 128, on, **ways)  # type: ignore[arg-type]
    narrow = attention_ns(4096, 128, on, arithmetic="mxfp8", **ways)  # type: ignore[arg-type]
    assert narrow / wide == pytest.approx(1.20 / 1.10, rel=0.2)


def test_no_window_is_left_out_backward_in_8_bits() -> None:
    on = device("gb300")
    for grad in (False, True):
        near, far = (
            attention_ns(4096, 64, on, grad=grad, causal=True, arithmetic="fp8", **window)
            for window in ({"window": 128}, {})
        )
        assert (near == far) == grad


def moving_ns(kind: str, on: Device, fusion: float = 1.0) -> int:
    shape, software = (1000, 1000), Software(fusion=fusion)
    return op_ns(
        kind, "n d -> n d", {}, (shape,), (shape,), (F32,), (F32,), on, software
    )  # fmt: skip


def test_what_is_fused_moves_fewer_bytes() -> None:
    assert moving_ns("gelu", SLOW, 0.5) == 4_000_000
    assert moving_ns("gelu", SLOW) == 8_000_000
    assert moving_ns("slice", SLOW, 0.5) == moving_ns("slice", SLOW)


def test_the_smallest_kernel_takes_its_launch_and_ramps() -> None:
    on = msgspec.structs.replace(GPU, launch_ns=900)
    for kind, labels in (("gelu", "n -> n"), ("slice", "")):
        duration_ns = op_duration_ns(kind, labels, {}, ((1,),), ((1,),), (F32,), (F32,), on)
        assert duration_ns == 900 + RAMP_NS + 1


def recurrence_ns(kind: str, decay: str, heads: int, size: int, tokens: int) -> int:
    """Duration of a recurrence of equal queries, keys and values on a B200 in bf16."""
    key, value = "b t! g n!", "b t! g r p"
    given = f"{key}, {key}, {value}, {decay}" + ", b t! g r" * kind.startswith("delta")
    labels = f"{given}, {value} -> {given}" if kind.endswith("grad") else f"{given} -> {value}"
    sizes = {"b": 1, "t": tokens, "g": heads, "r": 1, "n": size, "p": size}
    expression = parse(labels)
    inputs, outputs = (
        [shape_of(operand, sizes) for operand in side]
        for side in (expression.inputs, expression.outputs)
    )
    dtypes = (BF16,) * len(inputs), (BF16,) * len(outputs)
    return op_ns(kind, labels, {}, inputs, outputs, *dtypes, device("b200"))


# Times of flash-linear-attention on a B200 (pytorch/helion, examples/linear/BENCHMARKS.md,
# 2026-07): retention, gated delta rule, full_gla and KDA, forward, and forward with backward less
# forward.
@pytest.mark.parametrize(
    ("kind", "decay", "size", "milliseconds"),
    [
        ("state_space_scan", "b t! g r", 128, 0.613),
        ("state_space_scan_grad", "b t! g r", 128, 3.300 - 0.613),
        ("delta_rule", "b t! g r", 128, 1.204),
        ("delta_rule_grad", "b t! g r", 128, 5.388 - 1.204),
        ("state_space_scan", "b t! g r n!", 128, 3.602),
        ("state_space_scan_grad", "b t! g r n!", 128, 16.491 - 3.602),
        ("delta_rule", "b t! g r n!", 128, 2.241),
        ("delta_rule_grad", "b t! g r n!", 128, 11.204 - 2.241),
    ],
)
def test_a_recurrence_takes_as_long_as_published_kernels(
    kind: str, decay: str, size: int, milliseconds: float
) -> None:
    duration_ns = recurrence_ns(kind, decay, 96, size, 8192)
    assert duration_ns == pytest.approx(milliseconds * 1e6, rel=0.15)
    assert recurrence_ns(kind, decay, 48, 2 * size, 8192) == pytest.approx(duration_ns, rel=0.02)


def sparse_ns(chosen: int, keys: int, on: Device, queries: int = 4096) -> tuple[int, int]:
    """Durations of DeepSeek-V3.2's sparse attention in bf16, and of the choice of its keys."""
    heads, width, latent = 128, 576, 512
    shapes = ((1, queries, heads, width), (1, keys, width), (1, keys, latent), (1, queries, chosen))
    outputs = ((1, queries, heads, latent), (1, queries, heads))
    labels = "b t h d!, b s! d!, b s! u!, b t c! -> b t h u!, b t h"
    dtypes = (BF16, BF16, BF16, "int32"), (BF16, F32)
    attention_ns = op_ns("sparse_attention", labels, {"scale": 1.0}, shapes, outputs, *dtypes, on)
    index = ((1, queries, 64, 128), (1, queries, 64), (1, keys, 128))
    labels, dtypes = "b t i! e!, b t i!, b s! e! -> b t c!", ((BF16,) * 3, ("int32",))
    return attention_ns, op_ns("choose_keys", labels, {}, index, (shapes[3],), *dtypes, on)


def test_sparse_attention_takes_the_chosen_keys_and_their_choice_all_of_them() -> None:
    """FlashMLA's kernel multiplies at 640 TFLOP/s on an H800 at best (its README, 2025-09)."""
    h800 = device("h800")
    attention_ns, choice_ns = sparse_ns(2048, 32768, h800)
    flops = 2 * 4096 * 128 * 2048 * (576 + 512)
    assert 0.65 * 640 < flops / attention_ns / 1e3 < 640
    longer = sparse_ns(2048, 65536, h800)
    assert longer[0] == pytest.approx(attention_ns, rel=0.01)
    assert longer[1] == pytest.approx(2 * choice_ns, rel=0.05)
    assert sparse_ns(1024, 32768, h800)[0] == pytest.approx(attention_ns / 2, rel=0.02)


def test_a_cap_of_scores_costs_an_exponential_more() -> None:
    labels = "b t h d!, b s! h d!, b s! h u! -> b t h u!, b t h"
    shape = (1, 4096, 16, 128)
    plain, capped = (
        op_ns(
            "attention", labels, {"causal": True, "scale": 1.0, "cap": cap}, (shape,) * 3,
            (shape, shape[:3]), (BF16,) * 3, (BF16, F32), device("h100-sxm"),
        )
        for cap in (0.0, 50.0)
    )  # fmt: skip
    assert 1.1 < capped / plain < 1.3


# Kinds that no compiler or framework fuses with a neighbour, and why.
NOT_FUSED = {
    "it computes products": (kind for kind, row in OPS.items() if row.multiplies),
    "it becomes no actor": (kind for kind, row in OPS.items() if not row.actor),
    "it is a launch for many tensors": (
        *("accumulate", "adamw", "sgd", "squared_sum", "momentum", "muon"),
    ),
    "it gathers or scatters rows": (
        *("embedding", "embedding_grad", "relative_bias", "relative_bias_grad"),
        *("dispatch", "dispatch_grad", "combine", "combine_grad_input", "combine_grad_weight"),
    ),
    "it is a kernel of a library": (
        *("max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad"),
        *("causal_conv1d", "causal_conv1d_grad_input", "causal_conv1d_grad_weight"),
        *("sinkhorn", "sinkhorn_grad", "seen_keys"),
    ),
    "it moves shards": ("concat", "narrow", "widen", "fill"),
    "it is a scalar, or comes from the host": (
        *("input", "constant", "count_valid", "learning_rate", "step_totals"),
    ),
}


def test_every_kind_is_fused_or_says_why_not() -> None:
    reasons = {kind: reason for reason, kinds in NOT_FUSED.items() for kind in kinds}
    assert {kind for kind, row in OPS.items() if not row.fused_by_frameworks} == set(reasons)


def test_tables_of_measured_devices_count_as_they_were_measured() -> None:
    kernels = {"gelu": ((1_000, 77),), "matmul": ((1_000, 99),)}
    on = msgspec.structs.replace(PLAIN, kernels=kernels)
    assert moving_ns("gelu", on, 0.5) == moving_ns("gelu", on)
    assert matmul_ns(5, 10, 10, on) == 99


def test_entries_of_the_catalogue_price_products_and_attention() -> None:
    for on in map(device, names()):
        dtype = BF16 if "bf16" in on.flops_per_s else "float16"
        dtype = dtype if "fp16" in on.flops_per_s or dtype == BF16 else F32
        peak = max(on.flops_per_s[key] for key in ("fp32", "bf16", "fp16") if key in on.flops_per_s)
        assert 2 * 8192**3 / peak * 1e9 < matmul_ns(8192, 8192, 8192, on, dtype), on.name
        assert on.name.startswith(("tpu", "cpu")) == (on.multiprocessors == 0), on.name


PRODUCTS = (
    *((name, F32, {}) for name in ("cpu-core", "a100-sxm-80gb", "h200-sxm")),
    *(
        (name, BF16, ways)
        for name in ("h100-sxm-80gb", "b200", "tpu-v7x-ironwood")
        for ways in ({}, {"arithmetic": "fp8"})
    ),
)


@settings(deadline=None, max_examples=250)
@given(
    dims=st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 600)), min_size=3, max_size=3),
    case=st.sampled_from(PRODUCTS),
)
def test_a_larger_product_never_costs_less(
    dims: list[tuple[int, int]], case: tuple[str, str, dict[str, str]]
) -> None:
    name, dtype, ways = case
    small, large = [size for size, _ in dims], list(starmap(int.__add__, dims))
    on = device(name)
    assert matmul_ns(*small, on, dtype, **ways) <= matmul_ns(*large, on, dtype, **ways)


@settings(deadline=None, max_examples=150)
@given(
    tokens=st.tuples(st.integers(1, 5000), st.integers(0, 600)),
    keys=st.tuples(st.integers(1, 5000), st.integers(0, 600)),
    size=st.tuples(st.integers(1, 300), st.integers(0, 60)),
    heads=st.tuples(st.integers(1, 40), st.integers(0, 8)),
    window=st.sampled_from((0, 100, 1000)),
    causal=st.booleans(),
    grad=st.booleans(),
)
def test_larger_attention_never_costs_less(
    tokens: tuple[int, int],
    keys: tuple[int, int],
    size: tuple[int, int],
    heads: tuple[int, int],
    window: int,
    causal: bool,
    grad: bool,
) -> None:
    on = device("h100-sxm-80gb")

    def took(more: int) -> int:
        return attention_ns(
            tokens[0] + more * tokens[1],
            size[0] + more * size[1],
            on,
            keys=keys[0] + more * keys[1],
            heads=heads[0] + more * heads[1],
            grad=grad,
            causal=causal,
            window=window,
        )

    assert took(0) <= took(1)


@settings(deadline=None, max_examples=60)
@given(
    b=st.tuples(st.integers(1, 64), st.integers(0, 8)),
    c=st.tuples(st.integers(1, 300), st.integers(0, 40)),
    n=st.tuples(st.integers(1, 300), st.integers(0, 40)),
    kind=st.sampled_from(("conv", "conv_grad_input", "conv_grad_weight")),
)
def test_a_larger_convolution_never_costs_less(
    b: tuple[int, int], c: tuple[int, int], n: tuple[int, int], kind: str
) -> None:
    on = device("a100-sxm-80gb")
    assert conv_ns(kind, on, b[0], c[0], n[0]) <= conv_ns(kind, on, sum(b), sum(c), sum(n))
