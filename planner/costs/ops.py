"""Ops: the duration of one firing.

Where the device was measured its table is interpolated: that of the op's form where there is one
(`millrace.planner.costs.tables.op_forms`), moved to what its shape was measured at (`shape_tables`
beside it), else that of its kind, and of its precision before one
of none (`kind/form@precision`, `kind/form`, `kind@precision`, `kind`); for a kind that no profile
times, that of its like, see `millrace.planner.proxies`. Elsewhere products cost tiles and waves
(`products`), attention what a flash kernel does (`attention`), never less than their bytes,
recurrences several times their bytes, and all other ops their bytes (`traffic`).

Shapes: arrays [firings], see `millrace.planner.costs.op_batch`; nanoseconds are whole.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.models.labels import parse
from millrace.models.ops.orthogonal import matrix_sizes
from millrace.planner.cluster import Device, Software
from millrace.planner.collectives import LOCAL_BOXING
from millrace.planner.costs.attention import (
    CHOICE,
    KINDS,
    SPARSE,
    attention_seconds,
    choice_seconds,
    sparse_seconds,
)
from millrace.planner.costs.expert_routing import (
    busiest_op,
    expert_kernels_ns,
    in_expert_kernel,
    launches_waited_for,
)
from millrace.planner.costs.gemm import (
    DEPTHWISE_RATE,
    ITEM_BYTES,
    ProductSizes,
    is_depthwise,
    product_seconds,
    sizes_of,
    winograd_speed,
)
from millrace.planner.costs.memory_bound import (
    RECURRENCE_RATES,
    bandwidth_bytes_per_s,
    kernel_ns,
    memory_bound_seconds,
    recurrence_seconds,
)
from millrace.planner.costs.op_batch import Attributes, OpFirings, Shape, firing_of
from millrace.planner.costs.tables.gpu_tables import (
    MIRRORS,
    moving_ns,
    short_ns,
    sooner,
    traffic_ns,
)
from millrace.planner.costs.tables.op_forms import form_table
from millrace.planner.costs.tables.profile_tables import Points, interpolated_ns, whole_ns
from millrace.planner.costs.tables.shape_tables import is_measured, shaped_ns
from millrace.planner.fusion.fused_traffic import Share
from millrace.planner.proxies import Like, priced_like

# Kinds whose tables are measured per head size, the last dim of their first input.
ATTENTION = ("attention", "attention_grad")

NO_SOFTWARE = Software()


def _by_head_size(
    device: Device, kind: str, precision: str, flops: Floats, head_size: int
) -> Ints | None:
    """Durations of attention from the tables `kind/head_size`, None where there are none.

    The softmax costs per score, the products per score and feature, so FLOPs alone do not tell the
    time: between two measured head sizes it is interpolated at an equal number of scores. Tables
    of the precision alone count where there are any.
    """
    tables = _by_size(device.kernels, kind, f"@{precision}") or _by_size(device.kernels, kind, "")
    if not tables:
        return None
    measured = sorted(tables)

    def at_size(size: int) -> Ints:
        return interpolated_ns(tables[size], flops * (size / head_size))

    if head_size >= measured[-1]:
        return interpolated_ns(tables[measured[-1]], flops)
    above = next(index for index, size in enumerate(measured) if size >= head_size)
    if above == 0 or measured[above] == head_size:
        return at_size(measured[above])
    low, high = measured[above - 1], measured[above]
    share = (head_size - low) / (high - low)
    return whole_ns(np.rint(at_size(low) * (1 - share) + at_size(high) * share))


def _by_size(tables: Mapping[str, Points], kind: str, suffix: str) -> dict[int, Points]:
    """Tables `kind/head_size` with a suffix, by head size."""
    table_by_size = {}
    for name, points in tables.items():
        size = name.removeprefix(f"{kind}/").removesuffix(suffix)
        if name == f"{kind}/{size}{suffix}" and size.isdecimal():
            table_by_size[int(size)] = points
    return table_by_size


def _table_ns(firings: OpFirings, device: Device) -> Ints | None:
    """Durations from measured tables; None where nothing like the op was measured."""
    like = like_of(firings, device)
    points = _points(firings, device, like)

    def by_size(work: Floats) -> Ints | None:
        if like.kind not in ATTENTION or not firings.sizes:
            return None
        head_size = int(np.max(firings.size(parse(firings.labels).inputs[0][-1])))
        flops = np.rint(like.factor * work)
        return _by_head_size(device, like.kind, firings.precision, flops, head_size)

    def tabulated(work: Floats) -> Ints:
        durations_ns = by_size(work)
        if durations_ns is None:
            return interpolated_ns(points or (), np.rint(like.factor * work))
        return durations_ns

    attention_ns = by_size(firings.work)
    if points is None and attention_ns is None:
        return None
    if not device.multiprocessors:
        return shaped_ns(firings, device, tabulated)
    if attention_ns is not None:
        return attention_ns + whole_ns(added_ns(firings, device))
    bytes_per_s = bandwidth_bytes_per_s(device)
    if firings.sizes:
        durations_ns = tabulated(firings.work)
        return moving_ns(durations_ns, firings.bytes, firings.beside, bytes_per_s)
    return traffic_ns(points or (), np.rint(like.factor * firings.work), bytes_per_s)


def like_of(firings: OpFirings, device: Device) -> Like:
    """Kind whose table prices an op on a device, and its factor.

    On a GPU what an op computes hides behind the bytes that it moves, so no factor is above 1.
    """
    like = priced_like(firings.kind, device.kernels, firings.precision)
    if device.multiprocessors and not firings.sizes:
        return Like(like.kind, min(like.factor, 1.0))
    return like


def least_ns(firings: OpFirings, device: Device) -> Floats:
    """Nanoseconds that a GPU's memory takes for the operands of a product itself; else 0."""
    if not device.multiprocessors or not firings.sizes or firings.kind in ATTENTION:
        return np.zeros(np.shape(firings.bytes))
    operand_bytes: Floats = firings.bytes - np.asarray(firings.beside, float)
    return operand_bytes / bandwidth_bytes_per_s(device) * 1e9


