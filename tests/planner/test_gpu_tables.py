"""A measured GPU's memory counts beside its tables; a CPU's tables are taken as they are."""

import msgspec
import numpy as np

from millrace.planner.cluster import Device
from millrace.planner.clusters import device
from millrace.planner.costs import OpFirings, op_durations_ns
from millrace.planner.fusion.fused_traffic import shares_of
from millrace.planner.fusion.fusion_graph import FusionNode, FusionTensor

TABLES = {
    "matmul@bf16": ((10**6, 1_000), (10**9, 1_000_000)),
    "attention/64@bf16": ((10**6, 1_000), (10**9, 1_000_000)),
    "channel_sums@bf16": ((10**3, 1_000), (10**6, 2_000)),
    "step_totals": ((28, 8_000),),
}
GPU = msgspec.structs.replace(
    device("a100-sxm-80gb"),
    kernels=TABLES,
    kernel_bytes={"attention/64@bf16": ((10**6, 10**6), (10**9, 10**6))},
    memory_bandwidth_bytes_per_s=1e12,
    memory_efficiency=1.0,
)
CPU = msgspec.structs.replace(GPU, multiprocessors=0)


def _product(moved: int, beside: int = 0) -> OpFirings:
    sizes = {"m": np.array([1000]), "k": np.array([500]), "n": np.array([1000])}  # 1e9 FLOPs
    return OpFirings(
        "matmul", "m k, k n -> m n", {}, sizes, np.array([moved]), "bf16", beside=beside
    )


def _took(firings: OpFirings, on: Device = GPU) -> int:
    return int(op_durations_ns(firings, on)[0])


def test_a_product_takes_no_less_than_its_bytes() -> None:
    assert _took(_product(10**6)) == 1_000_000
    assert _took(_product(2 * 10**9)) == 2_000_000
    assert _took(_product(2 * 10**9), CPU) == 1_000_000


def test_what_ops_behind_a_product_move_comes_on_top() -> None:
    assert _took(_product(10**9, beside=5 * 10**8)) == 1_500_000
    assert _took(_product(10**9, beside=5 * 10**8), CPU) == 1_000_000


def test_a_short_attention_takes_the_time_of_its_bytes_too() -> None:
    labels = "b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h"
    sizes = {name: np.array([size]) for name, size in {"b": 1, "t": 1, "s": 1, "h": 1}.items()}
    firing = OpFirings(
        "attention", labels, {}, {**sizes, "d": np.array([64])}, np.array([5]), "bf16"
    )
    calls = int(10**9 / float(firing.flops[0]))
    longer = firing._replace(sizes={**firing.sizes, "b": np.array([calls])})
    assert _took(longer) < 1_001_000
    shorter = longer._replace(bytes=np.array([10**9 + 10**6]))
    assert 1_999_000 < _took(shorter) < 2_001_000


def test_beyond_a_table_of_bytes_what_starting_takes_does_not_grow() -> None:
    one_point = OpFirings("step_totals", "z, z -> z", {}, {}, np.array([28_000]), "fp32")
    assert _took(one_point) == 8_000 + 28  # at the bandwidth
    assert _took(one_point, CPU) == 8_000_000


def test_on_a_gpu_computing_hides_behind_moving() -> None:
    squares = OpFirings("channel_squares", "b y x c -> c", {}, {}, np.array([10**6]), "bf16")
    assert _took(squares) == _took(squares._replace(kind="channel_sums")) == 2_000
    assert _took(squares, CPU) == 3_600  # by the factor that one core was measured to need


def test_ops_behind_a_product_say_what_they_move_beyond_its_result() -> None:
    def node(
        kind: str, labels: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> FusionNode:
        return FusionNode(
            name=kind, kind=kind, labels=labels, inputs=inputs, outputs=outputs, section=None
        )

    nodes = [
        node("matmul", "t k, k n -> t n", ("x", "w"), ("y",)),
        node("gelu", "t n -> t n", ("y",), ("z",)),
    ]
    values = {
        "x": FusionTensor(shape=(64, 32), dtype="bfloat16"),
        "w": FusionTensor(shape=(32, 128), dtype="bfloat16"),
        "y": FusionTensor(shape=(64, 128), dtype="bfloat16"),
        "z": FusionTensor(shape=(64, 128), dtype="bfloat16"),
    }
    both_written, _ = shares_of(nodes, values, ("y", "z"))  # the gradient reads y
    assert (both_written.outputs, both_written.beside) == ((4,), 2)
    result_alone, _ = shares_of(nodes, values, ("z",))
    assert (result_alone.outputs, result_alone.beside) == ((2,), 0)


def test_adding_up_gradients_hides_behind_the_product() -> None:
    product = FusionNode(
        name="a", kind="matmul", labels="t k, t n -> k n", inputs=("x", "g"), outputs=("d",),
        section=None,
    )  # fmt: skip
    added = FusionNode(
        name="b", kind="accumulate", labels="k n -> k n", inputs=("d",), outputs=("s",),
        section=None,
    )  # fmt: skip
    shapes = {"x": (64, 32), "g": (64, 128), "d": (32, 128), "s": (32, 128)}
    values = {
        name: FusionTensor(shape=shape, dtype="float32" if name == "s" else "bfloat16")
        for name, shape in shapes.items()
    }
    head, _ = shares_of([product, added], values, ("s",))
    assert (head.outputs, head.beside) == ((8,), 0)
