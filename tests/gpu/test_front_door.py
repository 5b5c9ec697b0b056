"""`millrace run --backend cupy` and what goes with it, as a user calls them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.executor.launch import execute
from tests.executor.gpu.plans import planned
from tests.gpu.commands import CODE_BYTES, answer_of, millrace, written
from tests.gpu.conftest import EMULATED

STEPS = 10
NEAR = 1e-3


@pytest.fixture(scope="module", autouse=True)
def _gpu(gpu: None) -> None:
    if EMULATED:
        pytest.skip("the command line has no emulated device")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A plan, the trace and the answer of a captured run, of equal bits every time."""
    folder = tmp_path_factory.mktemp("run")
    plan, trace = written(planned("gpt", "fp32")[0], folder), folder / "t.json"
    asked = ("run", plan, "--backend", "cupy", "--steps", STEPS, "--deterministic")
    return plan, trace, answer_of(*asked, "--trace", trace)


def test_a_run_trains_as_cpus_do(run: tuple[Path, Path, dict[str, Any]]) -> None:
    answer = run[2]
    assert answer["backend"] == "cupy"
    assert answer["ranks"] == 1
    expected = execute(planned("gpt", "fp32")[0], steps=STEPS).losses
    np.testing.assert_allclose(answer["loss"], expected, atol=NEAR, rtol=0)
    actors = planned("gpt", "fp32")[2]
    assert answer["memory_bytes"]["arena"] == actors.programs[0].memory_bytes
    assert answer["memory_bytes"]["grown"] <= CODE_BYTES


def test_prediction_and_measurement_are_joined(run: tuple[Path, Path, dict[str, Any]]) -> None:
    answer = answer_of("compare", run[0], run[1])
    assert answer["measured_step_time_s"] > 0
    assert {row["name"] for row in answer["actors"]}
    assert all(row["measured_s"] is not None for row in answer["actors"])


def test_eager_gives_the_losses_of_captured(run: tuple[Path, Path, dict[str, Any]]) -> None:
    asked = ("run", run[0], "--backend", "cupy", "--steps", STEPS, "--deterministic")
    answer = answer_of(*asked, "--eager")
    assert answer["loss"] == run[2]["loss"]


def test_two_ranks_share_a_gpu_in_loopback(tmp_path: Path) -> None:
    plan = written(planned("gpt", "fp32", (("dp", 2),))[0], tmp_path)
    answer = answer_of("run", plan, "--backend", "cupy", "--steps", STEPS, "--loopback")
    assert answer["ranks"] == 2
    expected = execute(planned("gpt", "fp32")[0], steps=STEPS).losses
    np.testing.assert_allclose(answer["loss"], expected, atol=NEAR, rtol=0)


def test_two_ranks_need_two_gpus(tmp_path: Path) -> None:
    from millrace.executor.gpu.availability import gpus_found

    if gpus_found() > 1:
        pytest.skip("there are two")
    plan = written(planned("gpt", "fp32", (("dp", 2),))[0], tmp_path)
    done = millrace("run", plan, "--backend", "cupy", "--steps", 2)
    assert done.returncode == 1
    assert "2 GPUs, found 1" in done.stderr


def test_a_checkpoint_goes_from_gpu_to_cpu_and_back(
    run: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    plan = run[0]
    checkpoint = ("--checkpoint", tmp_path)
    losses = []
    for number, where in enumerate(("cupy", "numpy", "cupy")):
        more = ("--resume",) if number else ()
        asked = ("run", plan, "--backend", where, "--steps", 3, *checkpoint, *more)
        answer = answer_of(*asked)
        assert answer["first_step"] == 3 * number
        losses += answer["loss"]
    np.testing.assert_allclose(losses, run[2]["loss"][:9], atol=NEAR, rtol=0)
