"""A plan drawn in text shows every rank, every run of blocks and every signature."""

import io

import msgspec
from rich.console import Console

from millrace.drawing import changes, draw_changes, draw_plan, headline, stage_blocks
from tests.millrace.plans import drawn_plan


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


def test_the_signatures_of_the_repeated_block_and_the_proof_are_shown():
    text = drawn(draw_plan, drawn_plan())
    assert "SBP of block `h` over (tp)" in text
    assert "B S(1)" in text
    assert "gap 10.0 %" in text


def test_the_headline_says_every_decision_in_one_line():
    assert headline(drawn_plan()) == (
        "gpt-demo on local:4: mesh tp 2, 2 stages, 1f1b; 4 microbatches of 4 samples"
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
