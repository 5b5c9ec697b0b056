"""Plans of the small models for GPUs, and what a single device makes of them."""

from collections.abc import Callable, Sequence
from functools import cache

from executor.data import open_dataset
from executor.kernels import RunState
from executor.reference import ReferenceResult, run_reference
from executor.shards import RankValues
from executor.values.initial import initial_value
from models.graph import Graph
from models.spec import TrainingSpec
from models.zoo.catalogue import build_training
from planner.actors.graph import ActorGraph
from planner.clusters import parse_cluster
from planner.compile import compile_plan
from planner.plan import Plan
from planner.search import Pins, SearchRequest, search
from tests.small_models import small

GLOBAL_BATCH, MICROBATCHES = 8, 2
TRAINING = TrainingSpec(learning_rate=2e-3, warmup_steps=3, decay_steps=30, clip_norm=0.5)


@cache
def planned(
    model: str, precision: str, pins: tuple[tuple[str, object], ...] = ()
) -> tuple[Plan, Graph, ActorGraph]:
    """A plan of a small model on as many GPUs as its pins say, and its actors."""
    chosen = {"dp": 1, "tp": 1, "pp": 1, **dict(pins)}
    devices = int(chosen["dp"]) * int(chosen["tp"]) * int(chosen["pp"]) * int(chosen.get("cp", 1))  # type: ignore[call-overload]
    request = SearchRequest(
        model=small(model, precision),
        training=TRAINING,
        cluster=parse_cluster(f"h100-sxm-80gb:{devices}x1"),
        global_batch=GLOBAL_BATCH,
        pins=Pins(**{"micro_batch": GLOBAL_BATCH // MICROBATCHES // chosen["dp"], **chosen}),  # type: ignore[arg-type,operator]
    )
    plan = search(request)
    graph = build_training(plan.model, plan.training, plan.batch)
    return plan, graph, compile_plan(plan, graph)


def runs_of(plan: Plan, actors: ActorGraph, **changes: float) -> dict[int, RunState]:
    """What the kernels of every rank share."""
    dataset = open_dataset(None, plan.model, 0)
    return {
        rank: RunState(
            seed=0,
            dataset=dataset,
            global_batch=plan.global_batch,
            microbatches=plan.microbatches,
            batch=plan.batch,
            **changes,  # type: ignore[arg-type]
        )
        for rank in range(actors.ranks)
    }


def loading(graph: Graph) -> Callable[[Sequence[RankValues]], None]:
    """What fills the variables of all ranks."""
    attributes = {op.outputs[0]: op.attributes for op in graph.ops if op.kind == "variable"}

    def load(ranks: Sequence[RankValues]) -> None:
        for values in ranks:
            for index, register in enumerate(values.program.registers):
                if register.initial and register.tensor in attributes:
                    shape, dtype = register.global_shape, register.dtype
                    kind = attributes[register.tensor]
                    values.load(index, initial_value(register.tensor, shape, dtype, kind, 0))

    return load


@cache
def reference(model: str, steps: int, precision: str = "fp32") -> ReferenceResult:
    """The model trained on a single device with NumPy."""
    spec = small(model, precision)
    return run_reference(
        build_training(spec, TRAINING, GLOBAL_BATCH // MICROBATCHES),
        microbatches=MICROBATCHES,
        steps=steps,
        dataset=open_dataset(None, spec, 0),
        keep_parameters=(steps,),
    )
