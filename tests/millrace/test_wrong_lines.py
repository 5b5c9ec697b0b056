"""Wrong command lines: each ends with one sentence that helps, and the contract's code."""

import json

import pytest

from millrace.stdio import visible
from tests.millrace.wrong_lines import WRONG, words_of, write_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("wrong")
    write_files(path)
    return path


def faults(call, line, exit_code, said):
    """Names of what is wrong with the answers to a line, in text and in JSON."""
    code, out, err = call(*words_of(line))
    *before, sentence = err.splitlines() or [""]
    json_code, json_out, _ = call(*words_of(line), "--json")
    document = json.loads(json_out) if json_out.startswith("{") else {"error": "", "exit_code": 0}
    sound = {
        "exit codes": [code, json_code, document["exit_code"]] == [exit_code] * 3,
        "stdout": out == "",
        "sentence": sentence.startswith("millrace: ") and len(sentence) < 1000,
        "words": all(words in sentence for words in said),
        "lines before": all(told.endswith("…") for told in before),  # they say that work goes on
        "words in JSON": all(words in visible(document["error"]) for words in said),
    }
    return [name for name, holds in sound.items() if not holds]


def test_a_wrong_line_ends_with_one_sentence(call, capsys, monkeypatch, folder):
    monkeypatch.chdir(folder)
    capsys.readouterr()
    faulty = {line: faults(call, line, exit_code, said) for line, exit_code, said in WRONG}
    assert {line: names for line, names in faulty.items() if names} == {}


def test_there_are_enough_lines_and_none_twice():
    assert len({line for line, _, _ in WRONG}) == len(WRONG) >= 80
