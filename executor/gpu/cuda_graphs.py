"""Captured graphs, whose kernels keep the priorities of the streams that they were captured from.

CuPy (14.2) instantiates a graph without flags; all its kernels then have the priority of the stream
that it is launched into, and collectives queue behind products. CuPy's runtime is linked into it,
so that a `libcudart` beside it would be another one; the driver is one for the whole process, and
its handles of graphs are the runtime's (`driver_types.h` of CUDA 13 declares them so).
"""

import ctypes
import weakref
from contextlib import suppress
from functools import cache
from typing import Any

from millrace.executor.errors import ExecutorError

DRIVER = "libcuda.so.1"
USE_NODE_PRIORITY = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, CUDA 13 driver API


class CapturedGraph:
    """Graph of what a stream was given since its capture began, ready to be launched.

    It is destroyed with the last reference to it.

    Parameters
    ----------
    runtime
        CuPy's `cuda.runtime`.
    stream
        The stream whose capture ends here; the graph is sent to the device in its order.

    Raises
    ------
    ExecutorError
        The driver cannot make the graph executable; the runtime has errors of its own.
    """

    def __init__(self, runtime: Any, stream: int) -> None:
        self._runtime = runtime
        graph = int(runtime.streamEndCapture(stream))
        try:
            self.handle = _executable(graph)
        finally:
            runtime.graphDestroy(graph)
        # At the end of the process the driver takes graphs back itself.
        weakref.finalize(self, _destroy, runtime, self.handle).atexit = False
        runtime.graphUpload(self.handle, stream)

    def launch(self, stream: int) -> None:
        """Carry it out in the order of a stream."""
        self._runtime.graphLaunch(self.handle, stream)


def _executable(graph: int) -> int:
    """Handle of an executable graph."""
    handle = ctypes.c_void_p()
    status = open_driver().cuGraphInstantiateWithFlags(
        ctypes.byref(handle), graph, USE_NODE_PRIORITY
    )
    if status or handle.value is None:
        raise ExecutorError(f"cuGraphInstantiateWithFlags returned CUresult {status}")
    return handle.value


def _destroy(runtime: Any, handle: int) -> None:
    with suppress(runtime.CUDARuntimeError):  # the context may have failed
        runtime.graphExecDestroy(handle)


@cache
def open_driver() -> Any:
    """Driver that CuPy has loaded, with the one function that is called here."""
    driver = ctypes.CDLL(DRIVER)
    function = driver.cuGraphInstantiateWithFlags
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong)
    function.restype = ctypes.c_int
    return driver
