"""`compare --update-profile`, and what it refuses."""

from pathlib import Path

import msgspec
import pytest

from millrace.executor.measure import keep_profile, profile_in_keep
from millrace.files import write_document
from millrace.planner.clusters import device, local_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from millrace.simulator.simulate import simulate
from tests.plan_requests import plan_of
from tests.small_models import small


def files(folder: Path, plan: Plan) -> list[str]:
    run = simulate(compile_plan(plan), plan.cluster, steps=8, plan_digest=plan.digest())
    write_document(folder / "plan.json", plan)
    trace = msgspec.structs.replace(run.trace, source="measured")
    write_document(folder / "trace.json", trace)
    return ["compare", str(folder / "plan.json"), str(folder / "trace.json")]


def test_the_next_plan_reads_what_was_folded_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Spans of a simulation hold what a driver adds to a firing, those of a run do not.
    driven = msgspec.structs.replace(device("cpu-core"), launch_ns=0)
    plan = plan_of(small("gpt"), local_cluster(2, 2, 2**33, driven), 8)
    keep_profile(2, plan.cluster.device)
    code, document = answer(*files(tmp_path, plan), "--update-profile")
    assert code == 0
    assert abs(document["updated"]["error"]) < 0.1
    learned = profile_in_keep(2)
    assert learned is not None
    assert "matmul" in learned.kernels
    assert plan.cluster.device.kernels == {}


def test_a_profile_can_be_written_for_any_cluster_and_kept_for_this_machine_alone(
    tmp_path: Path, call
) -> None:
    plan = plan_of(small("gpt"), "a100-sxm-80gb:2x1", 8)
    command = files(tmp_path, plan)
    code, _, error = call(*command, "--update-profile")
    assert code == 2
    assert "--write-profile" in error
    assert call(*command, "--write-profile", tmp_path / "profile.json")[0] == 0
    assert "matmul" in (tmp_path / "profile.json").read_text()


def test_predictions_and_runs_of_other_machines_are_not_folded_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan = plan_of(small("gpt"), 2, 8)
    command = files(tmp_path, plan)
    keep_profile(2, msgspec.structs.replace(plan.cluster.device, name="another"))
    code, _, error = call(*command, "--update-profile")
    assert (code, "this machine is `another`" in error) == (2, True)
    run = simulate(compile_plan(plan), plan.cluster, plan_digest=plan.digest())
    write_document(tmp_path / "trace.json", run.trace)
    code, _, error = call(*command, "--update-profile")
    assert (code, "simulated, not measured" in error) == (2, True)
