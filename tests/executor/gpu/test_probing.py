"""profile on a GPU: what is timed, where it lies, and the device that costs read of it."""

import msgspec
import numpy as np
import pytest

from executor.gpu.probing.arena import noise
from executor.gpu.probing.stopwatch import CALLS_MAX
from executor.gpu.probing.timing import Meetings, measured_device, profile_gpu, time_gpu
from executor.gpu.probing.transfers import MESSAGE_BYTES, groups_of
from executor.probes.cases import DTYPES, MULTIPLIED, PROBES, cases
from executor.probes.sizes import CPU_SCALES, GPU_SCALES
from models.ops import OPS
from planner.cluster import Device
from planner.clusters import parse_cluster, validate
from planner.costs import op_duration_ns
from planner.errors import ClusterError
from planner.likeness import PRICED_LIKE, priced_like
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import TICK_NS, EmulatedDevice

TOKENS = ({"b": 1, "t": 8, "h": 2, "d": 16},)
SCALES = {
    "tokens": TOKENS, "few": TOKENS, "ends": TOKENS, "logits": TOKENS, "lookups": TOKENS,
    "turned": ({"b": 1, "t": 8, "h": 2, "d": 32},),
    "heads": ({"b": 1, "t": 8, "h": 2, "d": 16}, {"b": 1, "t": 8, "h": 2, "d": 32}),
    "scalars": ({"z": 3},),
    "weights": ({"k": 8, "n": 8},),
    "products": ({"b": 1, "t": 8, "k": 8, "n": 8}, {"b": 1, "t": 8, "k": 8, "n": 32}),
    "images": ({"b": 1, "c": 4, "y": 8, "x": 8, "j": 4, "i": 4},),
    "filters": ({"b": 1, "c": 3, "n": 4, "q": 3, "p": 3, "y": 8, "x": 8, "j": 8, "i": 8},),
    "points": ({"b": 1, "c": 8, "n": 4, "q": 1, "p": 1, "y": 8, "x": 8, "j": 8, "i": 8},),
    "routes": ({"b": 1, "t": 8, "d": 16, "e": 4, "k": 2, "c": 8},),
    "boxing": ({"bytes": 4096},),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> Device:
    """What an emulated device is measured as, on which every call takes a microsecond."""
    if COMPILER is None:
        pytest.skip("needs g++")
    return profile_gpu(EmulatedDevice(), source="emulated", seconds=0.0, scales=SCALES)


def test_every_kind_has_a_table_of_every_precision_that_it_computes_in(measured: Device) -> None:
    narrow = {probe.kind for probe in PROBES if probe.is_narrowed}
    for precision in ("fp32", "bf16", "fp16"):
        found = {name.split("@")[0].split("/")[0] for name in measured.kernels if name.endswith(f"@{precision}")}
        assert found == narrow
    assert {name for name in measured.kernels if name.endswith("@tf32")} == {f"{kind}@tf32" for kind in MULTIPLIED}
    plain = {name for name in measured.kernels if "@" not in name}
    assert plain == {probe.kind for probe in PROBES} - narrow | {"slice", "pad"}
