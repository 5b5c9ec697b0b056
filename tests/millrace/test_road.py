"""The whole road by the command line: plan, show, simulate, run, compare, on real processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from millrace.cli import run
from millrace.commands.running import warn_of_later
from millrace.executor.data import open_dataset
from millrace.executor.reference import run_reference
from millrace.files import load_plan, write_document
from millrace.models.zoo.catalogue import build_training
from tests.millrace.plans import data_parallel_pipeline
from tests.plan_requests import plan_of
from tests.small_models import small

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.json"
    write_document(path, data_parallel_pipeline())
    return path


def test_a_plan_is_found_written_and_shown_with_the_same_figures(answer, tmp_path):
    path = tmp_path / "mlp.json"
    question = ("plan", "mlp", "--cluster", "a100-sxm-80gb:2x1", "--global-batch", "8", "--dp", "2")
    code, document = answer(*question, "-o", path)
    assert code == 0
    for name in ("objective", "bound", "gap", "search_time_s", "memory_bytes_max", "mfu"):
        assert document[name] is not None
    assert (document["dp"], document["tp"], document["pp"]) == (2, 1, 1)
    code, shown = answer("show", path)
    assert code == 0
    document.pop("search_time_s")
    for layer in document["layers"]:
        assert layer.pop("seconds") >= 0
    assert {name: shown[name] for name in document} == document
    first = path.read_bytes()
    assert answer(*question, "-o", path)[0] == 0
    assert path.read_bytes() == first
    assert answer("show", path, path) == (0, {"changes": [], "settings": []})


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--dp", "3"), 1, "3"),
        (("--memory-limit", "64KiB"), 1, "memory"),
        (("--memory-limit", "64 apples"), 2, "64 apples"),
        (("--memory-limit", "64"), 2, "64 bytes: write 64GiB"),
        (("--global-batch", str(10**9)), 2, "expected a whole number from 1 to 16,777,216"),
        (("--seed", str(2**63)), 2, "--seed"),
        (("--reserve", "5"), 2, "--reserve 5: expected a share"),
        (("--reserve", "90GiB"), 2, "--reserve is 90.0 GiB, and a device has 79.4 GiB"),
        (("--reserve", "0", "--memory-limit", "40GiB"), 2, "leave one of them out"),
        (("--micro-batch", str(10**20)), 1, "There are plans with --micro-batch 8 or without"),
        (("--seq-len", str(10**12)), 2, "1000000000000 tokens do not fit; use 1 to 16,777,216"),
        (("--schedule", "none"), 2, "1f1b"),
        (("--optimize-for", "fame"), 2, "throughput"),
        (("-o", "/nowhere/plan.json"), 2, "/nowhere"),
        (("--precision", "fp7"), 2, "fp7"),
        (("--attention", "fused"), 2, "flash or unfused"),
        (("--attention", "unfused"), 2, "no attention"),
        (("--attention", "unfused", "--cp", "2", "--ring"), 1, "--ring"),
    ],
)
def test_what_cannot_be_planned_ends_with_its_code(answer, arguments, code, said):
    outcome = answer(
        "plan", "mlp", "--cluster", "a100-sxm-80gb:2x1", "--global-batch", "8", *arguments
    )
    assert outcome[0] == code
    assert said in outcome[1]["error"]


def test_a_plan_that_does_not_fit_is_simulated_and_ends_with_1(answer, tmp_path):
    path = tmp_path / "tight.json"
    write_document(path, replace(data_parallel_pipeline(), memory_limit_bytes=2**16))
    code, document = answer("simulate", path)
    assert code == 1
    assert document["step_time_s"] > 0
    assert document["memory_bytes_max"] > 2**16


def test_a_device_by_its_usual_name_is_told_by_its_full_one(capsys):
    question = ["plan", "mlp", "--cluster", "h100:2x1", "--global-batch", "8"]
    assert run(question) == 0
    told = capsys.readouterr()
    assert "taken as" not in told.err
    assert "mlp on h100-sxm-80gb:2x1" in told.out
    assert "samples" in told.out.splitlines()[0]
    assert "ksample/s" in told.out or "Msample/s" in told.out


def test_a_simulation_says_what_the_contract_asks_for(answer, plan, tmp_path):
    trace = tmp_path / "simulated.chrome.json"
    code, document = answer("simulate", plan, "--trace", trace, "--jitter", "0.1", "--seed", "3")
    assert code == 0
    assert document["step_time_s"] > 0
    names = {"tokens_per_s", "mfu", "bubble_fraction", "exposed_communication_s"}
    names |= {"memory_bytes_max", "firings", "wall_time_s"}
    assert names <= document.keys()
    assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} == {
        "M",
        "X",
        "C",
    }
    _, slow = answer("simulate", plan, "--straggler", "1:4")
    assert slow["step_time_s"] > document["step_time_s"]


def test_a_run_is_compared_with_its_prediction_actor_by_actor(answer, plan, tmp_path):
    trace, page = tmp_path / "run.json", tmp_path / "page.html"
    code, document = answer("run", plan, "--steps", "7", "--trace", trace)
    assert code == 0
    assert document["ranks"] == 4
    assert document["backend"] == "numpy"
    assert document["data"] == "text: the Python standard library"
    assert "smallest_top_k_margin" not in document
    assert len(document["loss"]) == 7
    assert document["step_time_s"] > 0
    code, compared = answer("compare", plan, trace, "--html", page)
    assert code == 0
    assert compared["measured_step_time_s"] == pytest.approx(document["step_time_s"])
    for row in (*compared["actors"], *compared["causes"]):
        assert {"name", "predicted_s", "measured_s"} <= row.keys()
        assert row["predicted_s"] is not None
        assert row["measured_s"] is not None
    assert page.read_text().count("<svg") == 2
    assert answer("compare", plan, trace, "--tolerance", "1e9")[0] == 0
    assert answer("compare", plan, trace, "--tolerance", "0")[0] == 1
    other = tmp_path / "other.json"
    write_document(other, replace(data_parallel_pipeline(), seed=1))
    code, refused = answer("compare", other, trace)
    assert code == 2
    assert load_plan(other).digest() in refused["error"]


def test_a_state_that_resume_would_take_for_a_later_run_s_is_told(capsys, tmp_path):
    (tmp_path / "step-00000100").mkdir()
    warn_of_later(tmp_path, 100)
    assert capsys.readouterr().err == ""
    warn_of_later(tmp_path, 30)
    assert "is an earlier run's, and later than step 30" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_run_is_saved_every_so_many_steps_and_goes_on_from_what_is_whole(capsys, plan, tmp_path):
    """Steps are counted over all runs, and a loss that is no number is said."""
    checkpoints = tmp_path / "kept"

    def ran(*arguments: str) -> tuple[int, str]:
        code = run(["run", str(plan), "--checkpoint", str(checkpoints), *arguments])
        return code, capsys.readouterr().err

    assert ran("--steps", "5", "--checkpoint-every", "2")[0] == 0
    assert sorted(path.name[-1] for path in checkpoints.iterdir()) == ["2", "4", "5"]
    code, told = ran("--steps", "3", "--resume", "--lr", "1e30")
    assert code == 0
    assert "step    6 of 8 (1 of this run)   loss 5." in told
    assert re.search(r"^millrace: the loss of step [78] is nan: .*$", told, re.MULTILINE)
    assert told.count("millrace:") == 1
    code, told = ran("--resume")
    assert code == 2
    assert re.search(r"step-00000008/\S+` holds values that are not finite.* from step 5$", told)


def test_a_run_and_the_reference_say_by_how_little_an_expert_was_chosen(capsys, tmp_path):
    searched = plan_of(small("mixtral"), 2, 4, dp=2, ep=2, tp=1, pp=1)
    write_document(tmp_path / "plan.json", searched)
    assert run(["run", str(tmp_path / "plan.json"), "--steps", "2"]) == 0
    told = re.search(r"choice of experts (\S+):", capsys.readouterr().out)
    expected = run_reference(
        build_training(searched.model, searched.training, searched.batch),
        microbatches=searched.microbatches,
        steps=2,
        dataset=open_dataset(None, searched.model, 0),
    )
    assert 0 < expected.smallest_margin < 1
    assert told is not None
    assert float(told.group(1)) == pytest.approx(expected.smallest_margin, rel=0.1, abs=1e-6)


def test_a_machine_without_a_gpu_says_in_one_sentence_what_is_missing(answer, plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    code, document = answer("run", plan, "--backend", "cupy")
    assert code == 3
    assert document["error"].startswith(
        "--backend cupy needs CuPy: pip install '.[cuda]' in Millrace's checkout"
    )


def test_packages_of_the_users_own_with_our_folders_names_do_no_harm(plan, tmp_path):
    for name in ("models", "planner", "simulator", "executor"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not this one')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    environment.pop("PYTHONSAFEPATH", None)

    def printed(*program: str) -> str:
        done = subprocess.run(
            [sys.executable, *program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    lines = (
        ["models", "gpt2-small"],
        ["clusters", "a100-sxm-80gb:8x1"],
        ["plan", "mlp", "--cluster", "a100-sxm-80gb:1x1", "--global-batch", "8"],
        ["simulate", str(plan)],
    )
    code = f"from millrace.cli import run\nfor line in {lines!r}: assert run([*line]) == 0, line"
    assert "\nmlp on a100-sxm-80gb:1x1: " in printed("-c", code)
    ran = printed("-m", "millrace", "run", str(plan), "--steps", "2", "--json")
    assert len(json.loads(ran)["loss"]) == 2


def test_one_name_holds_the_four_folders():
    for name in ("models", "planner", "simulator", "executor"):
        assert (ROOT / "millrace" / name).readlink() == Path("..") / name
