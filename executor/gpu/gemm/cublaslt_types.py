"""Types, functions and values of `libcublasLt` that we use, through ctypes.

Notes
-----
Values are those of `cublasLt.h` and `cublas_api.h` 13.10.0 (NVIDIA, wheel `nvidia-cublas`
13.10.0.20) and of `library_types.h` of CUDA 13.0, under the names that they have there.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace.executor.errors import ExecutorError

FILES = ("libcublasLt.so.13", "libcublasLt.so.12")
# Folders of the wheels `nvidia-cublas` (CUDA 13) and `nvidia-cublas-cu12`, inside site-packages.
WHEEL_FOLDERS = ("nvidia/cu13/lib", "nvidia/cublas/lib")

DATA_TYPES = {  # cudaDataType of library_types.h
    "float32": 0,  # CUDA_R_32F
    "float64": 1,  # CUDA_R_64F
    "float16": 2,  # CUDA_R_16F
    "bfloat16": 14,  # CUDA_R_16BF
}
COMPUTE_32F, COMPUTE_64F = 68, 70  # cublasComputeType_t of cublas_api.h
COMPUTE_32F_FAST_TF32 = 77
OP_N, OP_T = 0, 1  # cublasOperation_t of cublas_api.h
DESC_TRANSA, DESC_TRANSB = 3, 4  # cublasLtMatmulDescAttributes_t of cublasLt.h, int32_t
DESC_EPILOGUE = 7  # uint32_t
DESC_BIAS_POINTER = 8  # void *
DESC_BIAS_BATCH_STRIDE = 10  # in elements, int64_t
DESC_EPILOGUE_AUX_POINTER = 11  # void *
DESC_EPILOGUE_AUX_LD = 12  # in elements, int64_t
DESC_EPILOGUE_AUX_BATCH_STRIDE = 13  # in elements, int64_t
DESC_BIAS_DATA_TYPE = 26  # int32_t
EPILOGUE_DEFAULT = 1  # cublasLtEpilogue_t of cublasLt.h: bits of one number
EPILOGUE_RELU = 2
EPILOGUE_BIAS = 4
EPILOGUE_GELU = 32
EPILOGUE_WITH_AUX = 128  # with GELU: GELU_AUX
EPILOGUE_DGELU = 64 | 128
LAYOUT_BATCH_COUNT = 5  # cublasLtMatrixLayoutAttribute_t of cublasLt.h, int32_t
LAYOUT_STRIDED_BATCH_OFFSET = 6  # int64_t
PREF_MAX_WORKSPACE_BYTES = 1  # cublasLtMatmulPreferenceAttributes_t of cublasLt.h, uint64_t
PREF_REDUCTION_SCHEME_MASK = 3  # uint32_t
PREF_MIN_ALIGNMENT_A_BYTES, PREF_MIN_ALIGNMENT_B_BYTES = 5, 6  # uint32_t
PREF_MIN_ALIGNMENT_C_BYTES, PREF_MIN_ALIGNMENT_D_BYTES = 7, 8
REDUCTION_SCHEME_COMPUTE_TYPE = 2  # cublasLtReductionScheme_t of cublasLt.h
# What registers begin on (planner/compile/stage_ir.py), so that all layers of a model ask one
# question; the widest access of a kernel takes 16 bytes, as does a tensor map (CUDA driver 13.0).
ALIGNMENT_MAX_BYTES = 64

STATUS_NOT_INITIALIZED, STATUS_NOT_SUPPORTED = 1, 15
STATUS = {  # cublasStatus_t of cublas_api.h
    0: "CUBLAS_STATUS_SUCCESS",
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t of cublasLt.h: 64 bytes that only the library reads."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t of cublasLt.h: 96 bytes."""

    _fields_ = (
        ("algo", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_INT, _SIZE, _POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
_SET = (_POINTER, _INT, _POINTER, _SIZE)
FUNCTIONS: dict[str, tuple[Any, ...]] = {  # parameters, as cublasLt.h declares them
    "cublasLtCreate": (_POINTER,),
    "cublasLtDestroy": (_POINTER,),
    "cublasLtMatmulDescCreate": (_POINTER, _INT, _INT),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatrixLayoutCreate": (
        _POINTER, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64,
    ),
    "cublasLtMatrixLayoutSetAttribute": _SET,
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceCreate": (_POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    "cublasLtMatmulAlgoGetHeuristic": (*(_POINTER,) * 7, _INT, _POINTER, _POINTER),
    "cublasLtMatmulAlgoCheck": (_POINTER,) * 8,
    "cublasLtMatmul": (*(_POINTER,) * 14, _SIZE, _POINTER),
}  # fmt: skip


def check(status: int, function: str, description: str = "") -> None:
    """Raise what a status other than success says.

    Raises
    ------
    ExecutorError
        Names the function, the status and what was computed.
    """
    if status:
        name = STATUS.get(status, f"status {status}")
        of = f" for {description}" if description else ""
        fix = "; a GPU and its driver are needed" if status == STATUS_NOT_INITIALIZED else ""
        raise ExecutorError(f"{function} returned {name}{of}{fix}")


def create(library: ctypes.CDLL, kind: str, *arguments: int) -> ctypes.c_void_p:
    """New handle of the library: a descriptor, a layout or a preference."""
    handle = ctypes.c_void_p()
    status = getattr(library, f"{kind}Create")(ctypes.byref(handle), *arguments)
    check(status, f"{kind}Create")
    return handle


def put(
    library: ctypes.CDLL, kind: str, handle: ctypes.c_void_p, attribute: int, value: Any
) -> None:
    """Set an attribute of a handle."""
    status = getattr(library, f"{kind}SetAttribute")(
        handle, attribute, ctypes.byref(value), ctypes.sizeof(value)
    )
    check(status, f"{kind}SetAttribute", f"attribute {attribute} = {value.value}")


def open_library(files: Sequence[str] = FILES) -> ctypes.CDLL:
    """Open `libcublasLt`: the one that is loaded already, or the first that is found.

    Raises
    ------
    ExecutorError
        There is none; says where it was looked for.
    """
    loaded = os.RTLD_NOW | os.RTLD_NOLOAD
    # A name without a folder is looked up where the dynamic linker looks.
    library = _first([(name, loaded) for name in files])
    library = library or _first(
        [(name, os.RTLD_NOW) for name in (*files, *candidates(sys.path, files))]
    )
    if library is None:
        raise ExecutorError(
            f"found no {' or '.join(files)}: not on the dynamic linker's paths, not in "
            f"{' or '.join(WHEEL_FOLDERS)} of site-packages, not in /usr/local/cuda*/lib64; "
            f"`pip install nvidia-cublas` (CUDA 13) or `nvidia-cublas-cu12`"
        )
    for name, parameters in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = parameters, ctypes.c_int
    library.cublasLtGetVersion.argtypes, library.cublasLtGetVersion.restype = (), _SIZE
    return library


def candidates(
    site_packages: Sequence[str], files: Sequence[str] = FILES, root: Path = Path("/usr/local")
) -> tuple[str, ...]:
    """Those of `files` that lie in wheels, then in toolkits, the newest first."""
    wheels = [Path(site, folder) for site in site_packages for folder in WHEEL_FOLDERS]
    toolkits = sorted(root.glob("cuda*/lib64"), reverse=True)
    paths = [folder / name for folder in (*wheels, *toolkits) for name in files]
    return tuple(str(path) for path in paths if path.exists())


def _first(names: Sequence[tuple[str, int]]) -> ctypes.CDLL | None:
    """First of some libraries that opens."""
    for name, mode in names:
        try:
            return ctypes.CDLL(name, mode=mode)
        except OSError:
            continue
    return None
