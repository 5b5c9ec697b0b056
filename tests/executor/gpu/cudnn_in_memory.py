"""Front end of cuDNN as far as we call it (version 1.22, name for name), on host memory.

A graph is told tensors and one operation, as the real one is; carrying it out reads dims and
strides back from what it was told and computes in NumPy.
"""

import ctypes
import enum
from collections.abc import Callable

from millrace.executor.cuda.calls import (
    Attention,
    AttentionGrad,
    Convolution,
    LibraryCall,
    Operand,
    Strided,
)
from tests.executor.cuda.emulation.machine import to_stored, to_wide
from tests.executor.cuda.emulation.networks import carry_out, strided_memory

RUBBISH = 0x5A


class cudnnGraphNotSupportedError(Exception):  # noqa: N801 - as the front end has it
    """No plan."""


def names(kind: str, *members: str) -> enum.EnumMeta:
    return enum.Enum(kind, members)  # type: ignore[return-value]


DATA_TYPE = names("data_type", "FLOAT", "HALF", "BFLOAT16", "NOT_SET")
DTYPES = {"FLOAT": "float32", "HALF": "float16", "BFLOAT16": "bfloat16"}


class CudnnTensor:
    """A tensor of a graph."""

    def __init__(self, **properties: object) -> None:
        self.properties = properties
        self.is_output = False

    def set_output(self, on: bool) -> "CudnnTensor":
        self.is_output = on
        return self

    def set_uid(self, uid: int) -> "CudnnTensor":
        return self._set("uid", uid)

    def set_dim(self, dim: list[int]) -> "CudnnTensor":
        return self._set("dim", dim)

    def set_stride(self, stride: list[int]) -> "CudnnTensor":
        return self._set("stride", stride)

    def set_data_type(self, data_type: object) -> "CudnnTensor":
        return self._set("data_type", data_type)

    def _set(self, name: str, value: object) -> "CudnnTensor":
        self.properties[name] = value
        return self

    def strided(self, dims: int) -> tuple[Strided, tuple[int, ...]]:
        """Tensor as calls have it, and its sizes; what lies behind `dims` has one element."""
        dim, stride, data_type = (self.properties[name] for name in ("dim", "stride", "data_type"))
        assert len(dim) == len(stride) == 4
        assert all(size == 1 for size in dim[dims:])
        strided = Strided(Operand("address"), DTYPES[data_type.name], tuple(stride[:dims]))
        return strided, tuple(dim[:dims])


class Cudnn:
    """The module `cudnn`.

    `do(stream, work)` puts work on a stream; `version` is the library's; `workspace_bytes` is what
    every plan takes; `reason` is why there is none.
    """

    def __init__(self, do: Callable[[int, Callable[[], None]], None] | None = None) -> None:
        self.do = do or (lambda stream, work: work())
        self.version, self.workspace_bytes = 92600, 64
        self.reason: str | None = None
        self.data_type = DATA_TYPE
        self.heur_mode = names("heur_mode", "A", "B", "FALLBACK")
        self.build_plan_policy = names("build_plan_policy", "HEURISTICS_CHOICE", "ALL")
        self.numerical_note = names(
            "numerical_note",
            "TENSOR_CORE",
            "DOWN_CONVERT_INPUTS",
            "REDUCED_PRECISION_REDUCTION",
            "FFT",
            "NONDETERMINISTIC",
            "WINOGRAD",
        )
        self.cudnnGraphNotSupportedError = cudnnGraphNotSupportedError
        self.handles: list[int] = []
        self.stream: int | None = None
        self.graphs: list[CudnnGraph] = []

    def backend_version(self) -> int:
        return self.version

    def create_handle(self) -> int:
        self.handles.append(len(self.handles) + 1)
        return self.handles[-1]

    def destroy_handle(self, handle: int) -> None:
        self.handles.remove(handle)

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle in self.handles
        self.stream = stream

    def pygraph(self, **told: object) -> "CudnnGraph":
        self.graphs.append(CudnnGraph(self, **told))
        return self.graphs[-1]