def added_ns(firings: OpFirings, device: Device) -> Floats:
    """Nanoseconds that come on top of what tables by FLOPs say, see `tables.gpu_tables`."""
    if not device.multiprocessors or not firings.sizes:
        return np.zeros(np.shape(firings.bytes))
    bytes_per_s = bandwidth_bytes_per_s(device)
    kind = like_of(firings, device).kind
    if kind not in ATTENTION:
        beside: Floats = np.asarray(firings.beside, float) / bytes_per_s * 1e9
        return beside
    tables = device.kernel_bytes
    timed = _by_size(tables, kind, f"@{firings.precision}") or _by_size(tables, kind, "")
    head_size = int(np.max(firings.size(parse(firings.labels).inputs[0][-1])))
    size = min(timed, key=lambda each: abs(each - head_size), default=head_size)
    wider = size / head_size  # of as many scores
    moved_bytes: Floats = np.asarray(firings.bytes, float) * wider
    added = short_ns(firings.flops * wider, moved_bytes, timed.get(size, ()), bytes_per_s)
    return added / wider


def _points(firings: OpFirings, device: Device, like: Like) -> Points | None:
    """Measured points of an op's form, else of the kind that it is priced like."""
    if like.kind == firings.kind and firings.kind not in LOCAL_BOXING:
        name = form_table(firings.kind, firings.labels, firings.attributes)
        tables = device.kernels
        if points := tables.get(f"{name}@{firings.precision}") or tables.get(name):
            return points
    return kind_points(like.kind, device, firings.precision) or None


def kind_points(kind: str, device: Device, precision: str) -> Points:
    """Measured points of a kind, of its precision before one of none; empty where there are none.

    On a GPU a convolution takes no longer than its mirror of equal work was timed to take, see
    `tables.gpu_tables`.
    """
    tables = device.kernels
    points, mirror = (
        tables.get(f"{name}@{precision}") or tables.get(name) or ()
        for name in (kind, MIRRORS.get(kind, kind))
    )
    return sooner(points, mirror) if device.multiprocessors and points != mirror else points


def _seconds(firings: OpFirings, device: Device, software: Software) -> Floats:
    """Seconds by the data sheet, without what every kernel takes."""
    if not firings.sizes:
        return memory_bound_seconds(firings, device, software)
    moving_s = firings.bytes / bandwidth_bytes_per_s(device)
    if firings.kind == "newton_schulz":
        return _orthogonal_seconds(firings, device)
    if firings.kind in KINDS:
        return np.maximum(moving_s, attention_seconds(firings, device, software))
    if firings.kind in RECURRENCE_RATES:
        return recurrence_seconds(firings, device)
    if firings.kind in SPARSE:
        return np.maximum(moving_s, sparse_seconds(firings, device, software))
    if firings.kind == CHOICE:
        return np.maximum(moving_s, choice_seconds(firings, device))
    if is_depthwise(firings):
        return moving_s / DEPTHWISE_RATE
    product_s = product_seconds(sizes_of(firings), firings.precision, device)
    if device.multiprocessors:
        product_s = product_s / winograd_speed(firings)
    return np.maximum(moving_s, product_s)


