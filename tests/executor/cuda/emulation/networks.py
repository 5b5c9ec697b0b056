"""Calls of the library of neural networks, computed in NumPy on strided memory."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from millrace.executor.cuda.calls import Attention, AttentionGrad, Convolution, LibraryCall, Strided

Array = np.ndarray
STORED = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}


def reach_bytes(tensor: Strided, sizes: Sequence[int]) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    last = sum(step * (size - 1) for step, size in zip(tensor.strides, sizes, strict=True))
    return (last + 1) * np.dtype(STORED[tensor.dtype]).itemsize


def strided_memory(address: int, tensor: Strided, sizes: Sequence[int]) -> Array:
    """Memory from an address on, as the dims of a tensor (bfloat16 as uint16)."""
    stored = np.dtype(STORED[tensor.dtype])
    room = (ctypes.c_char * reach_bytes(tensor, sizes)).from_address(address)
    steps = tuple(step * stored.itemsize for step in tensor.strides)
    return np.lib.stride_tricks.as_strided(np.frombuffer(room, stored), tuple(sizes), steps)


def carry_out(
    call: LibraryCall,
    arrays: Sequence[Array],
    to_wide: Callable[[Array, str], Array],
    to_stored: Callable[[Array, str], Array],
) -> None:
    """Carry out a call on its `tensors`."""
    wide = [to_wide(a, t.dtype) for a, t in zip(arrays, call.tensors, strict=True)]
    match call:
        case Attention():
            outputs = dict(zip((3, 4), attention(call, *wide[:3]), strict=True))
        case AttentionGrad():
            outputs = dict(zip((6, 7, 8), attended_back(call.forward, *wide[:6]), strict=True))
        case Convolution():
            position = {"forward": 2, "grad_input": 0, "grad_weight": 1}[call.direction]
            outputs = {position: convolved(call, *wide)}
    for position, values in outputs.items():
        arrays[position][...] = to_stored(values, call.tensors[position].dtype)


def _scores(call: Attention, q: Array, k: Array) -> Array:
    """Scaled scores [b, h, t, s], minus infinity where a query sees no key."""
    scores = call.scale * np.einsum("bhtd,bhsd->bhts", q, _repeated(call, k))
    distance = np.subtract.outer(np.arange(call.t), np.arange(call.s))
    if call.behind is not None:
        scores[..., distance >= call.behind] = -np.inf
    if call.ahead is not None:
        scores[..., distance <= -call.ahead] = -np.inf
    return scores


def _repeated(call: Attention, heads: Array) -> Array:
    return np.repeat(heads, call.h // call.g, axis=1)


def _summed(call: Attention, heads: Array) -> Array:
    b, h, *rest = heads.shape
    return heads.reshape(b, call.g, h // call.g, *rest).sum(2)


def attention(call: Attention, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Output and logsumexp."""
    scores = _scores(call, q, k)
    largest = scores.max(-1, keepdims=True)
    shares = np.exp(scores - largest)
    total = shares.sum(-1, keepdims=True)
    out = np.einsum("bhts,bhsu->bhtu", shares / total, _repeated(call, v))
    return out, (largest + np.log(total))[..., 0]


def attended_back(
    call: Attention, q: Array, k: Array, v: Array, out: Array, logsumexp: Array, dout: Array
) -> tuple[Array, Array, Array]:
    """dq, dk and dv."""
    shares = np.exp(_scores(call, q, k) - logsumexp[..., None])
    dv = _summed(call, np.einsum("bhts,bhtu->bhsu", shares, dout))
    dshares = np.einsum("bhtu,bhsu->bhts", dout, _repeated(call, v))
    dscores = shares * (dshares - (out * dout).sum(-1, keepdims=True)) * call.scale
    dq = np.einsum("bhts,bhsd->bhtd", dscores, _repeated(call, k))
    return dq, _summed(call, np.einsum("bhts,bhtd->bhsd", dscores, q)), dv


def convolved(call: Convolution, image: Array, weight: Array, output: Array) -> Array:
    """Output of a convolution, or one of its gradients, computed tap by tap."""
    groups = call.groups
    room = [  # that the windows reach, before and behind the image
        max(given + pad, (extent - 1) * stride + (size - 1) * dilation + 1)
        for given, pad, extent, stride, size, dilation in zip(
            call.image_size,
            call.pad,
            call.output_size,
            call.stride,
            call.window,
            call.dilation,
            strict=True,
        )
    ]
    padded = np.zeros((call.b, groups, call.c, *room), image.dtype)
    inside = tuple(slice(p, p + n) for p, n in zip(call.pad, call.image_size, strict=True))
    padded[..., *inside] = image.reshape(call.b, groups, call.c, *call.image_size)
    out = output.reshape(call.b, groups, call.n // groups, *call.output_size)
    taps = weight.reshape(groups, call.n // groups, call.c, *call.window)
    sums = {
        "forward": np.zeros_like(out),
        "grad_input": np.zeros_like(padded),
        "grad_weight": np.zeros_like(taps),
    }[call.direction]
    for i, j in np.ndindex(*call.window):
        seen = (
            ...,
            *(
                slice(tap * dilation, tap * dilation + (count - 1) * stride + 1, stride)
                for tap, dilation, count, stride in zip(
                    (i, j), call.dilation, call.output_size, call.stride, strict=True
                )
            ),
        )
        tap = taps[..., i, j]
        if call.direction == "forward":
            sums += np.einsum("gnc,bgcyx->bgnyx", tap, padded[seen])
        elif call.direction == "grad_input":
            sums[seen] += np.einsum("gnc,bgnyx->bgcyx", tap, out)
        else:
            sums[..., i, j] = np.einsum("bgnyx,bgcyx->gnc", out, padded[seen])
    if call.direction == "grad_input":
        sums = sums[..., *inside]
    position = {"forward": 2, "grad_input": 0, "grad_weight": 1}[call.direction]
    return sums.reshape(call.sizes[position])
