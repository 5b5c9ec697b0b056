"""A row's framework: its software, with the settings that the row states.

A framework is one set of settings (`millrace.planner.frameworks.framework_tables`). What a row's
columns state beyond it (captured launches, compilation, communication in pieces) changes a setting
by a rule, the same for every row that states it.
"""

from itertools import chain

from msgspec.structs import replace

from millrace.models.recompute import Selective
from millrace.planner.cluster import Device, Software
from millrace.planner.clusters import framework
from millrace.planner.collectives import BOXING, EXPERT_EXCHANGE
from millrace.planner.errors import ClusterError
from millrace.planner.frameworks.experts import (
    with_expert_recompute,
    with_experts,
    with_routing,
)
from millrace.planner.frameworks.framework_tables import DEFAULT, capabilities
from millrace.published.columns import OVER_ALL, RECOMPUTE_MODULES, words
from millrace.published.question import InexpressibleError
from millrace.published.reading import Row, choice, whole_number

# Collectives of tensor parallelism; the one besides is that of experts.
TENSOR = tuple(kind for kind in BOXING if kind != EXPERT_EXCHANGE)

# Gradients in float16 are summed as they come: DeepSpeed, and Megatron-LM without
# --accumulate-allreduce-grads-in-fp32 (which bfloat16 implies unless one says else:
# training/arguments.py, read 2026-11). Where a row says 4 they are summed in float32, as a plan
# sums them once a step.
NARROW_PRECISION, AS_PLANNED = "fp16", "4"

# InternEvo's ZeRO-1 over all ranks hands weights out by one broadcast of each rank's part
# (`broadcast_params`, internlm/solver/optimizer/hybrid_zero_optim.py, read 2026-11). What each
# takes is not measured but fitted, on InternEvo's own published runs over 16 to 1,024 ranks (2023),
# whose steps grow by 1.3 and 2.9 ms a rank in two series, whatever the cause.
BROADCASTING, BROADCAST_NS = "internevo", 2_300_000

# Share of the launches that stay where layers are captured one by one: what is between them.
LEFT = 0.5

# Precisions whose experts are one kernel in a step that is captured as a whole: a graph cannot wait
# for the host to learn how many tokens each has (Megatron-LM, examples/moe_recipes of its branch
# dev, `use_transformer_engine_op_fuser`, read 2026-11).
MICROSCALED = ("mxfp8", "nvfp4")

# Launches that a dispatch waits for where experts have places for so many tokens and drop the rest:
# the host knows the sizes and is ahead (Megatron-Core, transformer/moe/token_dispatcher.py,
# `drop_and_pad` in `_maybe_dtoh_and_synchronize`, read 2026-11).
LAUNCHED_AHEAD = 1

# Models that a bias on their routers' scores balances (sources: the zoo's `mixture_sizes`).
STEERED = ("deepseek-v3", "kimi-k2", "glm-4.5", "minimax-m2")

# Bytes that compiled code moves, of those of the same framework's plain code.
COMPILED_BYTES = 0.7


def framework_name(row: Row) -> str:
    """Framework of a row."""
    return row.get("framework", "") or DEFAULT


def settings(name: str) -> Software:
    """Settings of a framework, the default ones where it has none."""
    try:
        return framework(name)
    except ClusterError:
        return framework(DEFAULT)


def as_set(software: Software, row: Row, device: Device) -> Software:
    """Settings of a framework, with what the row says of how it was set.

    Raises
    ------
    InexpressibleError
        Names a column and what it holds.
    InfeasibleError
        The device has no such dispatcher of tokens to experts.
    """
    captured = _word(row, "captured")
    beside = flag(row, "tensor_overlap")
    if beside is not None:
        others = {*software.pieces} - {*TENSOR}
        pieces = {*others, *TENSOR} if beside else others
        software = replace(software, pieces=tuple(sorted(pieces)))
    if row.get("experts", ""):
        software = with_experts(
            software,
            device,
            capabilities(software.name),
            _word(row, "dispatcher") or None,
            flag(row, "expert_overlap"),
            captured=captured in ("layers", "step"),
        )
        software = with_routing(
            software,
            _word(row, "routing") or None,
            whole_number(row, "experts"),
            biased=row.get("model", "").startswith(STEERED),
        )
        if flag(row, "token_drop"):
            software = replace(software, routing=min(software.routing, LAUNCHED_AHEAD))
        if captured == "step" and row.get("precision") in MICROSCALED:
            software = replace(software, fused_experts=True)
        software = with_expert_recompute(software, whole_number(row, "ep", 1))
    if flag(row, "overlap") is False:
        software = replace(software, pieces=(), overlap=0.0)
    if flag(row, "compiled"):
        software = replace(software, fusion=software.fusion * COMPILED_BYTES, compiled=True)
    if modules := row.get("recompute_modules", "").split():
        if unknown := sorted({*modules} - RECOMPUTE_MODULES.keys()):
            raise InexpressibleError(f"recompute_modules: `{unknown[0]}` is none that is planned")
        again = dict.fromkeys(chain(*(RECOMPUTE_MODULES[module] for module in modules)))
        rule = Selective(again=tuple(again))
        software = replace(software, selective=rule, expert_selective=None)
    over_all = framework_name(row) == BROADCASTING and row.get("shard_group") == OVER_ALL
    launched = {"step": 0.0, "layers": LEFT}.get(captured, 1.0)
    return replace(
        software,
        gradient_bytes=_gradient_bytes(software, row),
        state_ranks=state_ranks(row),
        broadcast_ns=BROADCAST_NS if over_all else 0,
        host_ns=round(launched * software.host_ns),
    )


def _word(row: Row, name: str) -> str:
    return choice(row, name, words(name))


def flag(row: Row, name: str) -> bool | None:
    """Setting of a column that says 0 or 1; None where it is blank.

    Raises
    ------
    InexpressibleError
        Names the column and what it holds.
    """
    word = _word(row, name)
    return word == "1" if word else None


def _gradient_bytes(software: Software, row: Row) -> int:
    """Bytes of an element of a gradient on its way to the sum; 0: as the plan has it."""
    if stated := _word(row, "gradient_bytes"):
        return 0 if stated == AS_PLANNED else int(stated)
    return 2 if row.get("precision") == NARROW_PRECISION else software.gradient_bytes


def state_ranks(row: Row) -> int:
    """Number of replicas that storage is split among; 0: all of them, or not stated."""
    return 0 if row.get("shard_group") == OVER_ALL else whole_number(row, "shard_group", 0)
