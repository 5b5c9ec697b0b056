"""Tables of a plan have a line for each stage, however many devices and chunks there are."""

import io

from msgspec.structs import replace
from rich.console import Console

from millrace.planner.mesh import Axis, Mesh
from millrace.planner.parallel_degrees import plan_roles
from millrace.planner.plan import Chunk, Plan, Prediction, recomputed
from millrace.tables.alternatives import alternatives_table, difference
from millrace.tables.ranges import rank_ranges, stage_blocks, stage_layers
from millrace.tables.stages import axis_table, rank_table, stage_table
from tests.millrace.plans import data_parallel_pipeline, drawn_plan


def rows(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def large(plan: Plan) -> Plan:
    return replace(plan, mesh=Mesh(axes=(Axis(name="dp", size=512), Axis(name="tp", size=4))))


def test_a_stage_is_a_line_at_any_number_of_devices():
    plan = drawn_plan()
    assert rows(stage_table(plan)) == [
        ["0", "0-1", "embedding, h.0-1"],
        ["1", "2-3", "h.2-3, head"],
    ]
    assert [row[1] for row in rows(stage_table(large(plan)))] == ["0-2047", "2048-4095"]


def test_memory_and_busy_time_stand_beside_their_stage():
    by_kind = [{"activation": 1 << 30}, {"activation": 2 << 30}]
    figures = Prediction(step_time_s=1.0, memory_by_kind=by_kind, busy_by_stage=[0.5, 0.25]).figures
    cells = [row[3:] for row in rows(stage_table(replace(drawn_plan(), figures=figures)))]
    assert cells == [["1.00 GiB 50 %", "50.0 %"], ["2.00 GiB 100 %", "25.0 %"]]


def test_blocks_that_recompute_are_counted_in_the_table_and_named_in_pictures():
    plan = recomputed(data_parallel_pipeline(), {"h.1": "full", "h.2": "full", "h.3": "full"})
    assert [row[3] for row in rows(stage_table(plan))] == ["full 1 of 2", "full 2 of 2"]
    assert stage_blocks(plan, 0) == "embedding, h.0, h.1 (recompute full)"
    assert stage_blocks(plan, 1) == "h.2-3 (recompute full), head"


def test_many_chunks_are_counted():
    plan = drawn_plan()
    choices = plan.chunks[0].blocks

    def on_one_stage(*sizes: int) -> Plan:
        named = [replace(choices[1], block=f"h.{number}") for number in range(sum(sizes))]
        chunks = [
            Chunk(stage=0, blocks=tuple(named[sum(sizes[:place]) :][:size]))
            for place, size in enumerate(sizes)
        ]
        return replace(plan, chunks=tuple(chunks))

    assert stage_layers(on_one_stage(2, 1), 0) == "h.0-1 | h.2"
    assert stage_layers(on_one_stage(*[2] * 10), 0) == "10 chunks of 2, h.0 … h.19"
    assert stage_layers(on_one_stage(*[3, 1] * 5), 0) == "10 chunks of 1-3, h.0 … h.19"


def test_ranks_are_ranges_with_a_stride_where_they_are_apart():
    assert rank_ranges([*range(8), *range(16, 24)]) == "0-7, 16-23"
    assert rank_ranges(range(3, 64, 4)) == "3-63 by 4"
    assert rank_ranges([0, 5]) == "0, 5"
    assert rank_ranges([0, 9, 10, 30, 31, 50, 70, 71]) == "0, 9-10, 30-31, 50, and 1 more"


def test_an_alternative_is_named_by_the_roles_in_which_it_differs():
    plan = data_parallel_pipeline()
    values = plan_roles(plan, plan.graph)
    alike = {name: options[0] for name, options in values.items()} | {"plan": "a", "mixed": {}}
    other = alike | {"dp": 1, "tp": 2, "schedule": "gpipe", "sequence_parallel": True}
    assert difference(values, other) == "dp 1, tp 2, sequence-parallel on, gpipe"
    assert difference(values, other | {"pp": 1}).endswith("pp 1, sequence-parallel on")
    mixed = alike | {"zero": None, "mixed": {"zero": [1, 3]}}
    assert difference(values, mixed) == "zero 1/3"
    rows_by_plan = [
        mixed | {"loss": 0.123, "by": "planner", "cause": "sends", "reason": "loses"},
        {"plan": "on 4 devices", "reason": "dearer"},
    ]
    evidence = replace(drawn_plan().evidence, alternatives=tuple(rows_by_plan))
    assert rows(alternatives_table(replace(plan, evidence=evidence))) == [
        ["zero 1/3", "12.3 %", "planner", "sends"],
        ["on 4 devices", "", "", "dearer"],
    ]


def test_an_axis_is_a_line_with_what_it_is_for():
    assert rows(axis_table(data_parallel_pipeline())) == [["dp", "2", "dp", "0-1"]]


def test_all_ranks_are_listed_with_their_place():
    assert rows(rank_table(drawn_plan())) == [
        ["0", "0", "0", "0"],
        ["1", "0", "0", "1"],
        ["2", "0", "1", "0"],
        ["3", "0", "1", "1"],
    ]
