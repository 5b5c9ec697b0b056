"""Lines, and items in processes of their own: what is left of those that fail, die or are late."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu import lines as gpu_lines
from benchmarks.gpu.lines import append, folded, read
from benchmarks.gpu.processes import OPTIONAL, run_apart, run_here

FACTS = "benchmarks.gpu.slices.facts"


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of lines, beside which modules of a test lie that processes can import."""
    path = tmp_path / "lines.jsonl"
    monkeypatch.setenv(gpu_lines.FILE, str(path))
    monkeypatch.setenv(gpu_lines.LOG, str(tmp_path / "lines.log"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return path


def test_an_item_that_fails_is_a_line_with_its_error(lines: Path) -> None:
    outcome = run_apart("no such item", 60, FACTS)
    assert (outcome["ok"], outcome["error"]) == (False, "it ended: exit code 1")
    (line,) = read(lines)
    assert "KeyError: 'no such item'" in line["details"]
    run_here("divided", lambda: {"figure": 1 / 0})
    assert folded(read(lines))["divided"]["error"] == "ZeroDivisionError: division by zero"


def test_only_libraries_that_we_can_do_without_may_lack(lines: Path) -> None:
    def lacks(name: str) -> dict[str, object]:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    for name in ("torch", "cupy"):
        run_here(name, lambda name=name: lacks(name))
        assert folded(read(lines))[name]["ok"] is (None if name in OPTIONAL else False)


BEGUN = """
from benchmarks.gpu.processes import hand_over
hand_over("item", {"tried": [1]})
print("so far", flush=True)
"""


def test_an_item_that_dies_leaves_what_it_had_and_the_reason(lines: Path) -> None:
    (lines.parent / "planted.py").write_text(f"{BEGUN}\nimport os\nos.abort()")
    outcome = run_apart("item", 120, "planted")
    assert outcome["figures"] == {"tried": [1]}
    assert (outcome["ok"], outcome["error"], outcome["late"]) == (False, "it ended: SIGABRT", False)
    assert "so far" in read(lines)[-1]["details"]


def test_a_line_behind_a_torn_one_is_whole(lines: Path) -> None:
    append("one", True)
    with lines.open("a") as torn:
        torn.write('{"name": "two", "ok": tr')
    append("three", True, figures={"path": Path("x"), "loss": float("nan")})
    assert [line["name"] for line in read(lines)] == ["one", "three"]
    assert len(lines.read_text().splitlines()) == 3
    assert json.loads(lines.read_text().splitlines()[-1])["figures"]["path"] == "x"
