"""Resources of a multiprocessor that the kernels of the benchmark's models take."""

from math import prod

import pytest

from benchmarks.gpu import kernels as gpu_kernels
from benchmarks.gpu.kernel_resources import REGISTERS_OF_THREAD_MAX
from benchmarks.gpu.kernels import kernel_rows, launched
from benchmarks.gpu.trained_models import benchmark_model, launches_of, planned
from millrace.executor.errors import ExecutorError
from tests.extras import optional

MODELS = ("gpt2-small", "llama-1b", "moe-1b", "resnet-50")  # most kernels serve several of them


def test_no_kernel_of_the_models_spills() -> None:
    optional("cuda.core", extra="test")
    counts = launched(MODELS, batch=4, precision="bf16")
    rows = kernel_rows(counts, ["sm_90"])
    assert {row.function for row in rows} == {key[1] for of in counts.values() for key in of}
    assert set().union(*(row.launches for row in rows)) == set(MODELS)
    for row in rows:
        assert row.spilled_bytes == 0, row
        assert row.registers <= REGISTERS_OF_THREAD_MAX, row
        assert row.blocks >= 1, row


def test_every_launch_of_a_step_is_counted() -> None:
    counts = launched(["gpt-demo"], batch=2, precision="bf16")["gpt-demo"]
    launches = list(launches_of(planned(benchmark_model("gpt-demo"), 2)))
    assert counts.total() == len(launches)
    for launch in launches:
        key = launch.source, launch.function, prod(launch.block), launch.shared_bytes
        assert counts[key] > 0


def test_what_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_kernels.main(["no-such-model"]) == 2
    assert "there is no model" in capsys.readouterr().err
    with pytest.raises(ExecutorError):
        kernel_rows(launched(["gpt-demo"], batch=2, precision="bf16"), ["sm_1"])
