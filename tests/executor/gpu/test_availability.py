import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import millrace.executor
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.availability import (
    gpus_found,
    require_compiler,
    require_gpu,
    require_nccl,
)
from millrace.planner.errors import InfeasibleError

ROOT = Path(millrace.executor.__file__).resolve().parent


class CudaError(RuntimeError):
    """Error as CuPy's runtime raises it."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def machine(
    monkeypatch: pytest.MonkeyPatch, *, driver: int, gpus: int | CudaError, nccl: bool = True
) -> None:
    """Put a CuPy in the place of the one that is installed, if any."""

    def count() -> int:
        if isinstance(gpus, CudaError):
            raise gpus
        return gpus

    runtime = SimpleNamespace(
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: 13020,
        getDeviceCount=count,
        CUDARuntimeError=CudaError,
    )
    modules = {
        "cupy": ModuleType("cupy"),
        "cupy.cuda": ModuleType("cupy.cuda"),
        "cupy.cuda.runtime": runtime,
        "cupy.cuda.nccl": SimpleNamespace(available=nccl),
        "cupy_backends": ModuleType("cupy_backends"),
        "cupy_backends.cuda": ModuleType("cupy_backends.cuda"),
        "cupy_backends.cuda.libs": ModuleType("cupy_backends.cuda.libs"),
        "cupy_backends.cuda.libs.nvrtc": SimpleNamespace(getVersion=lambda: (13, 0)),
        "cupy_backends.cuda.libs.nccl": None,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]


def test_without_cupy_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for ask in (require_gpu, gpus_found, require_compiler, require_nccl):
        with pytest.raises(ExecutorError, match=r"needs CuPy: pip install '.\[cuda\]'"):
            ask()


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, driver=0, gpus=CudaError(35, "cudaErrorInsufficientDriver"))
    with pytest.raises(ExecutorError, match="needs a CUDA driver: none is installed"):
        require_gpu()


def test_a_driver_that_is_too_old_is_named_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(monkeypatch, driver=12040, gpus=CudaError(35, "cudaErrorInsufficientDriver"))
    with pytest.raises(ExecutorError, match=r"for CUDA 13\.2: the one .* is for 12\.4"):
        require_gpu()


@pytest.mark.parametrize("gpus", [0, CudaError(100, "cudaErrorNoDevice")], ids=["zero", "error"])
def test_a_machine_without_gpus_cannot_hold_any_rank(
    monkeypatch: pytest.MonkeyPatch, gpus: int | CudaError
) -> None:
    machine(monkeypatch, driver=13000, gpus=gpus)
    with pytest.raises(InfeasibleError, match="no GPU was found"):
        require_gpu()


def test_more_ranks_than_gpus_are_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(monkeypatch, driver=13000, gpus=2)
    with pytest.raises(InfeasibleError, match="4 ranks on this node need 4 GPUs, found 2"):
        require_gpu(4)
    require_gpu(2)


def test_nccl_is_asked_for_only_by_ranks_that_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, driver=13000, gpus=2, nccl=False)
    require_gpu(1)
    with pytest.raises(ExecutorError, match="NCCL not found: pip install"):
        require_gpu(2)


def test_every_module_of_the_executor_can_be_imported_without_cupy() -> None:
    names = sorted(
        ".".join(("executor", *path.relative_to(ROOT).with_suffix("").parts))
        for path in ROOT.rglob("*.py")
        if path.name not in ("__init__.py", "worker.py")
    )
    code = f"""
import sys
sys.modules["cupy"] = None
from importlib import import_module
for name in {names!r}:
    import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
