"""A plan drawn in text shows every rank, every run of blocks and every signature."""

import io

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
    placement_table,
    stage_blocks,
)
from millrace.figures import micro_batch
from millrace.planner.mesh import Axis, Mesh
from millrace.planner.plan import Prediction
from tests.millrace.plans import data_parallel_pipeline, drawn_plan
from tests.recomputed import recomputed


def drawn(draw, *arguments):
    console = Console(file=io.StringIO(), width=100)
    draw(*arguments, console)
    return console.file.getvalue()


def test_devices_are_rows_stages_are_columns_and_runs_of_blocks_are_ranges():
    plan = drawn_plan()
    assert stage_blocks(plan, 0) == "embedding, h.0-1"
    assert stage_blocks(plan, 1) == "h.2-3, head"
    text = drawn(draw_plan, plan)
    rows = [line for line in text.splitlines() if "rank" in line]
    assert [line.split("│")[2:4] for line in rows] == [
        [" rank 0           ", " rank 2      "],
        [" rank 1           ", " rank 3      "],
    ]


def test_blocks_that_recompute_are_told_from_those_that_do_not():
    plan = recomputed(data_parallel_pipeline(), {"h.1": "full", "h.2": "full", "h.3": "full"})
    assert stage_blocks(plan, 0) == "embedding, h.0, h.1 (recompute full)"
    assert stage_blocks(plan, 1) == "h.2-3 (recompute full), head"


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
        "gpt-demo on local:4: mesh tp 2, 2 stages, 1f1b; 4 microbatches of 4 samples"
    )


def test_samples_of_all_ranks_are_told_from_those_of_one():
    plan = data_parallel_pipeline()
    assert headline(plan).endswith(
        "mesh dp 2, 2 stages, 1f1b; 4 microbatches of 4 samples (2 a rank)"
    )
    assert micro_batch(plan) == 2


def test_what_is_in_reserve_is_said_where_there_is_one():
    plan = data_parallel_pipeline()
    device_bytes = plan.cluster.device.memory_bytes
    assert filled(plan, 2**30) == "at most 1.00 GiB on a device"
    tight = replace(plan, memory_limit_bytes=device_bytes - 2**28)
    assert filled(tight, 2**30) == (
        "at most 1.00 GiB of 2.00 GiB on a device, 256.00 MiB in reserve"
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


def test_a_plan_too_large_for_a_screen_is_drawn_as_stages_and_ranges_of_ranks():
    axes = (Axis(name="dp", size=16), Axis(name="tp", size=4))
    plan = replace(drawn_plan(), mesh=Mesh(axes=axes))
    text = drawn(lambda plan, console: console.print(placement_table(plan)), plan)
    assert [line.split("│")[1:4] for line in text.splitlines() if line.startswith("│")] == [
        [" 0     ", " 0-63   ", " embedding, h.0-1 "],
        [" 1     ", " 64-127 ", " h.2-3, head      "],
    ]


def test_memory_is_in_one_unit_so_that_stages_compare():
    by_kind = [{"activation": 3 << 29, "slack": 1 << 29}, {"activation": 1}]
    figures = Prediction(step_time_s=1.0, memory_by_kind=by_kind).figures
    text = drawn(draw_memory, replace(drawn_plan(), figures=figures))
    assert "GiB by kind" in text
    assert [line.split("│")[2:-1] for line in text.splitlines() if line.startswith("│")] == [
        ["       1.50 ", "    0.50 ", " 2.00 "],
        ["       0.00 ", "    0.00 ", " 0.00 "],
    ]
