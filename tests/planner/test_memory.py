"""The memory formula against what the compiler lays out, and its parts."""

import pytest
from msgspec.structs import replace

from millrace.models.spec import ModelSpec
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.compile.passes import ordered_plan
from millrace.planner.memory import StageMemory, plan_memory, reserved_bytes, slack_fraction
from millrace.planner.memory.plan_deduplication import regular
from millrace.planner.plan import Chunk, Plan, recomputed
from millrace.planner.schedules import stage_of
from tests.plan_requests import plan_of
from tests.small_models import gpt_of, small

ANY = 5.0  # a gap with which a search is over soon
GPT = gpt_of(4, 64, 4, vocab=128, positions=32)


def planned(devices: int, model: ModelSpec = GPT, **pins: object) -> Plan:
    """A plan, the first that there is: whether it is a good one makes no difference to memory."""
    return plan_of(model, devices, 16, max_gap=ANY, **pins)


def assert_laid_out_as_said(plan: Plan) -> tuple[StageMemory, ...]:
    said = plan_memory(plan)
    for stage, program in zip(said, compile_plan(plan).programs, strict=True):
        assert stage.by_kind == {k: n for k, n in program.memory_bytes_by_kind.items() if n}
        assert stage.arena_bytes == program.memory_bytes
    return said


def degrees(dp: int = 1, tp: int = 1, pp: int = 1, **more: object) -> dict[str, object]:
    return {"dp": dp, "tp": tp, "pp": pp, "micro_batch": 2, **more}


SPLIT = [
    *(("gpt", 4, 2, degrees(dp=2, zero=level)) for level in range(4)),
    ("gpt", 9, 1, degrees()),
    ("gpt", 6, 4, degrees(dp=2, tp=2, sequence_parallel=True)),
    ("gpt", 4, 4, degrees(tp=4)),
    ("llama", 7, 2, degrees(dp=2, zero=3)),
    ("mixtral", 6, 2, degrees(dp=2, ep=2)),
    ("bert", 2, 4, degrees(dp=2, tp=2)),
    ("mistral", 2, 2, degrees(cp=2)),
    ("llama", 6, 4, degrees(cp=4, ring=True, micro_batch=1)),
    ("gpt", 5, 8, degrees(cp=8, ring=True, micro_batch=1, recompute="full")),
    ("resnet", None, 2, degrees(dp=2)),
    ("wide-deep", None, 2, degrees(tp=2)),
    ("face", None, 4, degrees(dp=2, tp=2)),
]
PIPELINES = [
    *(
        ("gpt", 11, 4, degrees(dp=2, pp=2, schedule=schedule, zero=1))
        for schedule in ("gpipe", "1f1b", "zb-h1")
    ),
    ("gpt", 6, 2, degrees(pp=2, schedule="gpipe", interleave=2)),
    ("gpt", 14, 4, degrees(pp=4, schedule="interleaved-1f1b", interleave=2)),
    ("gpt", 14, 2, degrees(pp=2, micro_batch=1, schedule="interleaved-1f1b", interleave=4)),
    ("gpt", 22, 8, degrees(pp=8, micro_batch=1, schedule="1f1b")),
    ("llama", 10, 4, degrees(tp=2, pp=2, interleave=2, sequence_parallel=True)),
    ("llama", 20, 4, degrees(tp=2, pp=2, schedule="zb-h1", sequence_parallel=True)),
    ("deepseek", 3, 4, degrees(dp=2, pp=2, ep=2)),
    ("bert", 9, 2, degrees(pp=2, schedule="zb-h1")),
    ("llama", 8, 8, degrees(cp=4, pp=2, ring=True, micro_batch=1, recompute="selective")),
    ("t5", 4, 4, degrees(pp=4, schedule="1f1b")),
    ("t5", 2, 2, degrees(pp=2)),
    ("resnet", None, 2, degrees(pp=2, schedule="1f1b")),
]


