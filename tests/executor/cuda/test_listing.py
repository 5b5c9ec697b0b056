"""Calls that a rank issues to its GPU, as text, compared with what was written down."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from millrace.executor.cuda.call_listing import Unread, device_listing, listed_run, rank_listing
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import SampleSource
from millrace.executor.streams import command_buffer
from millrace.planner.compile import compile_plan
from millrace.planner.errors import PlanError
from millrace.planner.plan import Plan
from tests.executor.golden import assert_golden
from tests.executor.plans.reading import stored_plan

GOLDEN = Path(__file__).parent / "golden"


def on_one_device(plan: Plan) -> str:
    """All ranks of a plan, as streams of one device."""
    graph = compile_plan(plan)
    run = listed_run(plan)
    buffer = command_buffer(graph, range(graph.ranks))
    ranks = {rank: RankCalls(graph, rank, buffer, run) for rank in buffer.ranks}
    return device_listing(graph, buffer, ranks)


def test_one_of_two_ranks_meets_the_other_by_library_calls() -> None:
    listing = rank_listing(stored_plan("bf16-tp2"), 0)
    assert " among 0, 1: " in listing
    assert_golden(listing, GOLDEN / "bf16-tp2.txt")


def test_ranks_on_one_device_read_each_others_arenas() -> None:
    listing = on_one_device(stored_plan("bf16-pp2"))
    assert ": rank 1 arena+" in listing
    assert " among " not in listing
    assert_golden(listing, GOLDEN / "bf16-pp2.txt")


def test_products_of_float32_say_whether_they_are_made_in_tf32() -> None:
    plan = stored_plan("1f1b")
    assert " in fp32: " in rank_listing(plan, 0)
    model = msgspec.structs.replace(plan.model, precision="tf32")
    listing = rank_listing(msgspec.structs.replace(plan, model=model), 0)
    assert " in tf32: " in listing
    assert " in fp32: " not in listing


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_a_plan_does_not_have_is_refused(rank: int) -> None:
    with pytest.raises(PlanError, match=f"no rank {rank}: it has ranks 0 to 1"):
        rank_listing(stored_plan("1f1b"), rank)


def test_a_listing_reads_no_samples() -> None:
    source = SampleSource(name="tokens", values=0, shape=(), region=())
    with pytest.raises(ExecutorError, match="a listing reads no `tokens`"):
        Unread().read(source, np.arange(1))
