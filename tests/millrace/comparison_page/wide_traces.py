"""Traces of a plan with as many actors as one likes: a chain of ops on every rank, each step alike.

Every tenth actor is a collective with a queue of its own. Durations are drawn from a seed.
"""

from typing import NamedTuple

import numpy as np

from millrace.planner.actors.graph import Actor, ActorGraph, Leave, Port, Program, Queue, Register
from millrace.planner.actors.trace import Span, Trace
from millrace.planner.actors.trace_lanes import lane_of
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import local_cluster
from millrace.planner.mesh import Axis

DIGEST = "00112233aabbccdd"
KINDS = ("matmul", "layer_norm", "gelu", "attention", "add", "softmax+mul", "sum", "adamw", "copy")
PHASES = ("forward", "backward_input", "backward_weight")


class WideComparison(NamedTuple):
    """A plan's graph, its cluster, and both of its traces."""

    graph: ActorGraph
    cluster: Cluster
    predicted: Trace
    measured: Trace


def wide_comparison(actors: int, microbatches: int, ranks: int) -> WideComparison:
    """A prediction and a run of `actors` actors over all ranks, one stage a rank."""
    programs = tuple(_program(rank, actors // ranks, microbatches) for rank in range(ranks))
    graph = ActorGraph(name="wide", axes=(Axis(name="dp", size=1),), programs=programs)
    cluster = local_cluster(ranks, cores=ranks, memory_bytes=2**30)
    traces = (_trace(graph, source, seed) for seed, source in enumerate(("simulated", "measured")))
    return WideComparison(graph, cluster, *traces)


def _program(rank: int, actors: int, microbatches: int) -> Program:
    rows = tuple(_actor(rank, number, microbatches) for number in range(actors))
    registers = tuple(
        Register(
            name=f"{actor.name}:0",
            tensor=actor.name,
            global_shape=(256, 64),
            sbp="B",
            shape=(256, 64),
            dtype="fp32",
            slots=2,
            slot_bytes=65536 * (1 + number % 7),
        )
        for number, actor in enumerate(rows)
    )
    queues = tuple(
        Queue(
            name=name,
            leave=Leave.COMPLETED,
            order=tuple(n for n, actor in enumerate(rows) if actor.queues == (queue,)),
        )
        for queue, name in enumerate(("compute", "dp"))
    )
    return Program(
        name=f"stage {rank}",
        stage=rank,
        ranks=(rank,),
        registers=registers,
        actors=rows,
        queues=queues,
    )


def _actor(rank: int, number: int, microbatches: int) -> Actor:
    collective = number % 10 == 9
    kind = "all_reduce" if collective else KINDS[number % 9]
    return Actor(
        name=f"h.{rank}.{number // 10}.{kind}.{number}",
        kind=kind,
        queues=(int(collective),),
        inputs=(Port(register=number - 1),) if number else (),
        outputs=(Port(register=number),),
        firings=microbatches,
        phase=PHASES[number % 3],
        block=f"h.{rank}",
    )


def _trace(graph: ActorGraph, source: str, seed: int) -> Trace:
    """A trace of one step: microbatch after microbatch, each rank a little later than the last."""
    spans, ends = [], []
    for program in graph.programs:
        rng = np.random.default_rng(program.stage)
        sizes = rng.lognormal(10.0, 1.0, len(program.actors))
        noise = np.random.default_rng([seed, program.stage])
        microbatches = program.actors[0].firings
        time = 40_000 * program.stage
        for firing in range(microbatches):
            factors = noise.lognormal(0.12 * seed, 0.25 * seed, len(sizes))
            for number, duration in enumerate((sizes * factors).astype(int).tolist()):
                spans.append(Span(program.ranks[0], number, firing, time, time + duration + 200))
                time += duration + 200 + 150 * seed
        ends.append((time,))
    return Trace(
        source=source,
        plan_digest=DIGEST,
        device="cpu",
        steps=1,
        lanes=tuple(lane_of(graph, rank) for rank in range(graph.ranks)),
        step_end_ns=tuple(ends),
        spans=tuple(spans),
    )
