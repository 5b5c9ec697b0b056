"""Graphs of cuDNN's front end (version 1.22): tensors by dims and strides, one operation.

Tensors are numbered from 1 in the order of `LibraryCall.tensors`, and are given by these numbers
when a plan is carried out.
"""

from typing import Any

from millrace.executor.cuda.calls import Attention, AttentionGrad, Convolution, LibraryCall, Strided
from millrace.executor.gpu.cudnn.limits import DTYPES

DIMS = 4  # dims of every tensor that the operations take

NOTES = ("REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS", "FFT", "WINOGRAD")
"""Kinds of kernels of convolution that compute in less than was asked for, or by a detour."""


def graph_of(cudnn: Any, call: LibraryCall, *, deterministic: bool, **where: Any) -> Any:
    """The front end's graph of a call; nothing has been checked or planned.

    Parameters
    ----------
    cudnn
        The front end.
    call
        The call; addresses do not matter.
    deterministic
        Every sum in one order; of convolutions `deselected_notes` says so.
    where
        Device for the graph: its `handle`.
    """
    types = cudnn.data_type
    graph = cudnn.pygraph(
        name="call",
        io_data_type=getattr(types, DTYPES[call.tensors[0].dtype]),
        intermediate_data_type=types.FLOAT,
        compute_data_type=types.FLOAT,
        **where,
    )
    match call:
        case Attention():
            _attention(cudnn, graph, call)
        case AttentionGrad():
            _attention_grad(cudnn, graph, call, deterministic)
        case Convolution():
            _convolution(cudnn, graph, call)
    return graph


def deselected_notes(cudnn: Any, call: LibraryCall, *, deterministic: bool) -> list[Any]:
    """Kinds of kernels that may not carry out a call.

    Attention is told to be deterministic by a flag of its own.
    """
    if not isinstance(call, Convolution):
        return []
    names = list(NOTES)
    if deterministic:
        names.append("NONDETERMINISTIC")
    if call.arithmetic == "fp32":
        names.append("TENSOR_CORE")  # these take only the first bits of float32: tf32
    return [getattr(cudnn.numerical_note, name) for name in names]


def _attention(cudnn: Any, graph: Any, call: Attention) -> None:
    q, k, v = _inputs(cudnn, graph, call, 0, 1, 2)
    out, logsumexp = graph.sdpa(
        q=q, k=k, v=v, attn_scale=call.scale, generate_stats=True, **_band(call)
    )
    _output(cudnn, out, call, 3)
    _output(cudnn, logsumexp, call, 4)


def _attention_grad(cudnn: Any, graph: Any, call: AttentionGrad, deterministic: bool) -> None:
    q, k, v, out, logsumexp, dout = _inputs(cudnn, graph, call, 0, 1, 2, 3, 4, 5)
    gradients = graph.sdpa_backward(
        q=q,
        k=k,
        v=v,
        o=out,
        dO=dout,
        stats=logsumexp,
        attn_scale=call.forward.scale,
        use_deterministic_algorithm=deterministic,
        **_band(call.forward),
    )
    for place, gradient in enumerate(gradients, 6):
        _output(cudnn, gradient, call, place)


def _band(call: Attention) -> dict[str, int]:
    """Bounds of the diagonals of queries: i sees key j where i - left < j <= i + right."""
    bounds = {}
    if call.behind is not None:
        bounds["diagonal_band_left_bound"] = call.behind
    if call.ahead is not None:
        bounds["diagonal_band_right_bound"] = call.ahead - 1
    return bounds


def _convolution(cudnn: Any, graph: Any, call: Convolution) -> None:
    moves: dict[str, Any] = {
        "pre_padding": list(call.pad),
        "post_padding": list(post_padding(call)),
        "stride": list(call.stride),
        "dilation": list(call.dilation),
    }
    match call.direction:
        case "forward":
            image, weight = _inputs(cudnn, graph, call, 0, 1)
            _output(cudnn, graph.conv_fprop(image=image, weight=weight, **moves), call, 2)
        case "grad_input":
            weight, output = _inputs(cudnn, graph, call, 1, 2)
            _output(cudnn, graph.conv_dgrad(loss=output, filter=weight, **moves), call, 0)
        case "grad_weight":
            image, output = _inputs(cudnn, graph, call, 0, 2)
            _output(cudnn, graph.conv_wgrad(image=image, loss=output, **moves), call, 1)


def post_padding(call: Convolution) -> tuple[int, ...]:
    """Places behind the image that the library is told of.

    They are as many as before it where that makes as many outputs, for which it has more kernels;
    else those that the last window reaches.
    """
    padding = []
    for given, outputs, window, stride, pad, dilation in zip(
        call.image_size,
        call.output_size,
        call.window,
        call.stride,
        call.pad,
        call.dilation,
        strict=True,
    ):
        reach = (window - 1) * dilation + 1
        alike = (given + 2 * pad - reach) // stride + 1 == outputs
        padding.append(pad if alike else max(0, (outputs - 1) * stride + reach - given - pad))
    return tuple(padding)


def _inputs(cudnn: Any, graph: Any, call: LibraryCall, *places: int) -> list[Any]:
    return [
        graph.tensor(
            dim=_padded(call.sizes[place], 1),
            stride=_padded(call.tensors[place].strides, 1),
            data_type=_data_type(cudnn, call.tensors[place]),
            name=f"tensor {place + 1}",
            uid=place + 1,
        )
        for place in places
    ]


def _output(cudnn: Any, tensor: Any, call: LibraryCall, place: int) -> None:
    tensor.set_output(True).set_uid(place + 1).set_dim(_padded(call.sizes[place], 1)).set_stride(
        _padded(call.tensors[place].strides, 1)
    ).set_data_type(_data_type(cudnn, call.tensors[place]))


def _padded(values: tuple[int, ...], filling: int) -> list[int]:
    return [*values, *[filling] * (DIMS - len(values))]


def _data_type(cudnn: Any, tensor: Strided) -> Any:
    return getattr(cudnn.data_type, DTYPES[tensor.dtype])
