"""What running on GPUs needs, and the sentence that says which part of it is missing."""

import warnings
from importlib import import_module
from typing import Any

from executor.errors import ExecutorError
from planner.errors import InfeasibleError

INSTALL = "pip install 'millrace[cuda]'"


def require_gpu(ranks: int = 1) -> None:
    """Refuse to go on where `ranks` ranks of this node cannot have a GPU each.

    Parameters
    ----------
    ranks
        Ranks of this node.

    Raises
    ------
    ExecutorError
        CuPy, a CUDA driver, the compiler or, for more than one rank, NCCL is missing.
    InfeasibleError
        There are fewer GPUs than ranks.
    """
    found = gpus_found()
    if found == 0:
        raise InfeasibleError(
            "--backend cupy needs a GPU, and no GPU was found (CUDA_VISIBLE_DEVICES hides those "
            "that it does not list)"
        )
    if ranks > found:
        raise InfeasibleError(
            f"{ranks} ranks on this node need {ranks} GPUs, found {found}: plan for {found}, or "
            f"use --backend numpy"
        )
    require_compiler()
    if ranks > 1:
        require_nccl()


def gpus_found() -> int:
    """Return the number of GPUs that this process sees.

    Raises
    ------
    ExecutorError
        CuPy or a CUDA driver is missing.
    """
    runtime = _imported("cupy.cuda.runtime")
    driver = runtime.driverGetVersion()
    if driver == 0:
        raise ExecutorError(
            "--backend cupy needs a CUDA driver: none is installed on this machine (nvidia-smi "
            "shows it where there is one)"
        )
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        if error.status == 100:  # cudaErrorNoDevice, CUDA runtime API
            return 0
        raise ExecutorError(
            f"--backend cupy needs a CUDA driver for CUDA {_version(runtime.runtimeGetVersion())}: "
            f"the one that is installed is for {_version(driver)} ({error})"
        ) from error


def require_compiler() -> None:
    """Refuse to go on where NVRTC, which compiles our kernels, cannot be loaded."""
    try:
        _imported("cupy_backends.cuda.libs.nvrtc").getVersion()
    except (ImportError, RuntimeError) as error:
        if isinstance(error, ExecutorError):
            raise
        raise ExecutorError(f"NVRTC not found: {INSTALL} ({_line(error)})") from error


def require_nccl() -> Any:
    """Return CuPy's binding of NCCL.

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


def _imported(name: str) -> Any:
    """Import a module of CuPy, whose warnings about missing libraries our own sentence replaces."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module("cupy")
    except ImportError as error:
        raise ExecutorError(f"--backend cupy needs CuPy: {INSTALL} ({_line(error)})") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _line(error: BaseException) -> str:
    """The first line of an error that has words."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
