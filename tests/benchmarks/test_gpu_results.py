"""The file that comes of the lines of slices."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.results import by_device, summarised

DEVICE = "NVIDIA H200"


def line(name: str, ok: bool | None, run: str = "1-1", part: str = "", **more: Any) -> str:
    return json.dumps({"run": run, "part": part, "name": name, "ok": ok, **more}) + "\n"


def run_line(run: str = "1-1") -> str:
    return line("run", None, run, figures={"device": DEVICE})


def slice_of(run: str, ok: bool, *, ends: bool = True) -> str:
    """Two tests, one item in two steps, a model that is half done, and how the part ended."""
    error = {} if ok else {"error": "off by 3", "details": "there"}
    return "".join(
        [
            run_line(run),
            line("part.kernels", None, run, "kernels"),
            line("tests/gpu/test_a.py::test_one", True, run, "kernels", seconds=1),
            line("tests/gpu/test_a.py::test_two", ok, run, "kernels", seconds=1, **error),
            line("memory", None, run, "kernels", figures={"copies": 1}),
            line("memory", True, run, "kernels", seconds=2, figures={"copies": 1, "rate": 2}),
            line("ours.gpt2-small", None, run, "kernels", figures={"batch": 4, "losses": [1.0]}),
            line("part.kernels", ok, run, "kernels", seconds=9) if ends else "",
        ]
    )


def found_in(folder: Path) -> dict[str, Any]:
    (document,) = by_device(folder)
    return document


def test_lines_come_to_rows_parts_facts_counts_and_failures(tmp_path: Path) -> None:
    (tmp_path / "slice-2.jsonl").write_text(slice_of("2-1", False))
    document = found_in(tmp_path)
    assert document["device"] == DEVICE
    assert document["facts"] == {"memory": {"copies": 1, "rate": 2}}
    assert document["tests"] == {"tests/gpu/test_a.py": {"passed": 1, "failed": 1}}
    assert document["parts"] == [{"name": "kernels", "run": "2-1", "ok": False, "seconds": 9}]
    assert [(row["model"], row["batch"], row["part"]) for row in document["rows"]] == [
        ("gpt2-small", 4, "kernels")
    ]
    assert document["failures"][0] == {
        "part": "kernels",
        "name": "tests/gpu/test_a.py::test_two",
        "error": "off by 3",
        "details": "there",
    }


def test_the_last_run_counts_that_came_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "slice-2.jsonl"
    for text, run in (
        (slice_of("2-1", False, ends=False), "2-1"),
        (slice_of("2-2", False), "2-2"),
        (slice_of("2-3", True), "2-3"),
        (slice_of("2-4", False, ends=False), "2-3"),
    ):
        with path.open("a") as file:
            file.write(text)
        document = found_in(tmp_path)
        assert document["parts"][0]["run"] == run
        assert bool(document["failures"]) is (run != "2-3")


def test_a_part_whose_process_was_killed_is_there_without_its_end(tmp_path: Path) -> None:
    (tmp_path / "slice-2.jsonl").write_text(slice_of("2-1", True, ends=False))
    assert found_in(tmp_path)["parts"] == [{"name": "kernels", "run": "2-1"}]
    assert "  kernels: its end is not known" in summarised(tmp_path, tmp_path)


def test_failures_of_one_name_in_two_parts_are_both_told(tmp_path: Path) -> None:
    lines = [line("tests.process", False, part=part, error=part) for part in ("one", "two")]
    (tmp_path / "slice-1.jsonl").write_text(run_line() + "".join(lines))
    assert [failure["error"] for failure in found_in(tmp_path)["failures"]] == ["one", "two"]


def test_the_file_is_valid_whatever_the_figures_are(tmp_path: Path) -> None:
    losses = line("ours.gpt2-small", False, figures={"batch": 4, "losses": [float("nan")]})
    theirs = line("torch.gpt2-small", None, figures={"tried": []})
    (tmp_path / "slice-1.jsonl").write_text(run_line() + losses + theirs + "torn")
    said = summarised(tmp_path, tmp_path / "out")
    assert said[0] == "NVIDIA H200:"
    text = (tmp_path / "out" / "gpu-h200.json").read_text()
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["rows"][0]["losses"] == [None]
