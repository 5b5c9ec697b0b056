"""The file that `benchmarks/gpu.sh` writes, from what its parts leave."""

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu_models import TRAINED
from benchmarks.gpu_results import joined, main
from benchmarks.gpu_rows import row

REPORT = """<testsuites><testsuite>
<testcase classname="tests.gpu.test_kernels" name="test_one" time="1.5"/>
<testcase classname="tests.gpu.test_kernels" name="test_two" time="0.5">{two}</testcase>
</testsuite></testsuites>"""
SKIPPED = '<skipped message="no NCCL">here</skipped>'
FAILED = '<failure message="off by 3">there</failure>'


def left(work: Path, two: str = "", code: int = 0) -> None:
    """What the parts `facts`, `kernels` and `rows` leave."""
    fact = {"name": "memory", "ok": True, "seconds": 1, "figures": {}}
    facts = {"device": "NVIDIA H200", "versions": {"cupy": "14"}, "rows": [fact]}
    (work / "facts.json").write_text(json.dumps(facts))
    (work / "kernels.xml").write_text(REPORT.format(two=two))
    (work / "kernels.log").write_text("said")
    (work / "rows.json").write_text(json.dumps({"rows": [row(TRAINED[0], {}, {})]}))
    (work / "parts").write_text(f"facts 0 10\nkernels {code} 20\nrows 0 30\n")


def checks(found: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["ok"] for one in found["checks"]}


def test_rows_are_models_and_everything_else_are_checks(tmp_path: Path) -> None:
    left(tmp_path, SKIPPED)
    results = tmp_path / "gpu.json"
    assert main(tmp_path, results, ["facts", "kernels", "rows"]) == 0
    found = json.loads(results.read_text())
    assert found["device"] == "NVIDIA H200"
    assert [one["model"] for one in found["rows"]] == ["gpt2-small"]
    assert checks(found) == {
        "memory": True,
        "tests.gpu.test_kernels.test_one": True,
        "tests.gpu.test_kernels.test_two": None,
        "part.facts": True,
        "part.kernels": True,
        "part.rows": True,
    }


def test_a_part_that_fails_decides(tmp_path: Path) -> None:
    left(tmp_path, FAILED, code=1)
    results = tmp_path / "gpu.json"
    assert main(tmp_path, results, ["facts", "kernels", "rows"]) == 1
    found = json.loads(results.read_text())
    part = next(one for one in found["checks"] if one["name"] == "part.kernels")
    assert part["error"] == "exit code 1"
    assert part["details"] == "said"
    test = next(one for one in found["checks"] if one["name"].endswith("two"))
    assert (test["ok"], test["error"], test["details"]) == (False, "off by 3", "there")


def test_what_other_parts_left_stays(tmp_path: Path) -> None:
    left(tmp_path)
    before = joined(tmp_path, {}, ["facts", "kernels", "rows"])
    again = tmp_path / "again"
    again.mkdir()
    left(again, FAILED, code=1)
    (again / "rows.json").unlink()
    (again / "parts").write_text("kernels 1 20\n")
    found = joined(again, before, ["kernels"])
    assert found["device"] == "NVIDIA H200"
    assert [one["model"] for one in found["rows"]] == ["gpt2-small"]
    assert not checks(found)["part.kernels"]
    assert checks(found)["part.facts"]
    assert len(found["checks"]) == len(before["checks"])


def test_rows_that_were_not_reached_are_not_those_of_before(tmp_path: Path) -> None:
    left(tmp_path)
    before = joined(tmp_path, {}, ["rows"])
    (tmp_path / "rows.json").unlink()
    assert joined(tmp_path, before, ["rows"])["rows"] == []