def _orthogonal_seconds(firings: OpFirings, device: Device) -> Floats:
    """Seconds of the rounds of a `newton_schulz`: three products each, read and written."""
    batch, rows, columns = matrix_sizes(firings.labels, firings.attributes, firings.sizes)
    short, long = np.minimum(rows, columns), np.maximum(rows, columns)
    item = ITEM_BYTES.get(firings.precision, 4)
    total: Floats = np.zeros(np.shape(firings.bytes))
    for m, n, k in ((short, short, long), (short, short, short), (short, long, short)):
        product_s = product_seconds(ProductSizes(batch, m, n, k), firings.precision, device)
        moved = item * batch * (m * k + k * n + m * n)
        total = total + np.maximum(product_s, moved / bandwidth_bytes_per_s(device))
    return total * float(firings.attributes["rounds"])


def times_beyond(firing: OpFirings, device: Device) -> float:
    """Work of an op over that of the last point of its measured table; 0 where nothing measured it.

    Parameters
    ----------
    firing : OpFirings
        One firing of it.
    device : Device
        Measured or from the catalogue.
    """
    if is_measured(firing, device):
        return 1.0
    like = like_of(firing, device)
    work = float(np.max(firing.work)) * like.factor
    if firing.kind in ATTENTION:
        suffixes = (f"@{firing.precision}", "")
        by_size = (_by_size(device.kernels, like.kind, suffix) for suffix in suffixes)
        tables = next(filter(None, by_size), {})
        return work / max((points[-1][0] for points in tables.values()), default=float("inf"))
    points = _points(firing, device, like)
    return work / points[-1][0] if points else 0.0


def _following_ns(firings: OpFirings, device: Device, software: Software) -> Ints:
    """Time that an op adds to the kernel it is done in: its bytes, at the device's best rate.

    Where the device was measured the rate is that of the largest point of the op's table, on a GPU
    without the time of starting.
    """
    like = like_of(firings, device)
    if points := _points(firings, device, like):
        work, duration_ns = points[-1]
        rate_ns = duration_ns / work
        if device.multiprocessors:
            moving_ns_per_byte = 1e9 / bandwidth_bytes_per_s(device)
            rate_ns = min(rate_ns, max((duration_ns - points[0][1]) / work, moving_ns_per_byte))
        return whole_ns(np.float64(like.factor * rate_ns) * firings.bytes)
    return whole_ns(memory_bound_seconds(firings, device, software) * 1e9)


def op_durations_ns(firings: OpFirings, device: Device, software: Software = NO_SOFTWARE) -> Ints:
    """Durations of many firings of one op, each on its own local shapes.

    Parameters
    ----------
    firings
        The op and what it does each time.
    device
        Measured or from the catalogue.
    software
        What drives the device: its fusion counts where nothing was measured.

    Raises
    ------
    ClusterError
        The device has no rate for the precision of the op.

    Examples
    --------
    >>> from millrace.planner.clusters import device
    >>> sizes = {label: np.array([512, 8192]) for label in "mnk"}
    >>> moved = 6 * sizes["m"] ** 2
    >>> work = OpFirings("matmul", "m k, k n -> m n", {}, sizes, moved, "bf16")
    >>> op_durations_ns(work, device("a100-sxm-80gb")).tolist()
    [7540, 4786407]
    """
    times = busiest_op(firings, software.load)
    if firings.follows:
        return whole_ns(times * _following_ns(firings, device, software))
    measured_ns = _table_ns(firings, device) if device.kernels else None
    if measured_ns is not None:
        return whole_ns(times * measured_ns)
    if in_expert_kernel(firings, software):
        return whole_ns(np.zeros(np.shape(firings.bytes)))
    waits_ns = software.host_ns * launches_waited_for(firings, software)
    begun_ns = kernel_ns(device) + waits_ns + whole_ns(expert_kernels_ns(firings, software))
    return begun_ns + whole_ns(times * _seconds(firings, device, software) * 1e9)


def op_duration_ns(
    kind: str,
    labels: str,
    attributes: Attributes,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape],
    input_dtypes: Sequence[str],
    output_dtypes: Sequence[str],
    device: Device,
    software: Software = NO_SOFTWARE,
    share: Share | None = None,
) -> int:
    """Duration of one firing of an op on these local shapes.

    Parameters
    ----------
    kind, labels, attributes
        The op, as in `millrace.models.graph.Op`; `slice` and `pad` of the compiler move bytes only.
    input_shapes, output_shapes, input_dtypes, output_dtypes
        What one device reads and writes.
    device
        Measured or from the catalogue.
    software
        What drives the device.
    share
        What it moves and pays as one of the ops of a fused actor.

    Raises
    ------
    ClusterError
        The device has no rate for the precision of the op.
    ModelError
        The op table has no such kind, or the shapes do not fit the labels.
    """
    firing = firing_of(
        kind, labels, attributes, input_shapes, output_shapes, input_dtypes, output_dtypes, share
    )
    return int(op_durations_ns(firing, device, software)[0])
