"""The GPU of the tests in this folder; without one they are skipped, each saying what is missing.

`MILLRACE_GPU_TESTS=emulated` runs those that need no library of NVIDIA's on the emulated device, to
check the tests themselves.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millrace.executor.gpu.availability import require_compiler, require_gpu
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.sources import ROOT

EMULATED = os.environ.get("MILLRACE_GPU_TESTS") == "emulated"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in this folder; what libraries warn of on a device fails nothing here."""
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip where there is no GPU."""
    try:
        require_gpu(1)
        require_compiler()
    except (RuntimeError, ValueError) as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The first GPU, all of whose memory is given back when the module's tests are done."""
    if EMULATED:
        yield EmulatedDevice()
        return
    request.getfixturevalue("gpu")
    from millrace.executor.gpu.cupy_device import CupyDevice
    from millrace.executor.gpu.gemm.cublaslt import ProductLibrary

    cupy_device = CupyDevice(0, ProductLibrary)
    yield cupy_device
    cupy_device.close()


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> None:
    """Every function that the small models and the examples launch, in CuPy's cache on disk.

    One process per core compiles; a device then finds what it asks for one by one.
    """
    if EMULATED:
        return
    request.getfixturevalue("gpu")
    from tests.executor.cuda.launched import launched_functions

    names = [
        f"{source}:{name}" for source, all_of in launched_functions().items() for name in all_of
    ]
    workers = min(12, os.cpu_count() or 1)
    parts = [names[offset::workers] for offset in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(_compile_apart, parts))
    for process in done:
        assert process.returncode == 0, process.stderr[-4000:]


def _compile_apart(names: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu.compiling"],
        input="\n".join(names),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=150,
    )