@pytest.mark.parametrize(("name", "layers", "devices", "pins"), SPLIT + PIPELINES)
def test_the_formula_is_what_the_compiler_lays_out(
    name: str, layers: int | None, devices: int, pins: dict[str, object]
) -> None:
    model = small(name)
    if layers is not None:
        model = replace(model, config={**model.config, "layers": layers})
    assert_laid_out_as_said(planned(devices, model, **pins))


@pytest.mark.parametrize(
    ("devices", "pins"),
    [
        (4, {"dp": 2, "cp": 2, "pp": 1, "zero": 1}),
        (4, {"dp": 4, "cp": 1, "pp": 1, "zero": 2}),
        (8, {"dp": 2, "cp": 2, "pp": 2, "zero": 1, "interleave": 2}),
    ],
)
def test_the_formula_knows_what_weights_in_16_bits_and_their_gradients_lend_each_other(
    devices: int, pins: dict[str, object]
) -> None:
    plan = plan_of(
        replace(small("llama"), precision="bf16"), f"a100-sxm-80gb:{devices}x1", 16, max_gap=ANY,
        tp=1, micro_batch=1, **pins,
    )  # fmt: skip
    said = plan_memory(plan)
    programs = compile_plan(plan).programs
    assert [stage.arena_bytes for stage in said] == [program.memory_bytes for program in programs]


def test_chunks_that_take_turns_need_less_than_each_at_its_most() -> None:
    plan = planned(
        2, replace(GPT, config={**GPT.config, "layers": 14}),
        **degrees(pp=2, micro_batch=1, schedule="interleaved-1f1b", interleave=4)
    )  # fmt: skip
    first, _ = compile_plan(plan).programs
    alone = ordered_plan(plan).graph.programs[0].registers
    turns = [index for index, register in enumerate(first.registers) if register.places]
    apart = sum(alone[index].slots * alone[index].slot_bytes for index in turns)
    together = {
        first.registers[index].offset_bytes: first.registers[index].size_bytes for index in turns
    }
    assert apart > 1.1 * sum(together.values())


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_the_formula_knows_what_is_recomputed(mode: str) -> None:
    model = replace(GPT, config={**GPT.config, "layers": 7})
    plan = planned(2, model, dp=1, tp=1, pp=2, micro_batch=2, schedule="1f1b")
    modes = {choice.block: mode for chunk in plan.chunks for choice in chunk.blocks[1::2]}
    again = recomputed(plan, modes)
    less = assert_laid_out_as_said(again)
    more = assert_laid_out_as_said(plan)
    assert less[0].activation_bytes < more[0].activation_bytes


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_formula_knows_chunks_that_lie_in_a_v(schedule: str, tp: int) -> None:
    plan = planned(2 * tp, dp=1, tp=tp, pp=2, micro_batch=2, schedule="1f1b")
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    chunks = tuple(
        Chunk(
            stage=stage_of(schedule, k, 2),
            blocks=tuple(blocks[k:] if k == 3 else blocks[k : k + 1]),
        )
        for k in range(4)
    )
    folded = replace(plan, schedule=schedule, interleave=2, chunks=chunks)
    assert_laid_out_as_said(folded)


@pytest.mark.parametrize(
    ("stages", "layers", "pins"),
    [
        (2, 10, {"dp": 1, "tp": 1}),
        (2, 10, {"dp": 2, "tp": 1, "zero": 3}),
        (4, 14, {"dp": 1, "tp": 1}),
        (4, 14, {"dp": 1, "tp": 2}),
    ],
)
def test_of_equal_chunks_in_rows_one_is_enough(
    stages: int, layers: int, pins: dict[str, object]
) -> None:
    model = replace(GPT, config={**GPT.config, "layers": layers})
    devices = stages * int(str(pins["dp"])) * int(str(pins["tp"]))
    plan = planned(devices, model, **pins, pp=stages, micro_batch=2, schedule="1f1b")
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    number = (layers + 2) // stages * stages
    chunks = [
        Chunk(stage=k % stages, blocks=tuple(blocks[k:] if k == number - 1 else blocks[k : k + 1]))
        for k in range(number)
    ]
    rows = replace(
        plan, schedule="interleaved-1f1b", interleave=number // stages, chunks=tuple(chunks)
    )
    for rare in (2, 3, 5):
        some = recomputed(rows, {chunk.blocks[0].block: "full" for chunk in chunks[1:-1:rare]})
        assert regular(some).apart
        assert_laid_out_as_said(some)


