"""Compiling: what the actor graph of a plan must be, whatever the plan."""

from collections.abc import Callable
from functools import cache, partial

import msgspec
import pytest
from msgspec.structs import replace

from millrace.models.graph import to_json
from millrace.planner.actors.graph import ActorGraph, Leave
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.protocol import Fire
from millrace.planner.compile import compile_plan
from millrace.planner.compile.passes import ordered_plan
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.mesh import Axis, Mesh
from millrace.planner.parallel_degrees import roles
from millrace.planner.plan import Chunk, Plan, recomputed
from tests.millrace.plans import data_parallel_pipeline
from tests.plan_requests import plan_of
from tests.small_models import gpt_of, small

ANY = 5.0  # a gap with which a search is over soon: any plan serves
SCHEDULES = ("gpipe", "1f1b", "zb-h1")
LONG = replace(data_parallel_pipeline().model, seq_len=2**24)


def plan_with(**changes) -> Plan:
    return replace(data_parallel_pipeline(), **changes)


def interleaved() -> Plan:
    """The four blocks and two ends of `data_parallel_pipeline` as two chunks a stage."""
    plan = data_parallel_pipeline()
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    chunks = tuple(
        Chunk(stage=i % 2, blocks=tuple(blocks[start:stop]))
        for i, (start, stop) in enumerate(((0, 2), (2, 3), (3, 4), (4, 6)))
    )
    return replace(plan, schedule="interleaved-1f1b", interleave=2, chunks=chunks)


def recomputing(plan: Plan, mode: str) -> Plan:
    return recomputed(plan, {b.block: mode for chunk in plan.chunks for b in chunk.blocks})


def on_a_ring(**pins) -> Plan:
    return plan_of(
        small("llama"), 8, max_gap=ANY,
        **{"dp": 1, "tp": 1, "cp": 4, "pp": 2, "micro_batch": 2, "ring": True} | pins,
    )  # fmt: skip


def sharing_out(**pins) -> Plan:
    """Plan with 16-bit storage over two axes: weights are cast and gathered, their sums reduced."""
    return plan_of(
        replace(small("llama"), precision="fp16"), f"a100-sxm-80gb:{4 * pins.get('pp', 1)}x1",
        max_gap=ANY, **{"dp": 2, "tp": 1, "cp": 2, "pp": 1, "micro_batch": 1, "zero": 1} | pins,
    )  # fmt: skip


KEEPING: dict[str, Callable[[], Plan]] = {
    **{name: partial(plan_with, schedule=name) for name in SCHEDULES},
    "interleaved": interleaved,
}
RECOMPUTING: dict[str, Callable[[], Plan]] = {
    f"{name}, {mode}": partial(
        lambda make_plan, mode: recomputing(make_plan(), mode), make_plan, mode
    )
    for name, make_plan in KEEPING.items()
    for mode in ("selective", "full")
}
PLANS: dict[str, Callable[[], Plan]] = {
    **KEEPING,
    **RECOMPUTING,
    "zb-h1, some": lambda: recomputed(
        plan_with(schedule="zb-h1"), {"embedding": "full", "h.1": "selective", "h.3": "full"}
    ),
    "ring, zb-h1": partial(on_a_ring, schedule="zb-h1"),
    "ring, full": partial(on_a_ring, schedule="1f1b", recompute="full"),
    "ring of eight": partial(on_a_ring, cp=8, pp=1),
    "storage": sharing_out,
    "storage, interleaved": partial(sharing_out, pp=2, schedule="interleaved-1f1b", interleave=2),
    "storage, zb-h1": partial(sharing_out, pp=2, schedule="zb-h1"),
}


@cache
def kind_of_plan(name: str) -> Plan:
    return PLANS[name]()


@cache
def compiled(name: str) -> ActorGraph:
    return compile_plan(kind_of_plan(name))


@pytest.mark.parametrize("name", PLANS)
def test_slots_that_are_in_use_at_once_never_share_memory(name):
    graph = compiled(name)
    live: list[dict[tuple[int, int], tuple[int, int]]] = [{} for _ in graph.programs]
    readers: dict[tuple[int, int, int], int] = {}
    consumers = [
        [
            sum(port.register == register for a in program.actors for port in a.inputs)
            for register in range(len(program.registers))
        ]
        for program in graph.programs
    ]
    for extents, program in zip(live, graph.programs, strict=True):
        for index, register in enumerate(program.registers):
            if register.initial:
                extents[index, 0] = span(register, 0)

    def visit(instance: int, fire: Fire) -> None:
        program = graph.programs[instance]
        actor = program.actors[fire.actor]
        for port, slot in zip(actor.outputs, fire.writes, strict=True):
            if fire.firing % port.hold == 0:
                extent = span(program.registers[port.register], slot)
                for (register, other), taken in live[instance].items():
                    if (register, other) != (port.register, slot):
                        assert extent[1] <= taken[0] or taken[1] <= extent[0], (
                            program.registers[port.register].name,
                            program.registers[register].name,
                        )
                live[instance][port.register, slot] = extent
                readers[instance, port.register, slot] = consumers[instance][port.register]
        for port, slot in zip(actor.inputs, fire.reads, strict=True):
            assert (port.register, slot) in live[instance]
            if (fire.firing + 1) % port.hold == 0 and not program.registers[port.register].initial:
                readers[instance, port.register, slot] -= 1
                if readers[instance, port.register, slot] == 0:
                    del live[instance][port.register, slot]
        for port, slot in zip(actor.outputs, fire.writes, strict=True):
            if not consumers[instance][port.register]:
                del live[instance][port.register, slot]

    assert run_to_completion(graph, steps=2, visit=visit) > 0


