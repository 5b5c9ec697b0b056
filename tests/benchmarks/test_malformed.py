"""Malformed input: a slice of what the benchmark tries, and that it would notice."""

import json
import sys
from random import Random

import pytest

from benchmarks.malformed import answer, drawn, drawn_tasks, results, sound, table, written
from benchmarks.mutations import of_json
from millrace.executor.errors import ExecutorError
from millrace.planner.errors import InfeasibleError, PlanError

SLOW_TO_IMPORT = (".pt2",)  # tests of its own change every member


def test_a_slice_of_malformed_inputs_is_accepted_or_refused():
    names = [name for name in table() if name not in SLOW_TO_IMPORT]
    tasks = [(names[task % len(names)], task // len(names)) for task in range(300)]
    outcomes = list(results(tasks, seed=0, workers=2))
    assert [
        (outcome.kind, outcome.number, outcome.fault) for outcome in outcomes if outcome.fault
    ] == []
    assert len(outcomes) == len(tasks)


def test_what_is_changed_is_sound_before(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    for name, kind in table().items():
        if name in (*SLOW_TO_IMPORT, "arguments"):
            continue
        folder = tmp_path / name
        written(sound(name), folder)
        for asked in kind.ask(folder):
            assert (name, *answer(asked)) == (name, 0, "")


def test_equal_seeds_draw_equal_inputs():
    for name in table():
        if name not in SLOW_TO_IMPORT:
            first, _ = drawn(name, 1, 0)
            assert drawn(name, 1, 0)[0] == first
            assert any(drawn(name, number, 0)[0] != first for number in range(2, 5))
    assert drawn_tasks(3, "plan") == [("plan", 0), ("plan", 1), ("plan", 2)]
    assert drawn_tasks(3, "plan:7") == [("plan", 7)]
    with pytest.raises(SystemExit, match="there is no kind `plain`"):
        drawn_tasks(3, "plain")


def test_a_document_that_is_changed_twice_is_still_written():
    content = json.dumps({"a": {"b": [1, 2.5, "c", None]}, "d": True}).encode()
    assert len({of_json(content, Random(seed)) for seed in range(100)}) > 80


def raising(error: BaseException):
    def asked() -> None:
        raise error

    return asked


@pytest.mark.parametrize(
    ("error", "code", "fault"),
    [
        (PlanError("a"), 2, ""),
        (InfeasibleError("a"), 1, ""),
        (PlanError(""), -1, "PlanError: "),
        (ExecutorError("a"), -1, "ExecutorError: a"),
        (KeyError("a"), -1, "KeyError: 'a'"),
        (MemoryError(), -1, "MemoryError: "),
    ],
)
def test_errors_that_are_no_refusal_are_faults(error: BaseException, code: int, fault: str):
    assert answer(raising(error)) == (code, fault)


def test_what_a_command_says_wrongly_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    assert answer(["models", "mlp", "--json"]) == (0, "")
    assert answer(["models", "nothing"]) == (2, "")

    def saying(out: str, err: str, code: int):
        def run(arguments: list[str]) -> int:
            print(out)
            print(err, file=sys.stderr)
            return code

        monkeypatch.setattr("benchmarks.malformed.run", run)
        return answer(["models", "--json"])[1]

    assert saying("{}", "", 0) == ""
    assert saying("{", "", 0) == "no JSON document"
    assert saying('{"a": "\x9b"}', "", 0).startswith("steers a terminal")
    assert saying("{}", "refused", 2) == "no sentence: refused"
    assert saying("{}", "millrace: full", 3) == "exit code 3: millrace: full"
    assert saying("{}", "millrace: a bug in Millrace: KeyError: 'a'", 3) == "KeyError: 'a'"
    assert saying("{}", "Traceback (most recent call last)\n …", 1) == "a traceback"
