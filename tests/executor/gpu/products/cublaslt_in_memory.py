"""The functions of `libcublasLt` (cublasLt.h 13.10.0) that we call, in memory of this host.

Matrices are column-major and epilogues are what the header says of them; nothing here knows of
`Product`. Every product has `ALGORITHMS` algorithms, of which the bytes say which it is; they
compute the same.
"""

import ctypes
from typing import Any

import numpy as np

from millrace.executor.gpu.gemm import cublaslt_types as b
from tests.executor.cuda.emulation.machine import ACTIVATIONS, SLOPES, to_stored, to_wide

ALGORITHMS = 3
WORKSPACE_BYTES = 64
NOT_SUPPORTED, INVALID_VALUE = 15, 7
DTYPES = {number: name for name, number in b.DATA_TYPES.items()}
STORED = {"bfloat16": np.uint16, "float16": np.float16, "float32": np.float32}
STORED["float64"] = np.float64


class CublasLtInMemory:
    """The functions, with what was created and what ran."""

    def __init__(self) -> None:
        self.things: dict[int, dict[Any, Any]] = {}
        self.count = 0
        self.ran: list[int] = []
        self.requested_counts: list[int] = []
        self.version = 131000
        self.refused: set[int] = set()  # epilogues that no algorithm has
        self.checked = True  # True if kept algorithms pass

    def __getattr__(self, name: str) -> Any:
        for ending in ("Create", "SetAttribute", "Destroy"):
            if name.endswith(ending):
                return getattr(self, "_" + ending.lower())
        raise AttributeError(name)

    def _create(self, out: Any, *values: int) -> int:
        self.count += 1
        out._obj.value = self.count
        self.things[self.count] = {"created": values}
        return 0

    def _setattribute(self, handle: Any, attribute: int, value: Any, size: int) -> int:
        assert size == ctypes.sizeof(value._obj)
        self.things[handle.value][attribute] = value._obj.value
        return 0

    def _destroy(self, handle: Any) -> int:
        del self.things[handle.value]
        return 0

    def cublasLtGetVersion(self) -> int:  # noqa: N802
        return self.version

    def cublasLtMatmulAlgoGetHeuristic(  # noqa: N802
        self, handle, descriptor, first, second, added, out, preference, most, results, count
    ):
        attributes = self.things[preference.value]
        assert attributes[b.PREF_REDUCTION_SCHEME_MASK] == b.REDUCTION_SCHEME_COMPUTE_TYPE
        assert attributes[b.PREF_MAX_WORKSPACE_BYTES] >= WORKSPACE_BYTES
        self.requested_counts.append(most)
        epilogue = self.things[descriptor.value].get(b.DESC_EPILOGUE, 1)
        if epilogue in self.refused:
            return NOT_SUPPORTED
        for number in range(min(most, ALGORITHMS)):
            results[number].algo.data[0] = number + 1
            results[number].workspace_bytes = WORKSPACE_BYTES
        count._obj.value = min(most, ALGORITHMS)
        return 0

    def cublasLtMatmulAlgoCheck(  # noqa: N802
        self, handle, descriptor, first, second, added, out, algorithm, result
    ):
        is_known = 1 <= algorithm._obj.data[0] <= ALGORITHMS and self.checked
        result._obj.workspace_bytes = WORKSPACE_BYTES
        return 0 if is_known else NOT_SUPPORTED

    def cublasLtMatmul(  # noqa: N802
        self, handle, descriptor, alpha, first, first_layout, second, second_layout,
        beta, added, added_layout, out, out_layout, algorithm, workspace, workspace_bytes, stream,
    ):  # fmt: skip
        self.ran.append(algorithm._obj.data[0])
        attributes = self.things[descriptor.value]
        epilogue = attributes.get(b.DESC_EPILOGUE, 1)
        left, right = (
            self._wide(address, layout).swapaxes(1, 2) if attributes[attribute] == b.OP_T
            else self._wide(address, layout)
            for address, layout, attribute in (
                (first, first_layout, b.DESC_TRANSA), (second, second_layout, b.DESC_TRANSB),
            )
        )  # fmt: skip
        values = left @ right
        if beta._obj.value:
            values = values + self._wide(added, added_layout)
        if self._shape(added_layout)[:3] != self._shape(out_layout)[:3]:
            return INVALID_VALUE
        batch, rows, columns, _, _, dtype = self._shape(out_layout)
        if epilogue & b.EPILOGUE_BIAS:
            values = values + to_wide(self._bias(attributes, batch, rows, dtype), dtype)[:, :, None]
        if epilogue & b.EPILOGUE_WITH_AUX:
            aux = self._aux(attributes, batch, rows, columns, dtype)
            if epilogue & 64:
                values = values * SLOPES["gelu"](to_wide(aux, dtype))
            else:
                aux[...] = to_stored(values, dtype)
        if epilogue & b.EPILOGUE_GELU:
            values = ACTIVATIONS["gelu"](values)
        if epilogue & b.EPILOGUE_RELU:
            values = ACTIVATIONS["relu"](values)
        self._view(out, out_layout)[...] = to_stored(values, dtype)
        return 0

    def _shape(self, layout: Any) -> tuple[int, int, int, int, int, str]:
        attributes = self.things[layout.value]
        dtype, rows, columns, leading = attributes["created"]
        assert leading >= rows
        batch = attributes.get(b.LAYOUT_BATCH_COUNT, 1)
        stride = attributes.get(b.LAYOUT_STRIDED_BATCH_OFFSET, 0)
        return batch, rows, columns, leading, stride, DTYPES[dtype]

    def _view(self, address: int, layout: Any) -> np.ndarray:
        batch, rows, columns, leading, stride, dtype = self._shape(layout)
        return memory(address, dtype, (batch, rows, columns), (stride, 1, leading))

    def _wide(self, address: int, layout: Any) -> np.ndarray:
        return to_wide(self._view(address, layout), self._shape(layout)[-1])

    def _bias(self, attributes: dict, batch: int, rows: int, dtype: str) -> np.ndarray:
        assert DTYPES[attributes[b.DESC_BIAS_DATA_TYPE]] == dtype, "what the library asks of a bias"
        stride = attributes.get(b.DESC_BIAS_BATCH_STRIDE, 0)
        address = attributes[b.DESC_BIAS_POINTER]
        return memory(address, dtype, (batch, 1, rows), (stride, 0, 1))[:, 0]

    def _aux(self, attributes: dict, batch: int, rows: int, columns: int, dtype: str) -> np.ndarray:
        leading = attributes[b.DESC_EPILOGUE_AUX_LD]
        stride = attributes.get(b.DESC_EPILOGUE_AUX_BATCH_STRIDE, 0)
        assert leading >= rows
        assert leading % 8 == stride % 8 == 0
        address = attributes[b.DESC_EPILOGUE_AUX_POINTER]
        return memory(address, dtype, (batch, rows, columns), (stride, 1, leading))


def memory(address: int, dtype: str, shape: tuple, strides: tuple) -> np.ndarray:
    """A view of memory of this host; strides in elements."""
    stored = np.dtype(STORED[dtype])
    last = sum(step * (size - 1) for step, size in zip(strides, shape, strict=True))
    room = (ctypes.c_char * ((last + 1) * stored.itemsize)).from_address(address)
    flat = np.frombuffer(room, stored)
    return np.lib.stride_tricks.as_strided(
        flat, shape, [step * stored.itemsize for step in strides]
    )