def test_weights_and_their_gradients_lend_each_other_their_places():
    (program,) = compiled("storage").programs
    lent = {r.name for r in program.registers if r.memory_kind == "lent"}
    assert "h.0.mlp.down.weight.cast" in lent
    assert any(name.startswith("h.0.mlp.down.weight.repeat.accumulate (") for name in lent)
    assert sum(program.memory_bytes_by_kind.values()) == program.memory_bytes


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_replicas_add_up_gradients_where_they_lie_and_small_ones_apart(precision):
    model = gpt_of(2, 128, 2, vocab=512, positions=64, precision=precision)
    plan = plan_of(model, "a100:2x1", dp=2, tp=1, pp=1, zero=0, micro_batch=1, max_gap=ANY)
    (program,) = compile_plan(plan).programs
    registers = {register.name: register for register in program.registers}
    tied, reduced = "embedding.tokens.weight.cast.grad_sum B", "h.0.mlp.fc1.weight.repeat"
    if precision == "fp32":
        tied = tied.replace("cast.", "")
    for name, place in ((tied, "embedding.tokens.weight"), (f"{reduced}.accumulate B", reduced)):
        summed = registers[f"{place.removesuffix('.repeat')}.repeat.accumulate"]
        assert registers[name].memory_kind == "lent"
        assert registers[name].offset_bytes == summed.offset_bytes
    small = registers["h.0.mlp.fc1.bias.repeat.accumulate B"]
    assert small.offset_bytes != registers["h.0.mlp.fc1.bias.repeat.accumulate"].offset_bytes


def span(register, slot):
    start = register.start_bytes(slot)
    return start, start + register.slot_bytes


@pytest.mark.parametrize("name", PLANS)
def test_the_same_plan_compiles_to_the_same_bytes_and_back(name):
    first, second = compiled(name), compile_plan(kind_of_plan(name))
    assert to_json(first) == to_json(second)
    assert msgspec.json.decode(to_json(first), type=ActorGraph) == first


@pytest.mark.parametrize("name", PLANS)
def test_every_meeting_is_in_a_lane_and_in_the_one_launch_order(name):
    for program in compiled(name).programs:
        launch = next(q for q in program.queues if q.name == "launch")
        assert launch.leave is Leave.ISSUED
        meetings = [i for i, actor in enumerate(program.actors) if actor.meeting is not None]
        assert sorted(set(launch.order)) == meetings
        for lane in program.queues:
            if lane.name not in ("launch", "compute"):
                members = set(lane.order)
                assert [a for a in launch.order if a in members] == list(lane.order)


def test_stages_agree_on_the_order_of_what_passes_between_them():
    first, second = compiled("interleaved").programs
    orders = []
    for program, peer in ((first, 1), (second, 0)):
        launch = next(q for q in program.queues if q.name == "launch")
        meetings = [program.actors[index].meeting for index in launch.order]
        orders.append([m.key for m in meetings if m is not None and (m.peer == peer or m.world)])
    assert orders[0] == orders[1]


def test_deeper_schedules_hold_more_activations():
    peaks = {}
    for schedule in ("gpipe", "1f1b"):
        first, last = compile_plan(plan_with(schedule=schedule, microbatches=8)).programs
        peaks[schedule] = (first.memory_bytes, last.memory_bytes)
    assert peaks["1f1b"][0] < peaks["gpipe"][0]
    assert peaks["1f1b"][1] < peaks["gpipe"][1]


@pytest.mark.parametrize("name", RECOMPUTING)
def test_clones_run_with_the_input_gradients_of_their_block_right_before_them(name):
    for program in compiled(name).programs:
        order = program.queues[0].order
        actors = [program.actors[index] for index in order if not program.actors[index].in_place]
        for position, actor in enumerate(actors):
            if actor.phase == "recompute":
                later = (other for other in actors[position + 1 :] if other.phase != "recompute")
                first = next(later)
                assert first.phase.startswith("backward"), (actor.name, first.name)
                assert first.block == actor.block, (actor.name, first.name)


def long_sequences(schedule):
    """Plan for sequences so long that activations outweigh everything else."""
    config = dict(data_parallel_pipeline().model.config) | {"positions": 64}
    model = replace(data_parallel_pipeline().model, config=config, seq_len=64)
    return plan_with(schedule=schedule, model=model)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_full_recomputation_holds_less_than_selective_and_that_less_than_none(schedule):
    plan = long_sequences(schedule)
    memory_bytes = [
        [program.memory_bytes for program in compile_plan(candidate).programs]
        for candidate in (plan, recomputing(plan, "selective"), recomputing(plan, "full"))
    ]
    for none, selective, full in zip(*memory_bytes, strict=True):
        assert full < selective < none


