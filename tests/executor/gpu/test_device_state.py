"""Load and clocks of a GPU, as a stand-in of the driver's tool says them."""

from pathlib import Path
from time import monotonic, sleep

import pytest

from millrace.executor.gpu.probing.device_state import ClockWatch, busy_share
from millrace.executor.gpu.probing.gpu_timing import GpuTimings, measured_device
from millrace.executor.probes.machine_load import MachineLoad

PLACE = "0000:1B:00.0"


@pytest.fixture
def tool(tmp_path: Path) -> str:
    """Stand-in that writes what it was asked, and answers as the driver's tool does."""
    path = tmp_path / "tool"
    path.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        'case "$2" in\n'
        '*utilization*) echo "37";;\n'
        '*) echo "990, 1980"; echo "1485, 1980"; echo "1485, 1980"; exec sleep 60;;\n'
        "esac\n"
    )
    path.chmod(0o755)
    return str(path)


def test_the_share_that_others_take_is_asked_of_this_gpu(tool: str, tmp_path: Path) -> None:
    assert busy_share(PLACE, tool) == 0.37
    assert f"--id={PLACE} --query-gpu=utilization.gpu" in (tmp_path / "asked").read_text()


def test_clocks_are_read_until_the_context_ends(tool: str, tmp_path: Path) -> None:
    with ClockWatch(PLACE, tool) as clocks:
        assert clocks.share is None
        end_s = monotonic() + 10
        while not (tmp_path / "asked").exists() and monotonic() < end_s:
            sleep(0.01)
        sleep(0.1)
    assert clocks.share == 0.75
    assert "clocks.sm,clocks.max.sm" in (tmp_path / "asked").read_text()


def test_where_the_tool_is_missing_nothing_is_known(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert busy_share(PLACE, missing) is None
    with ClockWatch(PLACE, missing) as clocks:
        pass
    assert clocks.share is None


def test_an_answer_that_is_no_number_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_text("#!/bin/sh\necho '[N/A], [N/A]'\n")
    path.chmod(0o755)
    assert busy_share(PLACE, str(path)) is None


def test_of_several_gpus_the_busiest_and_the_slowest_count() -> None:
    def timings(others: float, frequency: float) -> GpuTimings:
        return GpuTimings(
            name="GPU",
            memory_bytes=2**30,
            multiprocessors=8,
            launch_ns=1,
            memory_bandwidth_bytes_per_s=1.0,
            kernels={"matmul@bf16": [(1000, 10)]},
            collectives={},
            rounds=3,
            spreads={"matmul@bf16": [0.02, 0.04]},
            load=MachineLoad(others=others, steal=0.0),
            frequency=frequency,
        )

    quality = measured_device([timings(0.0, 1.0), timings(0.4, 0.7)], "here").measured
    assert quality is not None
    assert (quality.rounds, quality.others, quality.frequency) == (3, 0.4, 0.7)
    assert (quality.spread, quality.spread_max_of) == (0.03, "matmul@bf16")
    assert quality.is_doubtful
