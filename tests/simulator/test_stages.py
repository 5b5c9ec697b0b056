"""Stage fidelity against op fidelity: the same step, however the plan is cut, for far less work."""

import dataclasses
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest
from msgspec.structs import replace

from millrace.models.spec import Config, ModelSpec
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.compile import compile_plan
from millrace.planner.compile.slots import Timetable
from millrace.planner.costs import durations
from millrace.planner.memory import plan_memory
from millrace.planner.plan import BlockChoice, Chunk, Plan, recomputed
from millrace.planner.schedules import stage_of
from millrace.simulator import Simulated, SimulationError, predict, predict_fast, simulate
from millrace.simulator.chunks.chunk_graph import CoarseGraph
from millrace.simulator.critical_path import steady_chunks, steady_step
from millrace.simulator.prediction import MOST_OP_FIRINGS, chosen_fidelity
from millrace.simulator.stage_fidelity import StageGraph, stage_graph
from tests.millrace.plans import data_parallel_pipeline
from tests.plain_links import without_library
from tests.plan_requests import plan_of
from tests.simulator.graphs import GPU

GPT: Config = {
    "layers": 6,
    "hidden": 1024,
    "heads": 16,
    "ffn_hidden": 4096,
    "vocab": 16384,
    "positions": 512,
}
EXPERTS: Config = {
    "layers": 4,
    "hidden": 1024,
    "vocab": 8192,
    "positions": 512,
    "heads": 16,
    "kv_heads": 4,
    "head_dim": 64,
    "rotary_dims": 64,
    "ffn_hidden": 2048,
    "experts": 4,
    "experts_per_token": 2,
    "expert_hidden": 2048,
}
T5: Config = {
    "layers": 3,
    "hidden": 768,
    "heads": 12,
    "head_dim": 64,
    "ffn_hidden": 3072,
    "vocab": 8192,
    "buckets": 32,
    "max_distance": 128,
}
MODELS = {"gpt": ("gpt", GPT), "experts": ("decoder", EXPERTS), "t5": ("t5", T5)}


@dataclass(frozen=True)
class StagesCase:
    """A model, pins, and how blocks recompute."""

    name: str
    model: str
    pins: dict[str, object]
    microbatches: int = 6
    recompute: str = "none"


def pinned(dp: int = 1, tp: int = 1, pp: int = 1, **more: object) -> dict[str, object]:
    return {"dp": dp, "tp": tp, "pp": pp, "micro_batch": 2, "schedule": "1f1b", **more}


CASES = {
    case.name: case
    for case in (
        StagesCase("one device", "gpt", pinned()),
        StagesCase("tp", "gpt", pinned(tp=2)),
        StagesCase("tp and sequence", "gpt", pinned(tp=2, pp=2, sequence_parallel=True)),
        StagesCase("ZeRO 1", "gpt", pinned(dp=4, zero=1)),
        StagesCase("ZeRO 2", "gpt", pinned(dp=2, pp=2, zero=2)),
        StagesCase("ZeRO 3", "gpt", pinned(dp=4, zero=3)),
        StagesCase("ZeRO 3 on stages", "gpt", pinned(dp=2, pp=2, zero=3)),
        StagesCase("1f1b on two stages", "gpt", pinned(dp=2, pp=2)),
        StagesCase("1f1b on four stages", "gpt", pinned(pp=4)),
        StagesCase("gpipe", "gpt", pinned(dp=2, pp=2, schedule="gpipe")),
        StagesCase("zb-h1", "gpt", pinned(pp=4, schedule="zb-h1", micro_batch=8)),
        StagesCase("interleaved", "gpt", pinned(pp=2, schedule="interleaved-1f1b", interleave=3)),
        StagesCase("recompute", "gpt", pinned(dp=2, pp=2), recompute="full"),
        StagesCase("experts", "experts", pinned(dp=4, pp=2, ep=4)),
        StagesCase("pairs", "gpt", pinned(tp=2, pp=2, schedule="dualpipe-v")),
        StagesCase("pairs of experts", "experts", pinned(dp=4, pp=2, ep=4, schedule="dualpipe-v")),
        StagesCase("encoder and decoder", "t5", pinned(dp=2, pp=4)),
    )
}

# The worst of these plans is off by 1.7 % (interleaved), the recomputed one by 0.7 % (its clones
# hide gathering elsewhere), pairs by 0.9 % (chunks are measured beside their own kind). Where a
# transfer takes a third of a stage's forward, as in toys of some microseconds an op, 12 % were
# seen: sends begin before their part ends.
TOLERANCE = 0.02


