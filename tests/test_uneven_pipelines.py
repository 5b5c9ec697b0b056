"""Pipelines cut anywhere, on two mesh axes: they compile, run to their end and compute the same.

What one stage reads of another may be wanted in several SBPs: of the gradient that comes back to an
embedding that lies alone, the table's and the positions' parts each want their own.
"""

from collections import Counter
from functools import cache
from random import Random

import pytest
from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.planner.compile import compile_plan
from millrace.planner.memory import plan_memory
from millrace.planner.plan import BlockChoice, Chunk, OpSignature, Plan, Variant
from millrace.planner.schedules import stage_of
from millrace.simulator import predict
from tests.parallel_runs import assert_trains_as_one_device
from tests.plan_requests import plan_of
from tests.planner.op_signatures import op_signatures
from tests.small_models import small
from tests.test_same_mathematics import (
    GLOBAL_BATCH,
    MICROBATCHES,
    STEPS,
    TRAINING,
    reference,
)

STAGES = 2
ALONE = (1, 3, 5)  # cuts of embedding, h.0 … h.3, head: the embedding has a chunk of its own


@cache
def planned(precision: str, tp: int) -> tuple[Plan, Graph]:
    """Two stages of four devices on two axes, both data-parallel where `tp` is 1."""
    plan = plan_of(
        small("gpt", precision), STAGES * 2 * tp, GLOBAL_BATCH, training=TRAINING, dp=2, tp=tp,
        pp=STAGES,
        micro_batch=GLOBAL_BATCH // MICROBATCHES // 2,
    )  # fmt: skip
    return plan, plan.graph


def cut(plan: Plan, schedule: str, cuts: tuple[int, ...]) -> Plan:
    """The plan's blocks cut elsewhere, under another schedule."""
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    edges = (0, *cuts, len(blocks))
    chunks = tuple(
        Chunk(stage=stage_of(schedule, k, STAGES), blocks=tuple(blocks[edges[k] : edges[k + 1]]))
        for k in range(len(edges) - 1)
    )
    return replace(
        plan, schedule=schedule, interleave=len(chunks) // STAGES, chunks=chunks, pins={}
    )


def reading(plan: Plan, graph: Graph, block: str, chosen: dict[str, OpSignature]) -> Plan:
    """The plan with other signatures of some ops of one block."""
    before = next(c for chunk in plan.chunks for c in chunk.blocks if c.block == block)
    variant = plan.variants[before.variant]
    signatures = variant.signatures | chosen
    number = len(plan.variants)
    chunks = tuple(
        replace(
            chunk,
            blocks=tuple(
                BlockChoice(block=block, variant=number) if c.block == block else c
                for c in chunk.blocks
            ),
        )
        for chunk in plan.chunks
    )
    added = Variant(template=graph.templates[block], signatures=signatures)
    return replace(plan, variants=(*plan.variants, added), chunks=chunks)


def readers(graph: Graph, block: str) -> dict[str, list[OpSignature]]:
    """Signatures of the block's ops that read another's tensors once a microbatch, by op."""
    makers = {name: op.block for op in graph.ops for name in op.outputs}
    tensors = graph.tensors_by_name
    signatures = {}
    for op in graph.ops:
        names = [name for name in op.inputs if makers[name] not in ("", op.block)]
        if op.block != block or not names or op.phase in ("begin", "update"):
            continue
        signatures[op.name.removeprefix(f"{block}.")] = [
            signature.document
            for signature in op_signatures(op, tensors, (2, 2))
            if not any(
                sbp.is_partial
                for name, sbps in zip(op.inputs, signature.inputs, strict=True)
                if name in names
                for sbp in sbps
            )
        ]
    return signatures


def drawn(seed: int, precision: str = "fp32") -> Plan:
    """A plan cut at random, its blocks reading each other's tensors at random."""
    random = Random(seed)
    plan, graph = planned(precision, 2)
    schedule = random.choice(("interleaved-1f1b", "interleaved-1f1b", "zb-v", "gpipe"))
    chunks = 4 if schedule == "zb-v" else random.choice((4, 6))
    cuts = tuple(sorted(random.sample(range(1, 6), chunks - 1)))
    for block in ("embedding", "h.0", "h.2", "head"):
        chosen = {name: random.choice(ways) for name, ways in readers(graph, block).items()}
        plan = reading(plan, graph, block, chosen)
    return cut(plan, schedule, (1, *cuts[1:]) if random.random() < 0.5 else cuts)


def sent(plan: Plan, graph: Graph) -> Counter[tuple[str, str]]:
    """Number of sends of each tensor to each stage."""
    return Counter(
        (program.registers[actor.inputs[0].register].tensor, actor.name)
        for program in compile_plan(plan).programs
        for actor in program.actors
        if actor.kind == "send"
    )


@pytest.mark.parametrize(
    ("schedule", "tables"), [("interleaved-1f1b", "(S(0), S(1))"), ("zb-v", "(B, S(0))")]
)
def test_a_gradient_wanted_in_two_sbps_is_sent_once_and_comes_out_right(schedule, tables):
    plan, graph = planned("fp64", 2)
    ways = readers(graph, "embedding")
    chosen = {
        "sum.grad_weight": next(w for w in ways["sum.grad_weight"] if w.inputs[0] == "(S(0), B)"),
        "tokens.grad_weight": next(w for w in ways["tokens.grad_weight"] if w.inputs[1] == tables),
    }
    plan = cut(reading(plan, graph, "embedding", chosen), schedule, ALONE)
    assert set(sent(plan, graph).values()) == {1}
    actors = compile_plan(plan)
    assert_trains_as_one_device(plan, graph, actors, reference("fp64"), STEPS)


# In the last three a boxing that is deferred with a weight gradient is the first step of another
# one that an input gradient waits for.
@pytest.mark.parametrize("seed", [*range(12), 36, 77, 192])
def test_any_cut_with_any_readings_runs_to_its_end_in_the_memory_that_was_said(seed):
    plan = drawn(seed)
    graph = plan.graph
    programs = compile_plan(plan).programs
    for stage, program in zip(plan_memory(plan), programs, strict=True):
        assert stage.arena_bytes == program.memory_bytes
    assert set(sent(plan, graph).values()) <= {1}
    # What the stages' parts send each other is compiled apart; it has its own proof.
    assert predict(plan, fidelity="stage").step_time_ns > 0


@pytest.mark.parametrize("seed", range(2))
def test_any_cut_with_any_readings_computes_what_one_device_computes(seed):
    plan = drawn(seed, "fp64")
    graph = plan.graph
    actors = compile_plan(plan)
    assert_trains_as_one_device(plan, graph, actors, reference("fp64"), STEPS)


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zb-v"])
@pytest.mark.parametrize("cuts", [ALONE, (1, 2, 3), (2, 3, 4), (3, 4, 5), (1, 2, 5)])
def test_uneven_chunks_of_replicas_compile(schedule, cuts):
    plan, graph = planned("fp32", 1)
    assert set(sent(cut(plan, schedule, cuts), graph).values()) == {1}
