"""The planner's benchmark: a command's figures, marks beside earlier ones, and equal bytes."""

import json
from dataclasses import replace
from pathlib import Path

from benchmarks.planner.__main__ import FRAMEWORKS
from benchmarks.planner.answers import (
    earlier_rows,
    row,
    unsteady,
)
from benchmarks.planner.figures import (
    FrameworkQuestion,
    alive_bytes,
    drawn_questions,
    question_rows,
)
from benchmarks.planner.questions import (
    QUESTIONS,
    WHOLE_SPACE,
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
    asked = arguments(QUESTION, WHOLE_SPACE)
    answers = [ask(asked, tmp_path, seed) for seed in range(2)]
    assert unsteady(answers) == []
    assert json.loads(answers[0].plan)
    figures = row(QUESTION, WHOLE_SPACE, answers[0], {})
    assert figures.marks == ()
    assert figures.step_time_s is not None
    assert figures.wall_s > 0 < figures.cpu_s
    assert figures.memory_bytes > 2**20
    assert arguments(QUESTION, "megatron-core")[-2:] == ["--framework", "megatron-core"]


def test_what_is_over_a_bar_or_slower_than_before_is_marked():
    strict = replace(QUESTION, bar_s=1.5)
    slow = row(strict, WHOLE_SPACE, answered(), {"step_time_s": 1.0, "gap": 0.1, "wall_s": 4.0})
    assert slow.marks == ("seconds over 1.5", "gap over 50%", "slower plan, +2.0%")
    fine = row(QUESTION, WHOLE_SPACE, answered(gap=0.5), {"step_time_s": 1.02 / 1.009})
    assert fine.marks == ()
    refused = replace(answered(), code=1, text="", error="millrace: no plan fits", plan=b"")
    assert row(QUESTION, WHOLE_SPACE, refused, {"step_time_s": 1.0}).marks == ("no plan",)
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


def test_every_question_with_a_bar_of_the_gap_has_an_earlier_answer():
    _, rows = earlier_rows()
    barred = [question.name for question in QUESTIONS if question.bar_gap is not None]
    assert sorted(rows) == sorted((name, kind) for name in barred for kind in FRAMEWORKS)


BERT = PlannerQuestion(
    "bert", "bert-base --cluster a100-sxm-80gb:2x1 --global-batch 8 --seq-len 128", 9
)


def test_figures_of_a_compiled_plan_are_printed_beside_its_cost(tmp_path: Path):
    rows = question_rows(
        FrameworkQuestion(BERT, WHOLE_SPACE, {"schedule": "1f1b", "pp": 2}), tmp_path
    )
    first = rows[0]
    assert first.pins == "schedule 1f1b pp 2"
    assert first.time_error is not None
    assert abs(first.time_error) < 0.2
    assert abs(first.memory_error) < 0.2


def test_what_is_laid_out_stands_beside_what_is_alive(tmp_path: Path):
    sizes = alive_bytes(
        FrameworkQuestion(BERT, WHOLE_SPACE, {"schedule": "1f1b", "pp": 2}), tmp_path
    )
    assert sizes is not None
    laid_out, alive = sizes
    assert alive <= laid_out < 1.5 * alive


def test_questions_are_drawn_alike_every_time():
    drawn = list(drawn_questions(20, FRAMEWORKS))
    assert drawn == list(drawn_questions(20, FRAMEWORKS))
    assert drawn[:5] == list(drawn_questions(5, FRAMEWORKS))
    assert drawn != list(drawn_questions(20, FRAMEWORKS, seed=1))
    assert {question.framework for question in drawn} == set(FRAMEWORKS)
