"""Plans of cuDNN itself for an H200 where there is no GPU.

The library plans for the properties of a device that it is told as JSON, in place of one that it
finds. It is linked against the driver, of which `driver_stub` makes a library that does nothing.
Run apart, since a process keeps what it has loaded.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from millrace.executor.cuda.calls import LibraryCall
from millrace.executor.gpu.cudnn.library import CudnnLibrary

WORKSPACE_BYTES = 4 * 2**30
# Fields as cuDNN 9.28 reads them; figures of an H200 SXM (CUDA programming guide, compute
# capability 9.0; data sheet, 2023).
H200 = {
    "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0,
    "totalGlobalMem": 141 * 10**9, "multiProcessorCount": 132, "warpSize": 32,
    "maxGridSize": [2**31 - 1, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32,
    "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
    "l2CacheSize": 60 * 2**20, "memoryBusWidth": 6144, "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000, "supportCoopLaunch": 1, "isTccDriver": 0, "pciDeviceId": 0,
    "oversizedSharedMemoryPerBlock": 0, "smCountOrigin": 0,
}  # fmt: skip
DRIVER = [
    "CtxGetCurrent",
    "CtxGetLimit",
    "CtxPopCurrent",
    "CtxPushCurrent",
    "DeviceGet",
    "GetErrorName",
    "GetErrorString",
    "KernelGetAttribute",
    "KernelGetFunction",
    "KernelSetAttribute",
    "LaunchCooperativeKernel",
    "LaunchKernel",
    "LaunchKernelEx",
    "LibraryGetKernel",
    "LibraryLoadData",
    "LibraryLoadFromFile",
    "LibraryUnload",
    "LinkAddData",
    "LinkComplete",
    "LinkCreate",
    "LinkDestroy",
    "ModuleGetFunction",
    "ModuleLoadData",
    "ModuleUnload",
    "OccupancyMaxPotentialClusterSize",
    "StreamGetCtx",
    "TensorMapEncodeIm2col",
    "TensorMapEncodeTiled",
]
"""Functions of the driver that cuDNN 9.28 looks up while it plans."""


def driver_stub(folder: Path) -> None:
    """Make a `libcuda.so.1` of functions that do nothing, and of no device."""
    text = "\n".join(f"int cu{name}(void) {{ return 0; }}" for name in DRIVER)
    text += "\nint cuDriverGetVersion(int* found) { *found = 13000; return 0; }"
    text += "\nint cuDeviceGetCount(int* found) { *found = 0; return 0; }\n"
    (folder / "stub.c").write_text(text)
    name = "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", name, "stub.c"],
        cwd=folder,
        check=True,
    )


class Described:
    """The front end, whose graphs are for a device that is described and not there."""

    def __init__(self) -> None:
        import cudnn

        self._cudnn = cudnn
        self._device = cudnn.create_device_properties(json.dumps(H200))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cudnn, name)

    def create_handle(self) -> int:
        return 1

    def pygraph(self, handle: int, **told: Any) -> Any:
        return self._cudnn.pygraph(device_property=self._device, sm_version=90, **told)


def planned(calls: dict[str, LibraryCall], *, deterministic: bool) -> dict[str, int | str]:
    """Scratch that each call takes, or the reason why there is no plan."""
    library = CudnnLibrary(Described(), deterministic=deterministic)
    answers: dict[str, int | str] = {}
    for name, call in calls.items():
        plan = library.plan(call, WORKSPACE_BYTES)
        words = list(library.refused.values())
        answers[name] = words[-1] if plan is None else plan.workspace_bytes
    return answers


def library_calls() -> dict[str, LibraryCall]:
    """Calls of GPT-2 small, a Llama, BERT and ResNet-50, by name."""
    from millrace.executor.cuda.calls import KernelAlternatives, Operand
    from millrace.executor.cuda.kernels.images.convolution_library import (
        FORWARD,
        GRAD_INPUT,
        GRAD_WEIGHT,
    )
    from millrace.executor.cuda.kernels.images.convolution_library import (
        convolution_call as convolution,
    )
    from millrace.executor.cuda.kernels.images.windows import ConvolutionSizes, Dim
    from millrace.executor.cuda.kernels.kernel_table import make_calls
    from millrace.executor.kernels.context import whole_shard
    from tests.executor.cuda.calling import context_of
    from tests.executor.examples.attention import Form

    calls: dict[str, LibraryCall] = {}
    for name, (b, t, g, r, d), more in (
        ("gpt2-small", (8, 1024, 12, 1, 64), {"causal": True}),
        ("llama", (1, 2048, 8, 4, 128), {"causal": True}),
        ("window", (1, 2048, 8, 4, 128), {"causal": True, "window": 512}),
        ("bert", (16, 512, 12, 1, 64), {"causal": False}),
    ):
        form = Form(attributes=more, grouped=True)
        q, k = whole_shard((b, t, g, r, d), "bfloat16"), whole_shard((b, t, g, d), "bfloat16")
        rows = whole_shard((b, t, g, r), "float32")
        for kind, labels, inputs, outputs in (
            ("attention", form.labels[0], [q, k, k], [q, rows]),
            ("attention_grad", form.labels[1], [q, k, k, q, rows, q], [q, k, k]),
        ):
            (choice,) = make_calls(context_of(kind, labels, inputs, outputs, more)).of(0)
            assert isinstance(choice, KernelAlternatives)
            for way, option in enumerate(choice.options[:-1]):
                (call,) = (candidate for candidate in option if isinstance(candidate, LibraryCall))
                calls[f"{name}, {kind}, {way}"] = call
    for c, n, side, size, stride, pad in (
        (3, 64, 224, 7, 2, 3), (64, 64, 56, 3, 1, 1), (256, 128, 56, 1, 1, 0),
        (128, 128, 56, 3, 2, 1), (512, 512, 7, 3, 1, 1),
    ):  # fmt: skip
        dim = Dim(side, (side + 2 * pad - size) // stride + 1, size, stride, pad, 1)
        sizes = ConvolutionSizes(b=64, g=1, c=c, n=n, y=dim, x=dim, dtype="bfloat16")
        for direction in (FORWARD, GRAD_INPUT, GRAD_WEIGHT):
            call = convolution(direction, sizes, (Operand("address"),) * 3, "bf16")
            calls[f"conv {c} {n} {side} {size}, {direction}"] = call
    return calls


if __name__ == "__main__":
    calls = library_calls()
    json.dump([planned(calls, deterministic=order) for order in (False, True)], sys.stdout)
