"""The items of `facts.py` that say what there is, and compile all that is ours."""

import ctypes
import importlib
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from millrace.executor.cuda.compiling import OPTIONS
from millrace.executor.cuda.source_text import source_stems, source_text
from millrace.executor.gpu.availability import require_gpu, require_nccl

Figures = dict[str, object]
PACKAGES = ("cupy-cuda13x", "numpy", "torch", "triton", "nvidia-cudnn-frontend", "cuda-bindings",
            "nccl4py", "msgspec", "mpi4py", "pytest")  # fmt: skip


def versions() -> Figures:
    """Versions of all that is installed, and the GPU that there is."""
    system = f"{platform.system()} {platform.machine()}"
    figures: Figures = {"python": platform.python_version(), "system": system}
    for name in PACKAGES:
        try:
            figures[name] = version(name)
        except PackageNotFoundError:
            figures[name] = None
    require_gpu()
    import cupy
    from cupy_backends.cuda.libs import nvrtc

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(0)
    free, total = runtime.memGetInfo()
    figures |= {
        "device": properties["name"].decode(),
        "gpus": runtime.getDeviceCount(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "total_bytes": total,
        "context_bytes": total - free,
        "cuda_driver": runtime.driverGetVersion(),
        "cuda_runtime_of_cupy": runtime.runtimeGetVersion(),
        "nvrtc": ".".join(map(str, nvrtc.getVersion())),
    }
    for name, asked in LIBRARIES.items():
        try:
            figures[name] = asked()
        except Exception as error:
            figures[name] = f"{type(error).__name__}: {error}"
    return figures


def _cublaslt_version() -> int:
    binding = importlib.import_module("millrace.executor.gpu.gemm.cublaslt_types")
    library = binding.open_library()
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return int(library.cublasLtGetVersion())


LIBRARIES: dict[str, Callable[[], object]] = {
    "nccl": lambda: require_nccl().get_version(),
    "cublaslt": _cublaslt_version,
    "cudnn": lambda: importlib.import_module("cudnn").backend_version(),
}


def compiling() -> Figures:
    """Seconds that every source takes to compile for this GPU; kernels compile in their tests."""
    import cupy

    cupy.cuda.runtime.setDevice(0)
    cupy.cuda.runtime.free(0)
    took = {}
    for stem in source_stems():
        began = time.perf_counter()
        cupy.cuda.compiler.compile_using_nvrtc(source_text(stem), OPTIONS)
        took[stem] = round(time.perf_counter() - began, 3)
    return took


def smi() -> Figures:
    """Clocks, power and other processes, as the driver's own tool says, where there is one."""
    if shutil.which("nvidia-smi") is None:
        return {}
    asked = "name,driver_version,clocks.sm,clocks.max.sm,power.limit,memory.used,ecc.mode.current"
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(asked.split(","), done.stdout.splitlines()[0].split(", "), strict=True))


ITEMS: dict[str, Callable[[], Figures]] = {
    "versions": versions,
    "driver_tool": smi,
    "compiling": compiling,
}