def test_what_a_late_weight_gradient_reads_is_held_recomputed_or_not():
    plan = long_sequences("zb-h1")
    again = recomputing(plan, "full")
    none, full = compile_plan(plan).programs, compile_plan(again).programs
    assert full[0].memory_bytes < none[0].memory_bytes
    slots, anew = (
        {r.name: r.slots for r in ordered_plan(candidate).graph.programs[1].registers}
        for candidate in (plan, again)
    )
    assert slots["h.2.mlp.gelu"] == anew["h.2.mlp.gelu.recompute"] == 2


@pytest.mark.parametrize("name", PLANS)
def test_memory_by_kind_adds_up_to_the_arena(name):
    for program in compiled(name).programs:
        kinds = program.memory_bytes_by_kind
        assert sum(kinds.values()) == program.memory_bytes
        assert set(kinds) >= {"activation", "gradient", "optimizer", "parameter", "temporary"}


def test_more_devices_on_an_axis_change_no_program():
    plan = plan_with(mesh=Mesh(axes=(Axis(name="dp", size=128),)), global_batch=512)
    plan = replace(plan, cluster=replace(plan.cluster, devices_per_node=8, nodes=32))
    graph = compile_plan(plan)
    assert len(graph.programs) == 2
    assert graph.ranks == 256
    small = compile_plan(plan_with(global_batch=8))
    assert [len(p.actors) for p in graph.programs] == [len(p.actors) for p in small.programs]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"schedule": "2f2b"}, PlanError, "unknown schedule `2f2b`; one of gpipe"),
        ({"microbatches": 0}, PlanError, "`microbatches` is 0, expected 1 to"),
        ({"microbatches": 3}, PlanError, "16 does not divide into 3 `microbatches`"),
        ({"global_batch": 10**9, "microbatches": 10**9}, PlanError, "`global_batch` is 1000000000"),
        ({"figures": {"step_time_s": "soon"}}, PlanError, r"`figures\.step_time_s` is 'soon'"),
        ({"global_batch": 2**24, "model": LONG}, PlanError, "a step of 281474976710656 tokens"),
        ({"figures": {"mfu": -1.0}}, PlanError, r"`figures\.mfu` is -1\.0"),
        ({"chunks": ()}, PlanError, "stage 0 holds no chunk"),
        ({"variants": ()}, PlanError, "block `embedding` names variant 0"),
        (
            {"mesh": Mesh(axes=(Axis(name="dp", size=4),))},
            InfeasibleError,
            "2 stages of 4 devices need 8 devices, `local:4` has 4",
        ),
        ({"microbatches": 16}, InfeasibleError, "splits dim 0 .* not divisible"),
    ],
)
def test_a_plan_that_does_not_fit_together_is_refused_by_name(changes, error, message):
    with pytest.raises(error, match=message):
        compile_plan(plan_with(**changes))


def test_a_block_without_a_signature_is_named():
    plan = data_parallel_pipeline()
    signatures = dict(plan.variants[1].signatures)
    del signatures["mlp.fc1.matmul"]
    variants = (plan.variants[0], replace(plan.variants[1], signatures=signatures))
    with pytest.raises(PlanError, match=r"no signature for op `h\.0\.mlp\.fc1\.matmul`"):
        compile_plan(replace(plan, variants=(*variants, plan.variants[2])))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"inputs": ("B",)}, r"fc1\.matmul` has 2 inputs and 1 outputs, its signature 1 and 1"),
        ({"outputs": ()}, r"fc1\.matmul` has 2 inputs and 1 outputs, its signature 2 and 0"),
        ({"outputs": ("(B, B, B)",)}, r"fc1\.matmul`: \(B, B, B\) on a mesh of \d axes"),
    ],
)
def test_a_signature_that_does_not_fit_its_op_is_named_by_whoever_reads_it(changed, said):
    plan = data_parallel_pipeline()
    signatures = dict(plan.variants[1].signatures)
    signatures["mlp.fc1.matmul"] = replace(signatures["mlp.fc1.matmul"], **changed)
    variants = (plan.variants[0], replace(plan.variants[1], signatures=signatures))
    spoilt = replace(plan, variants=(*variants, plan.variants[2]))
    for reads in (compile_plan, lambda candidate: roles(candidate, candidate.graph)):
        with pytest.raises(PlanError, match=said):
            reads(spoilt)


def test_an_extra_signature_that_no_such_op_has_is_named():
    plan = data_parallel_pipeline()
    signatures = dict(plan.variants[1].signatures)
    update = next(name for name in signatures if name.endswith(".next"))
    signatures[update] = replace(signatures[update], expansion="sideways")
    variants = (plan.variants[0], replace(plan.variants[1], signatures=signatures))
    with pytest.raises(
        PlanError, match=r"\.next` has no extra signature `sideways`; there is none"
    ):
        compile_plan(replace(plan, variants=(*variants, plan.variants[2])))
