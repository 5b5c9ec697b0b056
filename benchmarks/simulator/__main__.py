"""Speed of the simulator, the size of cluster that it takes, and the cost of its short cuts.

Firings a second are those of pipelines of compute actors, with the protocol alone beside the
simulator. Then plans are predicted: one of a mid-size model at every fidelity, GPT-3 on a thousand
devices block by block, Llama 3 on sixteen thousand with uneven stages and a straggler. Memory is
what Python allocates at most while it predicts. Jitter of sampled ranks is compared with that of
every rank, and goodput's closed form with runs simulated failure by failure.

Times are processor seconds of one core. A plan's graph, which search makes, is at hand. Run
`python -m benchmarks.simulator` from the root of the repository.
"""

import tracemalloc
from functools import partial
from statistics import mean
from time import process_time
from typing import Any

from msgspec.structs import replace

from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.actors.graph import (
    Actor,
    ActorGraph,
    Leave,
    Meeting,
    Port,
    Program,
    Queue,
    Register,
)
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.clusters import parse_cluster
from millrace.planner.memory import plan_memory
from millrace.planner.mesh import Axis
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest, search
from millrace.simulator import predict, simulate
from millrace.simulator.chunks.chunk_graph import CoarseGraph
from millrace.simulator.failures import MTBF_HOURS, expected_s, goodput
from millrace.simulator.stage_fidelity import stage_graph
from tests.simulator.failures.failing_runs import failing_run

STAGES = 4
OPS = 100
MICROBATCHES = 16
STEPS = 10
BEST_OF = 3

BOUNDLESS = 10**15  # bytes of a device, so that pinned plans are found whether or not they fit

JITTER, SEEDS = 0.05, 3


def program(stage: int) -> Program:
    """Program of a stage: receive, a row of ops, each with two inputs, and send."""
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
        index = len(actors)
        add("relu", 0, [r for r in (index - 1, index - 2) if r >= 0], [index], None)
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
    """Print firings per second, the best of several runs."""
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
    }
    for name, way in ways.items():
        best = float("inf")
        for _ in range(BEST_OF):
            begin = process_time()
            way()
            best = min(best, process_time() - begin)
        print(f"{name:32} {firings / best:12,.0f} op firings/s")


def planned(
    model: str, cluster: str, global_batch: int, pins: Pins, seq_len: int | None = None
) -> Plan:
    """Pinned plan on devices with memory for anything."""
    boundless = parse_cluster(cluster)
    boundless = replace(boundless, device=replace(boundless.device, memory_bytes=BOUNDLESS))
    request = SearchRequest(
        model=model_spec(model, seq_len, precision="bf16"),
        training=TrainingSpec(),
        cluster=boundless,
        global_batch=global_batch,
        pins=pins,
        max_gap=0.02,
    )
    return search(request, None, remedies=False)


def small() -> Plan:
    """Plan that can be simulated op by op in reasonable time."""
    pins = Pins(dp=2, tp=4, pp=4, micro_batch=1, schedule="1f1b")
    return planned("gpt3-2.7b", "a100-sxm-80gb:8x4", 128, pins)


def gpt3() -> Plan:
    """Plan of GPT-3 175B on 1,024 devices."""
    pins = Pins(dp=16, tp=8, pp=8, micro_batch=1, schedule="1f1b")
    return planned("gpt3-175b", "a100-sxm-80gb:8x128", 1536, pins)


def llama3(replicas: int) -> Plan:
    """Plan of Llama 3 405B on 128 devices a replica, last blocks on other stages than searched."""
    pins = Pins(dp=replicas, tp=8, pp=16, micro_batch=1, schedule="1f1b")
    plan = planned("llama3-405b", f"h100-sxm-80gb:8x{16 * replicas}", 16 * replicas, pins, 8192)
    first, second, *rest = plan.chunks
    moved = second.blocks[:2]
    chunks = (
        replace(first, blocks=first.blocks + moved),
        replace(second, blocks=second.blocks[2:]),
        *rest,
    )
    return replace(plan, chunks=chunks)


