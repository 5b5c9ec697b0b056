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


@pytest.mark.parametrize(
    ("line", "exit_code", "said"), WRONG, ids=[line.replace("{nul}", "NUL") for line, _, _ in WRONG]
)
def test_a_wrong_line_ends_with_one_sentence(
    call, capsys, monkeypatch, folder, line, exit_code, said
):
    monkeypatch.chdir(folder)
    capsys.readouterr()
    code, out, err = call(*words_of(line))
    *before, sentence = err.splitlines()
    assert (code, out) == (exit_code, "")
    assert sentence.startswith("millrace: ")
    assert len(sentence) < 1000
    assert all(words in sentence for words in said), sentence
    assert all(told.endswith("…") for told in before)  # what says that work goes on
    code, out, err = call(*words_of(line), "--json")
    document = json.loads(out)
    assert (code, document["exit_code"]) == (exit_code, exit_code)
    assert all(words in visible(document["error"]) for words in said)


def test_there_are_enough_lines_and_none_twice():
    assert len({line for line, _, _ in WRONG}) == len(WRONG) >= 80
