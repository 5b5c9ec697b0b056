"""The planner's benchmark: a command's figures, marks beside earlier ones, and equal bytes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from benchmarks.planner.__main__ import FRAMEWORKS, asked_of, chosen
from benchmarks.planner.answers import (
    bounds_header,
    bounds_line,
    earlier_rows,
    header,
    lines,
    row,
    summary,
    unsteady,
)
from benchmarks.planner.figures import (
    FiguresRow,
    FrameworkQuestion,
    alive_bytes,
    drawn_questions,
    faster_pins,
    figures_line,
    figures_summary,
    question_rows,
)
from benchmarks.planner.questions import (
    DEFAULT,
    QUESTIONS,
    CommandAnswer,
    PlannerQuestion,
    arguments,
    ask,
)

QUESTION = PlannerQuestion("mlp", "mlp --cluster a100-sxm-80gb:2x1 --global-batch 8", 1000.0, 0.5)
PRINTED = {
    "axes": [{"name": "dp", "size": 2}], "pp": 4, "microbatches": 4, "global_batch": 8,
    "schedule": "interleaved-1f1b", "interleave": 2, "zero": 1, "recompute": None,
    "offload": "none", "fusion": "none", "mfu": 0.5, "step_time_s": 1.02, "objective": 1.0,
    "bound": 0.98, "gap": 0.6, "search_time_s": 0.25,
    "layers": [{"name": "blocks", "seconds": 0.5, "programs": 7}],
}  # fmt: skip


def answered(**changed: object) -> CommandAnswer:
    return CommandAnswer(
        code=0, text=json.dumps(PRINTED | changed), error="", plan=b"plan", wall_s=2.0, cpu_s=3.0,
        memory_bytes=2**30,
    )  # fmt: skip


def test_a_command_is_timed_and_answers_with_the_same_bytes(tmp_path: Path):
    asked = arguments(QUESTION, DEFAULT)
    answers = [ask(asked, tmp_path, seed) for seed in range(2)]
    assert unsteady(answers) == []
    assert json.loads(answers[0].plan)
    figures = row(QUESTION, DEFAULT, answers[0], {})
    assert figures.marks == ()
    assert figures.step_time_s is not None
    assert figures.wall_s > 0 < figures.cpu_s
    assert figures.memory_bytes > 2**20
    assert arguments(QUESTION, "megatron-core")[-2:] == ["--framework", "megatron-core"]


def test_what_is_over_a_bar_or_slower_than_before_is_marked():
    strict = replace(QUESTION, bar_s=1.5)
    slow = row(strict, DEFAULT, answered(), {"step_time_s": 1.0, "gap": 0.1, "wall_s": 4.0})
    assert slow.marks == ("seconds over 1.5", "gap over 50%", "slower plan, +2.0%")
    first, plan, *below = lines(slow, "abc1234")
    assert first.endswith("4.0   10.00%   1.0000  " + "; ".join(slow.marks))
    assert first.index(" | ") == header("abc1234").index(" | ")
    assert plan == (
        "    pp 4 of dp 2, 4 microbatches of 2, interleaved-1f1b of 2 chunks, zero 1, "
        "recompute mixed, mfu 50.0%"
    )
    assert below == ["    seconds: blocks 0.5"]
    fine = row(QUESTION, DEFAULT, answered(gap=0.5), {"step_time_s": 1.02 / 1.009})
    assert fine.marks == ()
    assert summary([slow, fine]) == ("2 rows: 0 no plan, 1 seconds over, 1 gap over, 1 slower plan")


def test_a_refusal_is_a_row_too():
    refused = replace(answered(), code=1, text="", error="millrace: no plan fits", plan=b"")
    figures = row(QUESTION, DEFAULT, refused, {"step_time_s": 1.0})
    assert figures.marks == ("no plan",)
    assert lines(figures, "abc1234")[1:] == ["    no plan: millrace: no plan fits"]
    assert unsteady([answered(), refused]) == ["no plan in 1 of 2: 1 millrace: no plan fits"]


def test_seconds_alone_may_differ_between_answers():
    layers = [{"name": "blocks", "seconds": 0.7, "programs": 7}]
    assert unsteady([answered(), answered(search_time_s=1.0, layers=layers)]) == []
    layers[0]["programs"] = 8
    other = replace(answered(layers=layers, gap=0.7), plan=b"another")
    assert unsteady([answered(), answered(), other]) == [
        "time 3 prints other gap, layers",
        "time 3 writes another plan",
    ]
    reordered = replace(answered(), text=json.dumps(dict(reversed(PRINTED.items()))))
    assert unsteady([answered(), reordered]) == ["time 2 prints other order of keys"]


def test_bounds_before_cuts_and_by_them_stand_beside_the_plan():
    proof = {"name": "proof", "bound_s": 0.98, "gap": 0.0204, "seconds": 3.25}
    proof |= {"block_programs": 1200, "linear_programs": 34}
    layers = [{"name": "shapes", "bound_s": 0.8, "gap": 0.25}, proof]
    line = bounds_line("mlp", DEFAULT, PRINTED | {"layers": layers})
    assert line.split()[2:] == [
        *("1.0200", "1.0000", "0.80000", "25.00%", "0.98000", "2.04%", "4.08%", "3.2"),
        *("1,200", "+", "34"),
    ]
    assert bounds_header().index("  programs") == line.index("  1,200")


def test_names_choose_questions_and_a_name_of_none_is_refused():
    assert chosen([]) == list(QUESTIONS)
    assert [question.name for question in chosen(["mixed", "depth"])] == ["mixed"]
    assert [question.name for question in chosen(["peers"])] == ["llama2-7b-38GiB", "gpt3-13b-v100"]
    with pytest.raises(typer.BadParameter, match="there is no row `mixd`"):
        chosen(["mixd"])


def test_a_framework_is_asked_alone_and_one_that_there_is_not_is_refused():
    assert asked_of("") == FRAMEWORKS
    assert asked_of("megatron-deepspeed") == ("megatron-deepspeed",)
    with pytest.raises(typer.BadParameter, match="no framework `megatron-cor`"):
        asked_of("megatron-cor")


def test_every_question_with_a_bar_of_the_gap_has_an_earlier_answer():
    _, rows = earlier_rows()
    barred = [question.name for question in QUESTIONS if question.bar_gap is not None]
    assert sorted(rows) == sorted((name, kind) for name in barred for kind in FRAMEWORKS)


BERT = PlannerQuestion(
    "bert", "bert-base --cluster a100-sxm-80gb:2x1 --global-batch 8 --seq-len 128", 9
)


def test_figures_of_a_compiled_plan_are_printed_beside_its_cost(tmp_path: Path):
    rows = question_rows(FrameworkQuestion(BERT, DEFAULT, {"schedule": "1f1b", "pp": 2}), tmp_path)
    first = rows[0]
    assert first.pins == "schedule 1f1b pp 2"
    assert first.time_error is not None
    assert abs(first.time_error) < 0.2
    assert abs(first.memory_error) < 0.2
    assert f"{first.time_error:+.1%}" in figures_line(first)
    refused = FiguresRow(
        question="bert", framework=DEFAULT, pins="free",
        compared=replace(
            first.compared, simulated_s=None, cost_bytes=12, laid_out_bytes=10, refused="too large"
        ),
    )  # fmt: skip
    assert figures_line(refused).endswith("REFUSED")
    assert figures_summary([refused]) == (
        "figures: 1 plans, time mean 0.0%, worst 0.0%, memory mean 20.0%, worst 20.0%, refused 1"
    )


def test_what_is_laid_out_stands_beside_what_is_alive(tmp_path: Path):
    sizes = alive_bytes(FrameworkQuestion(BERT, DEFAULT, {"schedule": "1f1b", "pp": 2}), tmp_path)
    assert sizes is not None
    laid_out, alive = sizes
    assert alive <= laid_out < 1.5 * alive


def test_questions_are_drawn_alike_every_time():
    drawn = list(drawn_questions(20, FRAMEWORKS))
    assert drawn == list(drawn_questions(20, FRAMEWORKS))
    assert drawn[:5] == list(drawn_questions(5, FRAMEWORKS))
    assert drawn != list(drawn_questions(20, FRAMEWORKS, seed=1))
    assert {question.framework for question in drawn} == set(FRAMEWORKS)


def test_pins_that_give_a_faster_plan_are_named():
    steps = [("free", 1.0), ("pp 4", 0.996), ("tp 8", None), ("zero 3 pp 1", 0.98)]
    assert faster_pins(steps) == ["zero 3 pp 1 -2.0%"]