class CudnnGraph:
    """A `pygraph`; steps of planning are noted in `steps` and must come in the right order."""

    def __init__(
        self, cudnn: Cudnn, name, io_data_type, intermediate_data_type, compute_data_type, handle
    ) -> None:
        assert intermediate_data_type == compute_data_type == DATA_TYPE.FLOAT
        assert handle in cudnn.handles
        self._cudnn, self.io_data_type = cudnn, io_data_type
        self.steps: list[str] = []
        self.limit = 0
        self.notes: list[str] = []
        self.deterministic: bool | None = None  # None where the operation is not asked
        self._tensors: list[CudnnTensor] = []
        self._call: Callable[[], LibraryCall] | None = None

    def tensor(self, dim, stride, data_type, name, uid):
        self._tensors.append(CudnnTensor(dim=dim, stride=stride, data_type=data_type, uid=uid))
        return self._tensors[-1]

    def sdpa(
        self,
        q,
        k,
        v,
        attn_scale,
        generate_stats,
        diagonal_band_left_bound=None,
        diagonal_band_right_bound=None,
    ):
        assert generate_stats
        outputs = CudnnTensor(), CudnnTensor()
        self._tensors += outputs
        band = diagonal_band_left_bound, diagonal_band_right_bound
        self._call = lambda: _attention((q, k, v, *outputs), attn_scale, *band)
        return outputs

    def sdpa_backward(
        self,
        q,
        k,
        v,
        o,
        dO,
        stats,
        attn_scale,
        use_deterministic_algorithm,
        diagonal_band_left_bound=None,
        diagonal_band_right_bound=None,
    ):
        gradients = CudnnTensor(), CudnnTensor(), CudnnTensor()
        self._tensors += gradients
        self.deterministic = use_deterministic_algorithm
        band = diagonal_band_left_bound, diagonal_band_right_bound
        self._call = lambda: AttentionGrad(
            _attention((q, k, v, o, stats), attn_scale, *band),
            *(tensor.strided(4)[0] for tensor in (dO, *gradients)),
        )
        return gradients

    def conv_fprop(self, image, weight, pre_padding, post_padding, stride, dilation):
        return self._convolution(
            "forward", image, weight, None, pre_padding, post_padding, stride, dilation
        )

    def conv_dgrad(self, loss, filter, pre_padding, post_padding, stride, dilation):
        return self._convolution(
            "grad_input", None, filter, loss, pre_padding, post_padding, stride, dilation
        )

    def conv_wgrad(self, image, loss, pre_padding, post_padding, stride, dilation):
        return self._convolution(
            "grad_weight", image, None, loss, pre_padding, post_padding, stride, dilation
        )

    def _convolution(
        self, direction, image, weight, output, pre_padding, post_padding, stride, dilation
    ):
        target = CudnnTensor()
        self._tensors.append(target)
        tensors = [target if tensor is None else tensor for tensor in (image, weight, output)]

        def call() -> Convolution:
            (x, given), (w, window), (y, places) = (tensor.strided(4) for tensor in tensors)
            for axis in (0, 1):  # the output's size follows from the rest
                reach = (window[axis + 2] - 1) * dilation[axis] + 1
                room = given[axis + 2] + pre_padding[axis] + post_padding[axis]
                assert (room - reach) // stride[axis] + 1 == places[axis + 2]
            return Convolution(
                direction, x, w, y, given[0], window[1], window[0], given[1] // window[1],
                given[2:], places[2:], window[2:], tuple(stride), tuple(pre_padding),
                tuple(dilation), "",
            )  # fmt: skip

        self._call = call
        return target

    def validate(self):
        uids = [tensor.properties["uid"] for tensor in self._tensors]
        assert sorted(uids) == list(range(1, len(uids) + 1)), "every tensor has its number"
        assert self._call is not None
        assert self.io_data_type.name in DTYPES
        self.steps.append("validate")

    def build_operation_graph(self):
        self.steps.append("build_operation_graph")

    def create_execution_plans(self, modes):
        assert modes
        self.steps.append("create_execution_plans")

    def deselect_workspace_greater_than(self, limit):
        self.limit = limit

    def deselect_numeric_notes(self, notes):
        self.notes = [note.name for note in notes]

    def check_support(self):
        if self._cudnn.reason is not None:
            raise cudnnGraphNotSupportedError(self._cudnn.reason)
        self.steps.append("check_support")

    def build_plans(self, policy):
        if self._cudnn.workspace_bytes > self.limit:
            raise cudnnGraphNotSupportedError("No valid execution plans built.")
        self.steps.append("build_plans")

    def get_workspace_size(self):
        assert self.steps == [
            "validate",
            "build_operation_graph",
            "create_execution_plans",
            "check_support",
            "build_plans",
        ]
        return self._cudnn.workspace_bytes

    def execute(self, tensor_to_device_buffer, workspace, handle):
        assert handle in self._cudnn.handles
        call, size_bytes = self._call(), self.get_workspace_size()
        addresses = [tensor_to_device_buffer[uid] for uid in range(1, len(call.tensors) + 1)]
        assert len(addresses) == len(tensor_to_device_buffer)
        assert workspace or not size_bytes

        def work() -> None:
            if size_bytes:
                ctypes.memset(workspace, RUBBISH, size_bytes)
            arrays = [
                strided_memory(address, tensor, sizes)
                for address, tensor, sizes in zip(addresses, call.tensors, call.sizes, strict=True)
            ]
            carry_out(call, arrays, to_wide, to_stored)

        self._cudnn.do(self._cudnn.stream, work)


def _attention(tensors, scale, left, right) -> Attention:
    (q, sizes), (k, keys), (v, values), (out, out_sizes), (stats, rows) = (
        tensor.strided(dims) for tensor, dims in zip(tensors, (4, 4, 4, 4, 3), strict=True)
    )
    assert out_sizes == (*sizes[:3], values[3])
    assert rows == sizes[:3]
    return Attention(
        q, k, v, out, stats, sizes[0], sizes[1], keys[1], sizes[2], keys[2], sizes[3], values[3],
        scale, left, None if right is None else right + 1,
    )  # fmt: skip
