"""The benchmark of training on a GPU, on the emulated device: its figures, not its speed."""

import os
import subprocess
import sys

import pytest

from benchmarks import gpu, gpu_training
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.sources import ROOT
from tests.small_models import small


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_figures_of_a_training_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_training, "_device", EmulatedDevice)
    found = gpu_training.trained(small("gpt", "bf16"), (2**17, 4))
    assert found["micro_batch"] == 4
    assert found["memory_bytes"]["arena"] == found["planned_arena_bytes"]
    assert found["grown_bytes"] == 0
    assert len(found["losses"]) == gpu_training.STEPS
    for name in ("predicted_step_ms", "captured_step_ms", "eager_step_ms", "device_step_ms"):
        assert found[name] > 0
    tokens = 4 * 16
    assert found["captured_tokens_per_s"] == pytest.approx(
        tokens / found["captured_step_ms"] * 1e3, rel=0.01
    )


def test_items_that_are_predicted_are_items() -> None:
    assert set(gpu_training.PLANNED) < set(gpu_training.ITEMS)
    assert all(item.__doc__ for item in gpu_training.ITEMS.values())


def test_without_a_gpu_one_sentence_and_an_exit_code(tmp_path) -> None:
    if gpu.missing_gpu() is None:
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "rows.json")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("benchmarks.gpu: --backend cupy needs")
    assert len(done.stderr.splitlines()) == 1
