"""The library oneDNN by its C interface (version 3), through ctypes.

A primitive is created once for its shapes, with scratch of its own, and run on the addresses of
arrays: nothing is allocated when it runs. It runs on the threads of OpenMP, as our own C does.
"""

import ctypes
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array

# Values of dnnl_types.h and dnnl_common_types.h, oneDNN 3.2 (read 2026-11).
_CPU, _IN_ORDER, _FLOAT32, _ANY_TAG, _USER_SCRATCHPAD = 1, 1, 3, 1, 1
_RUNTIME_OPENMP = 2
_SCRATCHPAD_MD = 136
LIBRARY = "libdnnl.so.3"


class DnnlArgument(IntEnum):
    """DnnlArgument of a primitive."""

    SRC = 1
    DST = 17
    WEIGHTS = 33
    BIAS = 41
    SCRATCHPAD = 80
    DIFF_SRC = 129
    DIFF_DST = 145
    DIFF_WEIGHTS = 161


QUERIES = {
    DnnlArgument.SRC: 129,
    DnnlArgument.DIFF_SRC: 130,
    DnnlArgument.WEIGHTS: 131,
    DnnlArgument.DIFF_WEIGHTS: 132,
    DnnlArgument.DST: 133,
    DnnlArgument.DIFF_DST: 134,
}
"""What a description of a primitive is asked for its arguments' layouts."""


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


class _ExecutionArgument(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_int), ("memory", ctypes.c_void_p))


class Dnnl:
    """The library with an engine and a stream of this machine's cores."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        library.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        library.dnnl_memory_set_data_handle.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.engine = self.created("engine_create", _CPU, ctypes.c_size_t(0))
        self.stream = self.created("stream_create", self.engine, _IN_ORDER)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raises ExecutorError where it does not succeed."""
        status = self.library[f"dnnl_{name}"](*arguments)
        if status:
            raise ExecutorError(f"oneDNN's dnnl_{name} returned {status}")

    def created(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Object that a function creates."""
        made_object = ctypes.c_void_p()
        self.call(name, ctypes.byref(made_object), *arguments)
        return made_object

    def layout(self, shape: Sequence[int], strides: Sequence[int] | None) -> ctypes.c_void_p:
        """Description of float32 memory; without strides, oneDNN chooses."""
        dims = numbers(shape)
        if strides is None:
            name = "memory_desc_create_with_tag"
            return self.created(name, len(shape), dims, _FLOAT32, _ANY_TAG)
        name = "memory_desc_create_with_strides"
        return self.created(name, len(shape), dims, _FLOAT32, numbers(strides))

    def attributes(self) -> ctypes.c_void_p:
        """Attributes of a primitive that is handed its scratch."""
        attributes = self.created("primitive_attr_create")
        self.call("primitive_attr_set_scratchpad_mode", attributes, _USER_SCRATCHPAD)
        return attributes

    def chosen(self, description: ctypes.c_void_p, query: int) -> ctypes.c_void_p:
        """Layout of an argument that a primitive's description asks for."""
        return ctypes.c_void_p(
            self.library.dnnl_primitive_desc_query_md(description, ctypes.c_int(query), 0)
        )

    def size_bytes(self, layout: ctypes.c_void_p) -> int:
        """Bytes of memory in a layout."""
        return int(self.library.dnnl_memory_desc_get_size(layout))

    def is_equal(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> bool:
        """True if two layouts are one."""
        return bool(self.library.dnnl_memory_desc_equal(first, second))

    def memory(self, layout: ctypes.c_void_p, array: Array | None = None) -> ctypes.c_void_p:
        """Memory in a layout, over an array where one is given."""
        address = None if array is None else array.ctypes.data
        return self.created("memory_create", layout, self.engine, ctypes.c_void_p(address))


class Primitive:
    """A primitive with the memories of its arguments; those of `run` are arrays' addresses.

    Parameters
    ----------
    dnnl, description
        The library, and what the primitive computes.
    layouts
        Layouts of the arguments.
    bound
        Arrays of arguments that are the same in every run.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        description: ctypes.c_void_p,
        layouts: Mapping[DnnlArgument, ctypes.c_void_p],
        bound: Mapping[DnnlArgument, Array],
    ) -> None:
        self._dnnl = dnnl
        self._primitive = dnnl.created("primitive_create", description)
        scratchpad = dnnl.chosen(description, _SCRATCHPAD_MD)
        self._bound = [*bound.values(), np.empty(dnnl.size_bytes(scratchpad), np.uint8)]
        memories = [dnnl.memory(layout, bound.get(key)) for key, layout in layouts.items()]
        memories.append(dnnl.memory(scratchpad, self._bound[-1]))
        keys = [*layouts, DnnlArgument.SCRATCHPAD]
        self._arguments = (_ExecutionArgument * len(keys))(
            *(
                _ExecutionArgument(key, memory.value)
                for key, memory in zip(keys, memories, strict=True)
            )
        )
        self._memories = dict(zip(keys, memories, strict=True))

    def run(self, addresses: Mapping[DnnlArgument, int]) -> None:
        """Compute, arguments lying at these addresses."""
        dnnl = self._dnnl
        for key, address in addresses.items():
            dnnl.library.dnnl_memory_set_data_handle(self._memories[key], address)
        count = len(self._arguments)
        dnnl.call("primitive_execute", self._primitive, dnnl.stream, count, self._arguments)


def reorder(
    dnnl: Dnnl,
    source: ctypes.c_void_p,
    target: ctypes.c_void_p,
    bound: Mapping[DnnlArgument, Array],
) -> Primitive:
    """Primitive that copies memory of one layout into another."""
    description = dnnl.created(
        "reorder_primitive_desc_create", source, dnnl.engine, target, dnnl.engine, dnnl.attributes()
    )
    return Primitive(dnnl, description, {DnnlArgument.SRC: source, DnnlArgument.DST: target}, bound)


def numbers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Values as an array in C."""
    return (ctypes.c_int64 * len(values))(*values)


def dnnl_path() -> Path | None:
    """Path of the library beside this interpreter; None where there is none."""
    path = Path(sys.prefix) / "lib" / LIBRARY
    return path if path.exists() else None


@lru_cache(1)
def open_dnnl() -> Dnnl | None:
    """The library beside this interpreter, of version 3 and with OpenMP; None without it."""
    path = dnnl_path()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.dnnl_version.restype = ctypes.POINTER(_Version)
    version = library.dnnl_version().contents
    if version.major != 3 or version.cpu_runtime != _RUNTIME_OPENMP:
        return None
    return Dnnl(library)
