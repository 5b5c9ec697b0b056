"""Compiles the functions named on stdin, `source:function` a line, into CuPy's cache on disk."""

import sys

from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.gemm.cublaslt import ProductLibrary


def load_one_by_one(device: CupyDevice, names: list[str]) -> None:
    """Load functions each as a module of its own, as the cache then holds them."""
    for name in names:
        source, _, function = name.partition(":")
        device.load({source: [function]})


if __name__ == "__main__":
    load_one_by_one(CupyDevice(0, ProductLibrary), sys.stdin.read().splitlines())
