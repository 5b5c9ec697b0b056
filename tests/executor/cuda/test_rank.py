"""Located calls lie where they may: every operand in its region, aligned as its kernel needs it."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import pytest
from _pytest.mark import ParameterSet

from millrace.executor.cuda.binding import leaves
from millrace.executor.cuda.call_listing import listed_run
from millrace.executor.cuda.calls import (
    Attention,
    AttentionGrad,
    Bucket,
    Call,
    Clear,
    Collective,
    Convolution,
    CopyCall,
    Launch,
    Operand,
    ProductCall,
)
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.cuda.products import spans
from millrace.executor.errors import ExecutorError
from millrace.executor.streams import CommandBuffer, command_buffer
from millrace.models.graph import ITEMSIZE
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.plan import Plan
from tests.executor.cuda.call_trees import operands_of
from tests.executor.cuda.emulation.networks import reach_bytes
from tests.executor.gpu.plans import planned
from tests.small_models import NAMES

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# Registers, tables and workspaces begin on this; kernels read packs of up to 16 bytes from there.
ALIGNMENT_BYTES = 64
# These kernels begin inside a register or the workspace too, and take element by element.
BY_ELEMENT = {"add_scalars", "join_block"}
LIBRARY_ALIGNMENT_BYTES = 16  # what the library of neural networks takes for granted
PARALLEL = [
    ("gpt", "bf16", {"tp": 2, "pp": 2}),
    ("gpt", "fp32", {"dp": 2, "zero": 3}),
    ("gpt", "fp16", {"dp": 2, "offload": "optimizer"}),
    ("llama", "tf32", {"tp": 2, "sequence_parallel": True}),
    ("llama", "bf16", {"cp": 2, "ring": True}),
    ("mixtral", "bf16", {"dp": 2, "ep": 2, "zero": 1}),
    ("mixtral", "fp16", {"dp": 2, "ep": 2}),
    ("face", "bf16", {"dp": 2, "tp": 2}),
    ("resnet", "fp16", {"dp": 2}),
]

Located = tuple[Call, int]  # and the members of the meeting that it belongs to


def calls_of(
    plan: Plan, graph: ActorGraph, ranks: Sequence[int]
) -> tuple[CommandBuffer, dict[int, RankCalls]]:
    run = listed_run(plan)
    buffer = command_buffer(graph, ranks)
    return buffer, {rank: RankCalls(graph, rank, buffer, run) for rank in buffer.ranks}


def located(buffer: CommandBuffer, ranks: dict[int, RankCalls]) -> Iterator[Located]:
    """Every call of a buffer, and the number of members that meet in it."""
    for commands in buffer.steps:
        for command in commands:
            peers = [(ranks[commands[peer].rank], commands[peer]) for peer in command.meets]
            exchanges = ranks[command.rank].exchanges.get(command.actor)
            members = len(exchanges[0].members) if exchanges else 1
            for call in leaves(*ranks[command.rank].located(command, peers)):
                yield call, members
    for calls in ranks.values():
        yield calls.finish(), 1


def extents(call: Call, members: int) -> Iterator[tuple[Operand, int]]:
    """The operands of a call, each with how many bytes from its start on are touched at least."""
    match call:
        case Clear():
            yield call.target, call.size_bytes
        case CopyCall():
            yield call.source, call.size_bytes
            yield call.target, call.size_bytes
        case ProductCall():
            sizes = spans(call)
            yield from ((part.operand, sizes[name]) for name, part in call.parts.items())
        case Collective():
            size = call.elements * ITEMSIZE[call.dtype]
            yield (
                call.send,
                size * (members if call.kind in ("reduce_scatter", "all_to_all") else 1),
            )
            yield call.recv, size * (members if call.kind in ("all_gather", "all_to_all") else 1)
        case Bucket():
            for collective in call.collectives:
                yield from extents(collective, members)
        case Launch():
            for operand in operands_of(call):
                yield operand, 1
        case Attention() | AttentionGrad() | Convolution():
            for tensor, sizes in zip(call.tensors, call.sizes, strict=True):
                yield tensor.operand, reach_bytes(tensor, sizes)


def needed_alignment(call: Call) -> int:
    """Bytes that every operand of a call must lie on a multiple of."""
    match call:
        case Launch(function=function) if "<bytes" in function.lower():
            unit = re.search(r"[Bb]ytes(\d+)", function)
            assert unit is not None
            return int(unit[1])
        case Launch(function=function) if function.partition("<")[0] in BY_ELEMENT:
            return 2
        case Launch():
            return ALIGNMENT_BYTES
        case ProductCall():
            return max(ITEMSIZE[part.dtype] for part in call.parts.values())
        case Collective():
            return ITEMSIZE[call.dtype]
        case Attention() | AttentionGrad() | Convolution():
            return LIBRARY_ALIGNMENT_BYTES
        case _:
            return 1


def check(plan: Plan, graph: ActorGraph, ranks: Sequence[int]) -> list[Call]:
    """Check every call of some ranks; return them."""
    buffer, calls = calls_of(plan, graph, ranks)
    for rank_calls in calls.values():
        for register in rank_calls.program.registers:
            for slot in range(register.slots):
                assert register.start_bytes(slot) % ALIGNMENT_BYTES == 0, register.name
    checked = []
    for call, members in located(buffer, calls):
        for operand, size_bytes in extents(call, members):
            room = calls[operand.number].sizes[operand.role]
            assert 0 <= operand.offset_bytes <= operand.offset_bytes + size_bytes <= room, call
            assert operand.offset_bytes % needed_alignment(call) == 0, (operand, call)
        checked.append(call)
    return checked


@cache
def alone(model: str, precision: str) -> list[Call]:
    """The calls of a model on one device, checked."""
    plan, _, graph = planned(model, precision)
    return check(plan, graph, (0,))


def models_in_precisions() -> Iterator[ParameterSet]:
    """Every model in 32 bits and in 16, of both in one of two precisions in turn."""
    for (number, model), precision in product(enumerate(NAMES), PRECISIONS):
        usual = precision in ("tf32", "bf16") if number % 2 else precision in ("fp32", "fp16")
        yield pytest.param(model, precision, marks=() if usual else pytest.mark.exhaustive)


@pytest.mark.parametrize(("model", "precision"), list(models_in_precisions()))
def test_operands_of_a_model_lie_inside_their_regions(model: str, precision: str) -> None:
    arithmetics = {
        call.arithmetic
        for call in alone(model, precision)
        if isinstance(call, ProductCall) and call.a.dtype == "float32"
    }
    assert arithmetics <= {"tf32" if precision == "tf32" else "fp32"}


@pytest.mark.parametrize(
    ("model", "precision", "pins"), PARALLEL, ids=lambda x: x if isinstance(x, str) else str(x)
)
def test_operands_of_ranks_lie_inside_their_regions(
    model: str, precision: str, pins: dict[str, object]
) -> None:
    plan, _, graph = planned(model, precision, tuple(pins.items()))
    assert graph.ranks > 1
    by_library = [
        call for program in graph.programs for call in check(plan, graph, program.ranks[:1])
    ]
    assert any(isinstance(call, Collective | Bucket) for call in by_library)
    assert not any(
        isinstance(call, Launch) and "join_block" in call.function for call in by_library
    )
    together = check(plan, graph, range(graph.ranks))
    assert not any(isinstance(call, Collective | Bucket) for call in together)


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_products_in_8_bits_are_refused(precision: str) -> None:
    plan, _, graph = planned("gpt", precision)
    with pytest.raises(
        ExecutorError, match="computes nothing in float8: plan with --precision bf16"
    ):
        calls_of(plan, graph, (0,))


def test_products_of_float32_operands_are_made_in_tf32_where_a_plan_says_so() -> None:
    for model in ("gpt", "resnet"):
        products = [call for call in alone(model, "tf32") if isinstance(call, ProductCall)]
        assert products
        assert {call.arithmetic for call in products} == {"tf32"}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_rank_that_scales_the_loss_and_updates_nothing_is_refused(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _, graph = planned("gpt", precision, (("pp", 2),))
    monkeypatch.setattr(
        "millrace.executor.cuda.cuda_rank.UPDATES", ()
    )  # as if its variables were elsewhere
    calls_of(plan, graph, [0])  # scales nothing
    if precision == "bf16":
        calls_of(plan, graph, [1])
        return
    with pytest.raises(ExecutorError, match=r"rank 1, actor `head\.loss.*updates no variables"):
        calls_of(plan, graph, [1])
