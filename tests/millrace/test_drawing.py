"""A plan drawn in text shows its decisions, every signature of a block, and memory by kind."""

import io
from functools import partial

import msgspec
from msgspec.structs import replace
from rich.console import Console

from millrace.drawing import (
    changes,
    draw_changes,
    draw_memory,
    draw_plan,
    filled,
    headline,
)
from millrace.figures import micro_batch
from millrace.planner.plan import Prediction
from tests.millrace.plans import data_parallel_pipeline, drawn_plan


def drawn(draw, *arguments):
    console = Console(file=io.StringIO(), width=100)
    draw(*arguments, console)
    return console.file.getvalue()


def test_the_forward_signatures_of_the_repeated_block_are_shown_in_the_models_order():
    text = drawn(draw_plan, data_parallel_pipeline())
    assert "SBP of block `h.0` over (dp), forward" in text
    names = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│ ")]
    assert "attn.q.weight" in names
    assert names.index("ln1") < names.index("attn.core") < names.index("mlp.fc2.matmul")
    assert not [name for name in names if "grad" in name or name.endswith(".next")]


def test_the_proof_of_the_search_is_shown():
    assert "gap 10.0 %" in drawn(draw_plan, drawn_plan())


def test_the_headline_says_every_decision_in_one_line():
    assert headline(drawn_plan()) == (
        "gpt-demo on local:4: mesh tp 2, 2 stages, 1f1b; 4 microbatches of 4 samples a rank"
    )


def test_samples_of_all_ranks_are_told_from_those_of_one():
    plan = data_parallel_pipeline()
    assert headline(plan).endswith(
        "mesh dp 2, 2 stages, 1f1b; 4 microbatches of 2 samples a rank (4 over all)"
    )
    assert micro_batch(plan) == 2


def test_what_a_device_may_use_is_said_where_a_reserve_or_a_limit_leaves_memory_free():
    plan = data_parallel_pipeline()
    device_bytes = plan.cluster.device.memory_bytes
    assert filled(plan, 2**30) == "at most 1.00 GiB on a device"
    tight = replace(plan, memory_limit_bytes=device_bytes - 2**28)
    assert filled(tight, 2**30) == (
        "at most 1.00 GiB on a device that may use 1.75 GiB of its 2.00 GiB"
    )


def test_the_difference_of_two_plans_is_every_value_that_differs_by_its_path():
    before = drawn_plan()
    after = msgspec.structs.replace(before, microbatches=8, seed=3)
    assert changes(before, after) == [
        {"path": "microbatches", "before": 4, "after": 8},
        {"path": "seed", "before": 0, "after": 3},
    ]
    assert changes(before, before) == []
    assert "the plans are equal" in drawn(draw_changes, [])
    assert "microbatches" in drawn(draw_changes, changes(before, after))


def test_memory_is_in_one_unit_so_that_stages_compare():
    by_kind = [{"activation": 3 << 29, "slack": 1 << 29}, {"activation": 1}]
    figures = Prediction(step_time_s=1.0, memory_by_kind=by_kind).figures
    text = drawn(draw_memory, replace(drawn_plan(), figures=figures))
    assert "GiB by kind" in text
    assert [line.split("│")[2:-1] for line in text.splitlines() if line.startswith("│")] == [
        ["      1.50 ", "   0.50 ", "2.00 "],
        ["      0.00 ", "   0.00 ", "0.00 "],
    ]
    fullest = drawn(partial(draw_memory, every_stage=False), replace(drawn_plan(), figures=figures))
    assert [line[2] for line in fullest.splitlines() if line.startswith("│")] == ["0"]
