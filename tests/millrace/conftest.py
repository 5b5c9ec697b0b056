"""Command lines, run in this process."""

import json

import pytest

from millrace.cli import run


@pytest.fixture
def call(capsys, monkeypatch):
    """Return (exit code, stdout, stderr) of a command line."""

    def called(*arguments: object) -> tuple[int, str, str]:
        texts = [*map(str, arguments)]
        monkeypatch.setattr("sys.argv", ["millrace", *texts])
        code = run(texts)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return called


@pytest.fixture
def answer(call):
    """Return (exit code, the JSON document) of a command line."""

    def answered(*arguments: object) -> tuple[int, dict]:
        code, out, _ = call(*arguments, "--json")
        return code, json.loads(out)

    return answered
