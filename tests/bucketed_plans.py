"""Plans whose collectives of state are joined in buckets, of more than one bucket a kind.

Links of these clusters have next to no latency, so that even of a small model several buckets pay.
"""

from functools import cache

from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.plan import FUSED, Plan
from tests.plan_requests import plan_of
from tests.small_models import small

GLOBAL_BATCH, MICROBATCHES = 8, 2
TRAINING = TrainingSpec(learning_rate=2e-3, warmup_steps=3, decay_steps=30, clip_norm=0.5)

CASES: dict[str, dict[str, object]] = {
    "dp 2": {"dp": 2},
    "dp 4": {"dp": 4},
    "ZeRO 1": {"dp": 4, "zero": 1},
    "ZeRO 2": {"dp": 4, "zero": 2},
    "ZeRO 3": {"dp": 2, "zero": 3},
    "ZeRO 3 of four": {"dp": 4, "zero": 3},
    "ZeRO 1 with tp": {"dp": 2, "tp": 2, "zero": 1, "sequence_parallel": True},
    "ZeRO 3 with tp": {"dp": 2, "tp": 2, "zero": 3},
    "dp with pp": {"dp": 2, "pp": 2},
    "ZeRO 1 in chunks": {
        "dp": 2,
        "pp": 2,
        "zero": 1,
        "schedule": "interleaved-1f1b",
        "interleave": 2,
    },
    "ZeRO 2, zero bubble": {"dp": 2, "pp": 2, "zero": 2, "schedule": "zb-h1"},
}


@cache
def searched(name: str, precision: str = "fp32", model: str = "gpt") -> tuple[Plan, Graph]:
    """A plan of a small model, pinned as the case says."""
    pins = {"dp": 1, "tp": 1, "pp": 1, **CASES[name]}
    devices = int(pins["dp"]) * int(pins["tp"]) * int(pins["pp"])  # type: ignore[call-overload]
    cluster = parse_cluster(f"h100-sxm-80gb:{devices}x1")
    library = replace(cluster.device, library="", launch_ns=0)
    link = replace(cluster.intra_node, latency_ns=1)
    plan = plan_of(
        small(model, precision), replace(cluster, device=library, intra_node=link), GLOBAL_BATCH,
        training=TRAINING, fusion=FUSED,
        **{"micro_batch": GLOBAL_BATCH // MICROBATCHES // int(pins["dp"]), **pins},
    )  # fmt: skip
    return plan, build_training(plan.model, plan.training, plan.batch)


@cache
def compiled(name: str, precision: str = "fp32") -> tuple[ActorGraph, ActorGraph]:
    """The actors of a plan with every collective by itself, and with buckets."""
    plan, _ = searched(name, precision)
    return compile_plan(plan, in_buckets=False), compile_plan(plan)