def test_the_work_depends_on_kinds_of_blocks_not_on_how_many_there_are() -> None:
    few, many = (
        regular(
            planned(
                4,
                replace(GPT, config={**GPT.config, "layers": n}),
                **degrees(pp=4, schedule="1f1b"),
            )
        )
        for n in (18, 34)
    )
    assert len(few.graph.ops) == len(many.graph.ops)


def test_a_gpu_holds_more_than_its_registers_a_local_rank_does_not() -> None:
    plan = planned(2, dp=2, tp=1, pp=1)
    assert all(stage.total_bytes == stage.arena_bytes for stage in plan_memory(plan))
    gpus = replace(plan, cluster=parse_cluster("h100-sxm-80gb:2x1", cores=2, memory_bytes=2**33))
    (stage,) = plan_memory(gpus)
    usable = (stage.total_bytes - reserved_bytes(gpus.cluster)) / (1 + slack_fraction(gpus.cluster))
    assert usable == pytest.approx(stage.arena_bytes, abs=1)
    assert sum(stage.by_kind.values()) == stage.total_bytes


def test_storage_split_over_replicas_divides_weights_and_optimizer() -> None:
    (replicated,) = plan_memory(planned(2, dp=2, tp=1, pp=1, zero=0))
    (split,) = plan_memory(planned(2, dp=2, tp=1, pp=1, zero=1))
    assert replicated.optimizer_bytes == pytest.approx(2 * replicated.parameter_bytes, rel=0.01)
    assert split.optimizer_bytes == replicated.optimizer_bytes // 2
    # Half of the weights is stored, all of them are gathered for the step.
    assert split.parameter_bytes == pytest.approx(1.5 * replicated.parameter_bytes, rel=0.01)


def test_what_is_gathered_again_is_not_held_between_the_passes() -> None:
    plan = planned(2, **degrees(tp=2, sequence_parallel=True))
    (gathered_once,), (again,) = (
        plan_memory(plan),
        plan_memory(plan, gathers_again=True),
    )
    norms, gathered_bytes = 2 * 4, 2 * 32 * 64 * 4  # of blocks; bytes of one of them, gathered
    assert gathered_once.activation_bytes - again.activation_bytes >= norms * gathered_bytes // 2
    assert again.parameter_bytes == gathered_once.parameter_bytes


def test_what_an_op_makes_may_be_counted_more_often_or_not_at_all() -> None:
    plan = planned(2, **degrees(tp=2))
    name = next(op.name for op in plan.graph.ops if op.kind == "gelu" and op.phase == "forward")
    none, once, twice = (
        plan_memory(plan, grown={name: times})[0].activation_bytes for times in (0, 1, 2)
    )
    assert once == plan_memory(plan)[0].activation_bytes
    assert twice - once == once - none > 0


def test_what_is_sent_takes_no_room_where_it_is_let_go() -> None:
    plan = planned(2, dp=1, tp=1, pp=2, micro_batch=2, schedule="interleaved-1f1b", interleave=2)
    waiting, gone = plan_memory(plan), plan_memory(plan, lets_sent_go=True)
    sent_bytes = 2 * 32 * 64 * 4  # the results of a chunk, and gradients of what it read
    for before, after in zip(waiting, gone, strict=True):
        assert before.activation_bytes - after.activation_bytes >= 2 * sent_bytes
        assert before.temporary_bytes == after.temporary_bytes


def test_earlier_stages_keep_more_microbatches() -> None:
    plan = planned(2, dp=1, tp=1, pp=2, micro_batch=2, schedule="1f1b")
    first, last = plan_memory(plan)
    assert first.activation_bytes > last.activation_bytes
