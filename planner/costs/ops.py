"""Ops: the duration of one firing from its FLOPs and bytes.

Where the device was measured its table is interpolated (for a kind that no profile times, that of
its like, see `planner.likeness`), elsewhere it is a roofline.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from models.graph import ITEMSIZE
from models.ops import op_kind, op_work
from planner.cluster import Device
from planner.costs.measured import Floats, Ints, interpolated_ns, whole_ns
from planner.errors import ClusterError
from planner.likeness import priced_like

Shape = tuple[int, ...]
Attributes = Mapping[str, int | float | str | bool]

PRECISION = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

# Kinds that the compiler adds and the op table lacks: they move bytes and compute nothing.
LOCAL_BOXING = ("slice", "pad")

# Kinds whose tables are measured per head size, the last dim of their first input.
ATTENTION = ("attention", "attention_grad")


def precision_of(kind: str, dtypes: Sequence[str]) -> str:
    """Precision in which an op multiplies: that of the wider input of its first product.

    Inputs that only scale or join what is multiplied (the logsumexp of an attention) do not count.

    Examples
    --------
    >>> precision_of("attention_grad", [*["bfloat16"] * 4, "float32", "bfloat16"])
    'bf16'
    """
    factors = (op_kind(kind).products or ((),))[0]
    inputs = [dtypes[at] for at in factors if at < len(dtypes)]
    floating = [dtype for dtype in inputs if dtype in PRECISION]
    return PRECISION[max(floating, key=lambda dtype: ITEMSIZE[dtype])] if floating else "fp32"


def _by_head_size(device: Device, kind: str, flops: Floats, head_size: int) -> Ints | None:
    """Durations of attention from the tables `kind/head_size`, None where there are none.

    The softmax costs per score, the products per score and feature, so FLOPs alone do not tell the
    time: between two measured head sizes it is interpolated at an equal number of scores.
    """
    measured = sorted(
        int(name.partition("/")[2]) for name in device.kernels if name.startswith(f"{kind}/")
    )
    if not measured:
        return None

    def at(size: int) -> Ints:
        return interpolated_ns(device.kernels[f"{kind}/{size}"], flops * (size / head_size))

    if head_size >= measured[-1]:
        return interpolated_ns(device.kernels[f"{kind}/{measured[-1]}"], flops)
    above = next(index for index, size in enumerate(measured) if size >= head_size)
    if above == 0 or measured[above] == head_size:
        return at(measured[above])
    low, high = measured[above - 1], measured[above]
    share = (head_size - low) / (high - low)
    return whole_ns(np.rint(at(low) * (1 - share) + at(high) * share))


def _roofline_ns(device: Device, flops: Floats, size: Floats, precision: str) -> Ints:
    seconds = size / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    if flops.any():
        peak = device.flops_per_s.get(precision)
        if peak is None:
            known = ", ".join(sorted(device.flops_per_s))
            raise ClusterError(
                f"device `{device.name}` has no {precision} arithmetic (flops_per_s lists {known}):"
                f" choose another precision"
            )
        seconds = np.maximum(seconds, flops / (peak * device.matmul_efficiency))
    return device.launch_ns + whole_ns(seconds * 1e9)


def op_durations_ns(
    kind: str,
    labels: str,
    attributes: Attributes,
    flops: Ints | Floats,
    bytes: Ints | Floats,
    precision: str,
    device: Device,
    head_size: int | None = None,
) -> Ints:
    """Durations of many firings of one op, each on its own local shapes.

    Parameters
    ----------
    kind, labels, attributes
        The op, as in `models.graph.Op`; `slice` and `pad` of the compiler move bytes only.
    flops, bytes
        Work of each firing, as `models.ops.op_work` counts it.
    precision
        Of the arithmetic, see `precision_of`; of no account without FLOPs.
    device
        Measured or from the catalogue.
    head_size
        Last dim of the first input, for kinds of attention; None elsewhere.

    Raises
    ------
    ClusterError
        The device has no rate for the precision of the op.

    Examples
    --------
    >>> from planner.clusters import device
    >>> work = np.array([10**9, 10**12])
    >>> op_durations_ns("matmul", "", {}, work, work // 100, "bf16", device("a100-sxm-80gb"))
    array([   6350, 5450195])
    """
    works, sizes = np.asarray(flops, float), np.asarray(bytes, float)
    like = priced_like(kind, device.kernels)
    if like.kind in ATTENTION and head_size is not None:
        found = _by_head_size(device, like.kind, np.rint(like.factor * works), head_size)
        if found is not None:
            return found
    if points := device.kernels.get(like.kind):
        return interpolated_ns(points, np.rint(like.factor * np.where(works > 0, works, sizes)))
    return _roofline_ns(device, works, sizes, precision)


def op_duration_ns(
    kind: str,
    labels: str,
    attributes: Attributes,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape],
    input_dtypes: Sequence[str],
    output_dtypes: Sequence[str],
    device: Device,
) -> int:
    """Duration of one firing of an op on these local shapes.

    Parameters
    ----------
    kind, labels, attributes
        The op, as in `models.graph.Op`; `slice` and `pad` of the compiler move bytes only.
    input_shapes, output_shapes, input_dtypes, output_dtypes
        What one device reads and writes.
    device
        Measured or from the catalogue.

    Raises
    ------
    ClusterError
        The device has no rate for the precision of the op.
    ModelError
        The op table has no such kind, or the shapes do not fit the labels.
    """
    inputs = [ITEMSIZE[dtype] for dtype in input_dtypes]
    outputs = [ITEMSIZE[dtype] for dtype in output_dtypes]
    flops, head_size = 0, None
    if kind in LOCAL_BOXING:
        # As much is read as lands in the smaller side: a slice reads its piece, a pad its shard.
        sizes = [prod(s) * i for s, i in zip(input_shapes, inputs, strict=True)]
        written = sum(prod(s) * i for s, i in zip(output_shapes, outputs, strict=True))
        size = written + min(sum(sizes), written)
    else:
        flops, size = op_work(
            kind, labels, attributes, input_shapes, output_shapes, inputs, outputs
        )
        if priced_like(kind, device.kernels).kind in ATTENTION:
            head_size = input_shapes[0][-1]
    precision = precision_of(kind, input_dtypes) if flops else "fp32"
    work = (np.array([flops], float), np.array([size], float))
    found = op_durations_ns(kind, labels, attributes, *work, precision, device, head_size)
    return int(found[0])