@cache
def planned(name: str) -> Plan:
    case = CASES[name]
    family, config = MODELS[case.model]
    devices = 1
    for degree in ("dp", "tp", "pp"):
        devices *= int(str(case.pins[degree]))
    plan = plan_of(
        ModelSpec(name=case.model, family=family, config=config, seq_len=512, precision="bf16"),
        without_library(f"a100-sxm-80gb:{devices}x1"),
        int(str(case.pins["micro_batch"])) * int(str(case.pins["dp"])) * case.microbatches,
        max_gap=5.0,  # the first plan that there is: any will do
        **case.pins,
    )
    if case.recompute == "none":
        return plan
    return recomputed(plan, dict.fromkeys(plan.graph.blocks, case.recompute))


@cache
def by_op(name: str) -> Simulated:
    """Simulated step of the plan at op fidelity, the reference of the others."""
    return predict(planned(name), fidelity="op", spans=False)


@cache
def stages_of(name: str) -> StageGraph:
    """Graph of the plan's stages, which block and stage fidelity have in common."""
    return stage_graph(planned(name))


def cut(plan: Plan, schedule: str, stages: int, rows: int, microbatches: int) -> Plan:
    """The plan's blocks in other chunks under another schedule, as many as may be in each."""
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    count = stages * rows
    ends = [len(blocks) * (k + 1) // count for k in range(count)]
    chunks = tuple(
        Chunk(stage=stage_of(schedule, k, stages), blocks=tuple(blocks[begin:end]))
        for k, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    )
    return replace(
        plan,
        schedule=schedule,
        stages=stages,
        interleave=rows,
        chunks=chunks,
        microbatches=microbatches,
        global_batch=plan.batch * microbatches,
    )


def deeper(plan: Plan, layers: int) -> Plan:
    """Plan with more layers on each of its stages."""
    model = replace(plan.model, config=plan.model.config | {"layers": layers})
    row = [choice for chunk in plan.chunks for choice in chunk.blocks]
    inner = BlockChoice(block="h.0", variant=row[1].variant)
    row = [row[0], *(replace(inner, block=f"h.{k}") for k in range(layers)), row[-1]]
    return cut(
        replace(plan, model=model, chunks=(Chunk(stage=0, blocks=tuple(row)),)),
        plan.schedule,
        plan.stages,
        plan.interleave,
        plan.microbatches,
    )


def step_time_ns(plan: Plan) -> int:
    return predict(plan, fidelity="stage", spans=False).step_time_ns


CUTS = [
    ("zb-v", 2, 2, 1),
    ("zb-v", 4, 2, 8),
    ("gpipe", 2, 2, 3),
    ("interleaved-1f1b", 2, 3, 2),
    ("interleaved-1f1b", 4, 2, 8),
    ("1f1b", 5, 1, 3),
    ("zb-h1", 8, 1, 2),
    ("dualpipe-v", 3, 2, 6),
]


@pytest.mark.parametrize("name", CASES)
def test_a_step_takes_as_long_as_op_by_op(name: str) -> None:
    plan, fine = planned(name), by_op(name)
    coarse, blocks = (
        predict(plan, fidelity=fidelity, spans=False, stages=stages_of(name))
        for fidelity in ("stage", "block")
    )
    fidelities = [simulated.fidelity for simulated in (fine, blocks, coarse)]
    assert fidelities == ["op", "block", "stage"]
    assert blocks.step_time_ns == pytest.approx(fine.step_time_ns, rel=TOLERANCE)
    assert blocks.step_time_ns == pytest.approx(coarse.step_time_ns, rel=TOLERANCE)
    assert coarse.firings < blocks.firings < fine.firings
    assert coarse.step_time_ns == pytest.approx(fine.step_time_ns, rel=TOLERANCE)
    assert coarse.bubble_fraction == pytest.approx(fine.bubble_fraction, abs=0.02)
    exposed = fine.exposed_communication_ns
    assert abs(coarse.exposed_communication_ns - exposed) < 0.012 * fine.step_time_ns
    assert coarse.firings < 0.1 * fine.firings
    assert coarse.memory_bytes_max == fine.memory_bytes_max
    quick = predict_fast(plan, plan_memory(plan), "stage", stages_of(name))
    assert quick.exposed_communication_ns == coarse.exposed_communication_ns


@pytest.mark.parametrize(("schedule", "stages", "rows", "microbatches"), CUTS)
def test_any_cut_runs_to_its_end_and_takes_as_long_as_op_by_op(
    schedule: str, stages: int, rows: int, microbatches: int
) -> None:
    plan = cut(planned("one device"), schedule, stages, rows, microbatches)
    plan = replace(plan, cluster=GPU)
    fine = predict(plan, fidelity="op", spans=False)
    assert step_time_ns(plan) == pytest.approx(fine.step_time_ns, rel=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_the_steady_step_is_what_events_show(name: str) -> None:
    check_steady(stages_of(name).coarse, stages_of(name).table, planned(name))


@pytest.mark.parametrize("name", CASES)
def test_a_forecast_is_what_events_show_op_by_op(name: str) -> None:
    plan = planned(name)
    quick = predict_fast(plan, plan_memory(plan))
    reference = by_op(name)
    assert quick.fidelity == "op"
    assert quick.step_time_ns == reference.step_time_ns
    assert quick.bubble_fraction == pytest.approx(reference.bubble_fraction, rel=1e-12)
    assert quick.exposed_communication_ns == reference.exposed_communication_ns
    assert quick.memory_by_kind == reference.memory_by_kind
    assert quick.busy_by_stage == pytest.approx(reference.busy_by_stage, rel=1e-12)


@pytest.mark.parametrize("cutting", [*CUTS, ("zb-h1", 4, 1, 40), ("interleaved-1f1b", 4, 2, 14)])
def test_the_steady_step_is_what_events_show_whatever_takes_how_long(
    cutting: tuple[str, int, int, int],
) -> None:
    plan = replace(cut(planned("one device"), *cutting), cluster=GPU)
    stages = stage_graph(plan)
    for seed in range(6):
        check_steady(with_random_durations(stages.coarse, seed), stages.table, plan)


def with_random_durations(coarse: CoarseGraph, seed: int) -> CoarseGraph:
    """Graph with other durations; those who meet agree on theirs."""
    random = Random(seed)
    slowest = 10 ** random.randint(1, 6)  # of a meeting; parts take up to a millisecond
    drawn: dict[str, int] = {}
    rows = []
    for program in coarse.graph.programs:
        row = []
        for actor in program.actors:
            key = actor.meeting.key if actor.meeting else f"{program.name} {actor.name}"
            most = slowest if actor.meeting else 10**6
            row.append(drawn.setdefault(key, random.randint(1, most)))
        rows.append(tuple(row))
    firings_ns = {
        key: tuple(random.randint(0, 10**6) for _ in row) for key, row in coarse.firings_ns.items()
    }
    return dataclasses.replace(coarse, durations_ns=tuple(rows), firings_ns=firings_ns)


def check_steady(coarse: CoarseGraph, table: Timetable, plan: Plan) -> None:
    """Hold the longest paths of one step to the events of three."""
    steady = steady_step(coarse, table)
    simulated = simulate(
        coarse.ordered(),
        plan.cluster,
        spans=False,
        durations_ns=coarse.durations_ns,
        firings_ns=coarse.firings_ns,
    )
    assert steady is not None
    assert steady.step_time_ns == simulated.step_time_ns
    assert steady.bubble_fraction == pytest.approx(simulated.bubble_fraction, rel=1e-12)
    assert steady.exposed_communication_ns == simulated.exposed_communication_ns
    assert steady.busy_by_stage == pytest.approx(simulated.busy_by_stage, rel=1e-12)
    left_early = steady_chunks(coarse)
    assert left_early.step_time_ns == simulated.step_time_ns
    assert left_early.exposed_communication_ns == simulated.exposed_communication_ns
    assert left_early.busy_by_stage == pytest.approx(simulated.busy_by_stage, rel=1e-12)


def test_the_depth_of_a_model_enters_only_as_counts() -> None:
    plan = planned("1f1b on two stages")
    shallow, deep = deeper(plan, 8), deeper(plan, 14)
    sizes = [graph_size(candidate) for candidate in (shallow, deep)]
    assert sizes[0] == sizes[1]
    fine = predict(deep, fidelity="op", spans=False)
    assert step_time_ns(deep) == pytest.approx(fine.step_time_ns, rel=TOLERANCE)


def graph_size(plan: Plan) -> list[tuple[int, int]]:
    graph = stage_graph(plan).coarse.graph
    return [(len(program.actors), len(program.registers)) for program in graph.programs]


def test_more_blocks_or_microbatches_never_take_less_time() -> None:
    plan = planned("1f1b on two stages")
    by_depth = [step_time_ns(deeper(plan, layers)) for layers in (4, 5, 8)]
    by_count = [step_time_ns(cut(plan, "1f1b", 2, 1, count)) for count in (1, 4, 5)]
    assert by_depth == sorted(by_depth)
    assert by_count == sorted(by_count)


def test_the_same_plan_gives_the_same_prediction() -> None:
    plan = planned("ZeRO 3 on stages")
    first, second = (predict(plan, fidelity="stage", steps=2) for _ in range(2))
    assert first == second


def test_the_graph_of_stages_goes_through_several_steps_in_every_slot_order() -> None:
    plan = cut(planned("one device"), "zb-v", 4, 2, 9)
    stages: StageGraph = stage_graph(replace(plan, cluster=GPU), plan.graph)
    graph = stages.coarse.ordered()
    firings = run_to_completion(graph, steps=3)
    assert firings == 3 * sum(a.firings for p in graph.programs for a in p.actors)


def test_a_straggler_and_jitter_act_on_whole_parts() -> None:
    plan = planned("1f1b on two stages")
    calm = step_time_ns(plan)
    slow = predict(plan, fidelity="stage", stragglers={0: 2.0})
    rough = predict(plan, fidelity="stage", jitter=0.1, seed=1)
    assert slow.step_time_ns > 1.5 * calm
    assert rough.step_time_ns != calm
    assert rough == predict(plan, fidelity="stage", jitter=0.1, seed=1)


def test_ranks_that_share_cores_are_simulated_at_stage_fidelity_too() -> None:
    plan = data_parallel_pipeline()
    simulated = predict(plan, fidelity="stage")
    assert simulated.fidelity == "stage"
    assert simulated.step_time_ns > 0


def test_only_large_plans_are_predicted_by_stages_unless_asked() -> None:
    plan = planned("one device")
    assert chosen_fidelity(plan) == "op"
    assert predict(plan, spans=False).fidelity == "op"
    sizes = [len(variant.signatures) for variant in plan.variants]
    ops = sum(sizes[choice.variant] for chunk in plan.chunks for choice in chunk.blocks)
    many = MOST_OP_FIRINGS // ops + 1
    large = replace(plan, microbatches=many, global_batch=plan.batch * many)
    assert chosen_fidelity(large) == "stage"


def test_a_fidelity_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SimulationError, match="op, block, stage"):
        predict(planned("one device"), fidelity="exact")


def of_experts(pieces: tuple[str, ...], links_bytes_per_s: float) -> Plan:
    """The plan with experts, whose exchange is overlapped or not, over links of some bandwidth."""
    plan = planned("experts")
    cluster = plan.cluster
    link = replace(cluster.intra_node, bandwidth_bytes_per_s=links_bytes_per_s)
    software = replace(cluster.software, pieces=pieces)
    changed = replace(cluster, software=software, intra_node=link)
    return replace(plan, cluster=changed)


@pytest.mark.parametrize("links_bytes_per_s", [2e9, 50e9])
def test_overlap_hides_experts_exchange_behind_computation_and_no_more(
    links_bytes_per_s: float,
) -> None:
    """The step is shorter, but no shorter than what its exchanges take one after the other."""
    apart, hidden = (of_experts(pieces, links_bytes_per_s) for pieces in ((), ("all_to_all",)))
    apart_ns, hidden_ns = (predict(p, fidelity="stage").step_time_ns for p in (apart, hidden))
    graph = compile_plan(apart)
    actors, actor_ns = graph.programs[0].actors, durations(graph, apart.cluster)[0]
    exchanged_ns = sum(
        ns * actor.firings
        for actor, ns in zip(actors, actor_ns, strict=True)
        if actor.meeting is not None and actor.meeting.kind == "all_to_all"
    )
    assert exchanged_ns < hidden_ns < apart_ns
    assert (chosen_fidelity(apart), chosen_fidelity(hidden)) == ("op", "stage")


def test_the_first_forwards_and_the_last_gradients_have_nothing_to_run_beside() -> None:
    """The fewer microbatches, the larger the share of a step in which no pair runs."""
    plan = of_experts(("all_to_all",), 50e9)
    order = stage_graph(plan).table.orders[0]
    pairs = len(stage_graph(plan).table.paired_slots[0])
    forwards = sum(slot.part == "F" for slot in order)
    assert 0 < pairs < forwards
    assert [slot.part for slot in order[:2]] == ["F", "F"]
