"""Questions that a page may ask, with the bounds of what one request may cost.

Types are strict: `"8"` is no number. What names things of a catalogue is checked in
`millrace.serving.engine_calls`; here is what no name of any catalogue exceeds.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

DEVICES_MAX = 4096
BATCH_MAX = 65_536
SEQ_LEN_MAX = 1_048_576
FACTOR_MIN, FACTOR_MAX = 0.1, 10.0
JITTER_MAX = 0.5
PLAN_NAME = r"^[0-9a-f]{16}$"

Name = Annotated[str, Field(min_length=1, max_length=64)]
Degree = Annotated[int, Field(ge=1, le=DEVICES_MAX)]
Factor = Annotated[float, Field(ge=FACTOR_MIN, le=FACTOR_MAX, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PinnedChoices(_Strict):
    """Choices that are fixed beforehand; the search decides what is left out."""

    dp: Degree | None = None
    tp: Degree | None = None
    pp: Degree | None = None
    cp: Degree | None = None
    ep: Degree | None = None
    etp: Degree | None = None
    micro_batch: Annotated[int, Field(ge=1, le=BATCH_MAX)] | None = None
    schedule: Name | None = None
    interleave: Annotated[int, Field(ge=1, le=256)] | None = None
    recompute: Name | None = None
    zero: Name | None = None
    sequence_parallel: bool | None = None
    offload: Name | None = None
    ring: bool | None = None
    fusion: Name | None = None
    dispatcher: Name | None = None
    expert_overlap: bool | None = None
    mtp_layers: Annotated[int, Field(ge=0, le=16)] | None = None
    capacity_factor: Name | None = None
    routing: Name | None = None


class PlanQuestion(_Strict):
    """Question for a plan: which model, on which devices, in which batches."""

    model: Name = Field(examples=["gpt2-small"], description="A name of GET /api/catalogue.")
    cluster: Name = Field(examples=["a100:4x1"], description="DEVICE:GPUS_PER_NODExNODES.")
    global_batch: int = Field(ge=1, le=BATCH_MAX, description="Samples of one step.")
    network: Name | None = Field(default=None, description="A fabric's name, between nodes: `ndr`.")
    seq_len: int | None = Field(
        default=None, ge=1, le=SEQ_LEN_MAX, description="Tokens of a sample."
    )
    precision: Name | None = None
    framework: Name | None = None
    reserve: Annotated[str, Field(max_length=16)] | None = Field(
        default=None, description="Memory of a device to leave free: 13%, 2GiB, 0."
    )
    optimize_for: Literal["throughput", "cost", "energy"] = "throughput"
    pins: PinnedChoices = PinnedChoices()


class WhatIfs(_Strict):
    """Changes under which a fixed plan is simulated; all left out: none.

    `network`, `links`, `compute` and `memory_bandwidth` are factors on what the cluster has.
    """

    straggler_factor: Factor = Field(default=1.0, description="On the times of one rank's ops.")
    straggler_rank: int = Field(default=0, ge=0, lt=DEVICES_MAX)
    jitter: float = Field(
        default=0.0,
        ge=0,
        le=JITTER_MAX,
        description="Standard deviation of every duration, a share.",
    )
    seed: int = Field(default=0, ge=0, le=2**31)
    network: Factor = Field(default=1.0, description="On the bandwidth between nodes.")
    links: Factor = Field(default=1.0, description="On the bandwidth inside a node.")
    compute: Factor = Field(default=1.0, description="On the FLOP/s of the devices.")
    memory_bandwidth: Factor = Field(default=1.0, description="On that of the devices.")
    overlap: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of its speed a device keeps beside communication.",
    )
    microbatches: int | None = Field(
        default=None, ge=1, le=4096, description="Of the same size: the global batch follows."
    )
    cluster: Name | None = Field(default=None, description="Another cluster of as many devices.")
    precision: Name | None = None


class SimulationQuestion(_Strict):
    """Question what a plan of this server does, under changes."""

    plan: str = Field(pattern=PLAN_NAME, description="`plan` of a job that is done.")
    what_ifs: WhatIfs = WhatIfs()
