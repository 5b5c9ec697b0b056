"""Rows of sweeps as typed values: one plan of one cluster, size, network and batch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """Point of a sweep: what was asked, the plan's choices and figures, and what binds it.

    docs/scaling.md says what each field holds. `reason` says why there is no plan, and is None
    where there is one; without a plan, choices and figures are None.
    """

    model: str
    cluster: str
    network: str | None
    nodes: int
    devices_per_node: int
    devices: int
    price_usd_per_gpu_hour: float | None
    global_batch: int
    batch_per_device: int | None
    seq_len: int
    precision: str
    framework: str
    unit: str
    tokens: float

    step_time_s: float | None
    step_time_range_s: tuple[float, float] | None
    step_time_compared_with: str | None
    device_doubt: str | None
    profile_warning: str | None
    tokens_per_s: float | None
    mfu: float | None
    tflops_per_gpu: float | None
    memory_bytes_max: int | None
    reserve_bytes: int | None
    step_time_jitter_mean_s: float | None
    step_time_jitter_p95_s: float | None
    jitter_steps: int | None
    goodput_fraction: float | None
    goodput_tokens_per_s: float | None
    checkpoint_interval_s: float | None
    time_s: float | None
    energy_j: float | None
    cost_usd: float | None

    binds: str | None
    binds_fraction: float | None
    next: str | None
    next_fraction: float | None
    compute_fraction: float | None
    memory_bandwidth_fraction: float | None
    memory_fraction: float | None
    links_inside_nodes_fraction: float | None
    links_between_nodes_fraction: float | None
    bubble_fraction: float | None
    host_fraction: float | None
    parts: Mapping[str, float] | None

    dp: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    zero: int | str | None
    sequence_parallel: bool | None
    micro_batch: int | None
    microbatches: int | None
    schedule: str | None
    interleave: int | None
    recompute: str | None
    offload: str | None
    gap: float | None

    reason: str | None
    scaling_efficiency: float | None
    marginal_efficiency: float | None
    stops_paying: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "SweepRow":
        """Row of a sweep's document."""
        bounds = row["step_time_range_s"]
        names = [entry.name for entry in fields(cls)]
        typed = {name: row[name] for name in names}
        return cls(**typed | {"step_time_range_s": None if bounds is None else tuple(bounds)})

    @property
    def document(self) -> dict[str, Any]:
        """Row as `millrace scale --json` has it, its keys in that order."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        bounds = self.step_time_range_s
        return values | {"step_time_range_s": None if bounds is None else list(bounds)}
