"""The forty questions are there with their judgements, and answers are told from bounds."""

import shlex

import pytest

from benchmarks.questions import Answer, AskedQuestion, questions, short, verdict


def test_forty_questions_are_asked_and_judged():
    asked = questions()
    assert len(asked) == 40
    assert len({question.ask for question in asked}) == 40
    assert all(question.judged for question in asked)
    assert {shlex.split(question.ask)[0] for question in asked} == {"plan", "scale", "recommend"}
    assert questions(("deepseek-v3", "gb200")) != questions(("deepseek-v3",))


@pytest.mark.parametrize(
    ("mfu", "words"), [(0.5, "as judged"), (0.7, "judge again: mfu 0.7 beyond 0.4 to 0.6")]
)
def test_an_answer_beyond_its_bounds_is_told(mfu: float, words: str):
    question = AskedQuestion(ask="plan", judged="usual", within={"mfu": (0.4, 0.6)})
    answer = Answer(ask="plan", code=0, text="", seconds=1.0, fields={"mfu": mfu})
    assert verdict(question, answer) == words


def test_an_answer_is_told_in_a_line():
    document = {"dp": 8, "tp": 1, "zero": 1, "step_time_s": 2.5, "mfu": 0.51, "mixed": {}}
    assert short(document) == "dp 8, zero 1: 2.5 s, mfu 51.0%"
    assert (
        short({"rows": [document | {"devices": 8}]}) == "8 devices, dp 8, zero 1: 2.5 s, mfu 51.0%"
    )
    assert short({"devices": 16, "reason": "no plan fits"}) == "16 devices: no plan fits"
