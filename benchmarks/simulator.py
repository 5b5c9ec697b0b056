"""How fast the simulator is: firings per second, and a plan predicted at each fidelity.

Firings are those of pipelines of compute actors, with the protocol alone beside the simulator. The
plan is one of a mid-size model; compiling it is part of predicting it. Stage fidelity is compared
with op fidelity in step time too.

Run `python -m benchmarks.simulator` from the root of the repository.
"""

from time import perf_counter

from models.spec import TrainingSpec
from models.zoo.catalogue import model_spec
from planner.actors.graph import Actor, ActorGraph, Leave, Meeting, Port, Program, Queue, Register
from planner.actors.null_clock import run_to_completion
from planner.clusters import parse_cluster
from planner.mesh import Axis
from planner.plan import plan_graph
from planner.search import Pins, SearchRequest, search
from simulator import predict, simulate

STAGES = 4
OPS = 100
MICROBATCHES = 16
STEPS = 10
BEST_OF = 3

MODEL, CLUSTER, GLOBAL_BATCH = "gpt3-2.7b", "a100-sxm-80gb:8x4", 128


def program(stage: int) -> Program:
    """A stage: receive, a row of ops, each with two inputs, and send."""
    actors: list[Actor] = []
    count = OPS + (stage > 0) + (stage < STAGES - 1)

    def add(kind: str, queue: int, inputs: list[int], outputs: list[int], peer: int | None) -> None:
        meeting = peer is not None and Meeting(key=f"{min(stage, peer)}", kind=kind, peer=peer)
        actors.append(
            Actor(
                name=f"{kind} {len(actors)}",
                kind=kind,
                labels="n -> n",
                queues=(queue,),
                inputs=tuple(Port(register=r) for r in inputs),
                outputs=tuple(Port(register=r) for r in outputs),
                firings=MICROBATCHES,
                meeting=meeting or None,
            )
        )

    if stage > 0:
        add("recv", 1, [], [0], stage - 1)
    for _ in range(OPS):
        at = len(actors)
        add("relu", 0, [r for r in (at - 1, at - 2) if r >= 0], [at], None)
    if stage < STAGES - 1:
        add("send", 2, [len(actors) - 1], [len(actors)], stage + 1)
    lanes = [[i for i, a in enumerate(actors) if a.queues == (q,)] for q in range(3)]
    return Program(
        name=f"stage {stage}",
        stage=stage,
        ranks=(stage,),
        registers=tuple(
            Register(
                name=f"r{i}",
                tensor=f"r{i}",
                global_shape=(1024,),
                sbp="B",
                shape=(1024,),
                dtype="float32",
                slots=2,
            )
            for i in range(count)
        ),
        actors=tuple(actors),
        queues=tuple(
            Queue(name=name, leave=Leave.COMPLETED, order=tuple(lane * MICROBATCHES))
            for name, lane in zip(("compute", "recv", "send"), lanes, strict=True)
        ),
    )


def firings_per_second() -> None:
    """Print the best of several runs."""
    graph = ActorGraph(
        name="benchmark",
        axes=(Axis(name="dp", size=1),),
        programs=tuple(program(stage) for stage in range(STAGES)),
    )
    cluster = parse_cluster(f"a100-sxm-80gb:{STAGES}x1")
    firings = run_to_completion(graph, steps=STEPS)
    ways = {
        "protocol on the null clock": lambda: run_to_completion(graph, steps=STEPS),
        "simulate, every op": lambda: simulate(graph, cluster, steps=STEPS, spans=False),
        "simulate, every op, with spans": lambda: simulate(graph, cluster, steps=STEPS),
        "simulate, blocks": lambda: simulate(
            graph, cluster, steps=STEPS, spans=False, fidelity="block"
        ),
    }
    for name, way in ways.items():
        best = float("inf")
        for _ in range(BEST_OF):
            begin = perf_counter()
            way()
            best = min(best, perf_counter() - begin)
        print(f"{name:32} {firings / best:12,.0f} op firings/s")


def fidelities() -> None:
    """Print what a mid-size plan's prediction takes and says at each fidelity."""
    spec = model_spec(MODEL, precision="bf16")
    request = SearchRequest(
        model=spec,
        training=TrainingSpec(),
        cluster=parse_cluster(CLUSTER),
        global_batch=GLOBAL_BATCH,
        pins=Pins(dp=2, tp=4, pp=4, micro_batch=1, schedule="1f1b"),
    )
    plan = search(request)
    graph = plan_graph(plan)
    print(f"\n{MODEL} on {CLUSTER}, dp 2, tp 4, pp 4, {plan.microbatches} microbatches")
    print(f"{'fidelity':12} {'seconds':>8} {'firings':>10} {'step time':>12} {'of op':>8}")
    step_time_ns = 0
    for fidelity in ("op", "block", "stage"):
        begin = perf_counter()
        found = predict(plan, fidelity=fidelity, spans=False, graph=graph)
        took_s = perf_counter() - begin
        step_time_ns = step_time_ns or found.step_time_ns
        print(
            f"{fidelity:12} {took_s:8.2f} {found.firings:10,} {found.step_time_ns / 1e6:9.3f} ms"
            f" {found.step_time_ns / step_time_ns:8.4f}"
        )


def main() -> None:
    """Print both tables."""
    firings_per_second()
    fidelities()


if __name__ == "__main__":
    main()