def timed(plan: Plan, fidelity: str, stragglers: dict[int, float] | None = None) -> tuple[int, int]:
    """Predict a plan and print a row; return the step time and the firings."""
    assert plan.graph.ops  # made before the clock runs
    begin = process_time()
    simulated = predict(plan, fidelity=fidelity, spans=False, stragglers=stragglers)
    took_s = process_time() - begin
    slow = "one straggler" if stragglers else ""
    print(
        f"{plan.model.name:12} {plan.ranks:7,} {fidelity:6} {slow:14} {took_s:8.2f} "
        f"{simulated.firings:10,} {simulated.step_time_ns / 1e6:12.3f} ms"
    )
    return simulated.step_time_ns, simulated.firings


def predictions() -> None:
    """Print what predictions take and say."""
    print(f"\n{'model':12} {'devices':>7} {'':21} {'seconds':>8} {'firings':>10} {'step time':>15}")
    plan = small()
    times = [timed(plan, fidelity)[0] for fidelity in ("op", "block", "stage")]
    print(f"the fidelities are apart by {max(times) / min(times) - 1:.2%}")
    timed(gpt3(), "block")
    for replicas in (8, 128):
        plan = llama3(replicas)
        for stragglers in ({}, {plan.ranks // 3: 1.5}):
            timed(plan, "stage", stragglers)


def memory() -> None:
    """Print the most memory that a prediction allocates, on a cluster and one 16 times larger."""
    for replicas in (8, 128):
        plan = llama3(replicas)
        stages = plan_memory(plan)
        tracemalloc.start()
        predict(
            plan,
            fidelity="stage",
            spans=False,
            memory=stages,
            stragglers={plan.ranks // 3: 1.5},
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{plan.ranks:7,} devices: at most {peak / 2**20:.1f} MiB")


def _step_ns(graph: ActorGraph, plan: Plan, coarse: CoarseGraph, **options: Any) -> int:
    return simulate(
        graph,
        plan.cluster,
        spans=False,
        durations_ns=coarse.durations_ns,
        pacing=coarse.pacing,
        **options,
    ).step_time_ns


def jitter() -> None:
    """Print what sampling ranks does to jitter's cost."""
    print(f"\njitter of {JITTER:.0%}, every rank or a sample, step time over that without")
    cases = {"llama3-405b on 512": llama3(4), "llama3-405b on 1,024": llama3(8)}
    for name, plan in cases.items():
        coarse = stage_graph(plan).coarse
        graph = coarse.ordered()

        step_ns = partial(_step_ns, graph, plan, coarse)
        calm = step_ns()
        every, some = (
            mean(step_ns(jitter=JITTER, seed=seed, folded=folded) for seed in range(SEEDS)) / calm
            for folded in (False, True)
        )
        print(f"{name:24} {every:.4f} {some:.4f}, off by {some / every - 1:+.2%}")


def failures() -> None:
    """Print goodput in closed form and by simulation, for Llama 3's cluster."""
    step_s, checkpoint_bytes, bytes_per_s, restart_s = 4.0, 5.7e12, 2e11, 600.0
    estimate = goodput(step_s, 16384, MTBF_HOURS, checkpoint_bytes, bytes_per_s, restart_s)
    steps = 1_000_000
    runs = [
        failing_run(
            steps,
            step_s,
            mtbf_s=estimate.mtbf_s,
            interval_steps=round(estimate.interval_s / step_s),
            checkpoint_s=estimate.checkpoint_s,
            restart_s=restart_s,
            seed=seed,
        ).wall_s
        for seed in range(16)
    ]
    closed_s = expected_s(
        steps * step_s, estimate.interval_s, estimate.mtbf_s, estimate.checkpoint_s, restart_s
    )
    print(
        f"\ngoodput on 16,384 devices that fail every {estimate.mtbf_s / 3600:.1f} h: "
        f"{estimate.fraction:.1%}, a checkpoint every {estimate.interval_s:.0f} s; "
        f"{steps:,} steps take {closed_s / 86400:.2f} days, simulated {mean(runs) / 86400:.2f}"
    )


def main() -> None:
    """Print all tables."""
    firings_per_second()
    predictions()
    memory()
    jitter()
    failures()


if __name__ == "__main__":
    main()
