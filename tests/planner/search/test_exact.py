"""The whole search against exhaustive enumeration, on small graphs, meshes and memory limits."""

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from models.spec import TrainingSpec, graph_spec
from planner.clusters import parse_cluster
from planner.errors import InfeasibleError
from planner.memory import plan_memory, reserved_bytes, slack_fraction
from planner.plan import Plan, plan_graph
from planner.search import Pins, SearchRequest, search
from tests.planner.search.enumeration import Enumerator
from tests.planner.search.small_models import small_graph

QUESTIONS = 54
LIMITED = 0.5  # share of questions with a memory limit
# Devices and pins: one axis of two, two of two, one or two stages, storage split and not.
KINDS: tuple[tuple[int, dict[str, object]], ...] = (
    (2, {}),
    (2, {"pp": 1}),
    (2, {"dp": 2}),
    (2, {"dp": 2, "zero": 1}),
    (2, {"dp": 2, "zero": 3}),
    (4, {"pp": 2}),
    (4, {"pp": 2, "dp": 2}),
    (4, {"dp": 2, "tp": 2}),
    (4, {"dp": 2, "tp": 2, "zero": 2}),
)
RECOMPUTE = (None, None, None, "none", "selective", "full")


@cache
def question(seed: int) -> SearchRequest:
    """A request drawn from the seed; its memory is a share of what the free plan takes."""
    rng = Random(seed)
    devices, pins = KINDS[seed % len(KINDS)]
    mids = rng.choice((0, 1, 1, 2))
    limited = rng.random() < LIMITED
    if devices == 4:
        mids = min(mids, 1)
    if limited and "dp" not in pins:  # where much may be chosen besides
        mids = 0
    batch = rng.choice((2, 4, 8))
    graph = small_graph(
        mids,
        batch=batch,
        tokens=rng.choice((1, 64, 1024)),
        inputs=rng.choice((255, 512, 2048)),
        hidden=rng.choice((256, 512, 1024)),
        classes=rng.choice((127, 512)),
        stem=rng.choice(("dense", "embedding")),
        mid=rng.choice(("relu", "gelu", "residual")),
    )
    recompute = rng.choice(RECOMPUTE)
    asked = SearchRequest(
        model=graph_spec(graph, "fp32"),
        training=TrainingSpec(optimizer=rng.choice(("sgd", "adamw"))),
        cluster=parse_cluster(f"a100-sxm-80gb:{devices}x1"),
        global_batch=batch,
        pins=Pins(**pins, **({"recompute": recompute} if recompute else {})),  # type: ignore[arg-type]
    )
    if not limited:
        return asked
    free = found(asked)
    assert free is not None, "without a limit there is a plan"
    arena = max(one.arena_bytes for one in plan_memory(free, plan_graph(free)))
    laid_out = arena * rng.uniform(0.6, 1.1)
    slack = 1 + slack_fraction(asked.cluster)
    limit = int(laid_out * slack) + reserved_bytes(asked.cluster)
    return replace(asked, memory_limit_bytes=limit)


def found(request: SearchRequest) -> Plan | None:
    """The plan by the planner's own cost and estimate of memory; None where none fits."""
    try:
        return search(request, simulate=lambda plan: {"memory_bytes_max": 0})
    except InfeasibleError:
        return None
