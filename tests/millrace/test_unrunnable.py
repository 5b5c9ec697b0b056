"""Frameworks that cannot run a plan: why stands below its drawing, and in its document."""

from pathlib import Path

import msgspec
from msgspec.structs import replace

from millrace.planner.clusters import framework
from millrace.planner.plan import recomputed
from tests.millrace.plans import data_parallel_pipeline


def test_what_a_framework_cannot_run_is_drawn_and_documented(call, answer, tmp_path: Path) -> None:
    plan = recomputed(data_parallel_pipeline(), {"h.1": "full"})
    files = {}
    for name in ("any", "nanotron"):
        cluster = replace(plan.cluster, software=framework(name))
        files[name] = tmp_path / f"{name}.json"
        files[name].write_bytes(msgspec.json.encode(replace(plan, cluster=cluster)))
    assert "run this plan" not in call("show", files["any"])[1]
    assert answer("show", files["any"])[1]["unrunnable"] == []
    assert "nanotron cannot run this plan:\n  recompute: layers differ" in (
        call("show", files["nanotron"])[1].replace(" \n", "\n")
    )
    asked = ("show", files["any"], "--framework", "nanotron")
    assert "recompute: layers differ" in answer(*asked)[1]["unrunnable"]
    assert "any can run this plan" in call("show", files["nanotron"], "--framework", "any")[1]


def test_a_framework_is_asked_about_one_plan(call, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(data_parallel_pipeline()))
    for more in ([path], ["--commands", "0"]):
        code, _, err = call("show", path, *more, "--framework", "any")
        assert (code, "give PLAN alone" in err) == (2, True)
    code, _, err = call("show", path, "--framework", "torchtitn")
    assert (code, "did you mean torchtitan" in err) == (2, True)
