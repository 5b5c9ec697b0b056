"""Availability of GPUs: requirements of runs on them, and the sentence on which is missing."""

import warnings
from importlib import import_module
from typing import Any

from millrace.executor.errors import ExecutorError
from millrace.planner.errors import InfeasibleError

INSTALL = "pip install '.[cuda]' in Millrace's checkout"
BACKEND = "--backend cupy"


def require_gpu(ranks: int = 1, needed_by: str = BACKEND) -> None:
    """Refuse to go on where `ranks` ranks of this node cannot have a GPU each.

    Parameters
    ----------
    ranks
        Ranks of this node.
    needed_by
        The option that asks for them, as the user wrote it.

    Raises
    ------
    ExecutorError
        CuPy, a CUDA driver, the compiler or, for more than one rank, NCCL is missing.
    InfeasibleError
        There are fewer GPUs than ranks.
    """
    gpus = gpus_found(needed_by)
    if gpus == 0:
        raise InfeasibleError(
            f"{needed_by} needs a GPU, and no GPU was found (CUDA_VISIBLE_DEVICES hides those "
            f"that it does not list)"
        )
    if ranks > gpus:
        instead = f"plan for {gpus}, or use --backend numpy"
        raise InfeasibleError(
            f"{ranks} ranks on this node need {ranks} GPUs, found {gpus}: "
            f"{instead if needed_by == BACKEND else f'ask for at most {gpus}'}"
        )
    require_compiler()
    if ranks > 1:
        require_nccl()


def gpus_found(needed_by: str = BACKEND) -> int:
    """Number of GPUs that this process sees; `needed_by` is as for `require_gpu`.

    Raises
    ------
    ExecutorError
        CuPy or a CUDA driver is missing.
    """
    runtime = _imported("cupy.cuda.runtime", needed_by)
    driver = runtime.driverGetVersion()
    if driver == 0:
        raise ExecutorError(
            f"{needed_by} needs a CUDA driver: none is installed on this machine (nvidia-smi "
            f"shows it where there is one)"
        )
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        if error.status == 100:  # cudaErrorNoDevice, CUDA runtime API
            return 0
        raise ExecutorError(
            f"{needed_by} needs a CUDA driver for CUDA {_version(runtime.runtimeGetVersion())}: "
            f"the one that is installed is for {_version(driver)} ({error})"
        ) from error


def gpu_versions(needed_by: str = BACKEND) -> dict[str, str]:
    """Name and versions that times on this machine's first GPU depend on.

    No context is made on it.
    """
    runtime = _imported("cupy.cuda.runtime", needed_by)
    return {
        "gpu": str(runtime.getDeviceProperties(0)["name"].decode()),
        "driver": _version(runtime.driverGetVersion()),
        "runtime": _version(runtime.runtimeGetVersion()),
        "cupy": str(import_module("cupy").__version__),
    }


def require_compiler() -> None:
    """Refuse to go on where NVRTC, which compiles our kernels, cannot be loaded."""
    try:
        _imported("cupy_backends.cuda.libs.nvrtc").getVersion()
    except (ImportError, RuntimeError) as error:
        if isinstance(error, ExecutorError):
            raise
        raise ExecutorError(f"NVRTC not found: {INSTALL} ({_line(error)})") from error


def require_nccl() -> Any:
    """CuPy's binding of NCCL.

    Raises
    ------
    ExecutorError
        CuPy or NCCL is missing.
    """
    nccl = _imported("cupy.cuda.nccl")
    if not nccl.available:
        try:
            import_module("cupy_backends.cuda.libs.nccl")
        except ImportError as error:
            raise ExecutorError(f"NCCL not found: {INSTALL} ({_line(error)})") from error
    return nccl


def _imported(name: str, needed_by: str = BACKEND) -> Any:
    """Import a module of CuPy, whose warnings about missing libraries our own sentence replaces."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module("cupy")
    except ImportError as error:
        raise ExecutorError(f"{needed_by} needs CuPy: {INSTALL} ({_line(error)})") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _line(error: BaseException) -> str:
    """First line of an error that has words."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
