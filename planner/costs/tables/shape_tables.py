"""Shape tables: points measured at one shape of an op, which overrule the table of its form.

Ops of one form and equal work differ in time where their sizes do: a convolution of many places and
few channels takes several times as long as one of few places and many channels. A table of the form
says how time grows with work; where a shape was measured, its points say what the time is there.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.cluster import Device
from millrace.planner.collectives import LOCAL_BOXING
from millrace.planner.costs.op_batch import OpFirings
from millrace.planner.costs.tables.op_forms import form_table, shape_labels, shape_suffix
from millrace.planner.costs.tables.profile_tables import whole_ns

NEAR = 1.5  # A point says what ops of up to so many times its work take, and so much less.


def shape_of(firings: OpFirings) -> tuple[str, str] | None:
    """Names of the table of an op's form and of its shape; None where it has no shape of its own.

    Parameters
    ----------
    firings : OpFirings
        One firing of it.

    Examples
    --------
    >>> spans = {"b": np.array([8]), "k": np.array([64]), "n": np.array([32])}
    >>> moved = np.array([4 * (8 * 64 + 64 * 32 + 8 * 32)])
    >>> shape_of(OpFirings("matmul", "b k, k n -> b n", {}, {}, moved, "fp32", spans=spans))
    ('matmul/a b, b c -> a c', '64 32')
    """
    if firings.kind in LOCAL_BOXING or not firings.spans:
        return None
    entries = shape_labels(firings.labels)
    if not entries:
        return None
    sizes = [int(np.max(firings.size(entry))) for entry in entries]
    table = form_table(firings.kind, firings.labels, firings.attributes)
    return table, " ".join(map(str, sizes)) + shape_suffix(firings.attributes)


def is_measured(firings: OpFirings, device: Device) -> bool:
    """True where the op's own shape was measured at about its work; its form, where it has none.

    Parameters
    ----------
    firings : OpFirings
        One firing of it.
    device : Device
        A measured one.
    """
    names, work = shape_of(firings), max(float(np.max(firings.work)), 1.0)
    if names is None:
        table = firings.kind
        if firings.kind not in LOCAL_BOXING:
            table = form_table(firings.kind, firings.labels, firings.attributes)
        points = device.kernels.get(table) or device.kernels.get(firings.kind) or ()
        return bool(points) and points[0][0] / NEAR <= work <= points[-1][0] * NEAR
    table, shape = names
    points = device.shapes.get(table, {}).get(shape, ())
    return any(1 / NEAR <= work / point <= NEAR for point, _ in points)


def shaped_ns(firings: OpFirings, device: Device, tabulated: Callable[[Floats], Ints]) -> Ints:
    """Durations of firings: what their shapes were measured at, or what a table says of their work.

    Between, below and above the points of a shape its time grows with work as the table does.

    Parameters
    ----------
    firings : OpFirings
        Firings of an op, on local shapes of any sizes.
    device : Device
        Measured; its `shapes` count.
    tabulated : callable
        Durations of amounts of work by the table of the form, or of the kind.
    """
    durations = tabulated(firings.work)
    entries = shape_labels(firings.labels) if firings.spans else ()
    if not entries:
        return durations
    by_shape = device.shapes.get(form_table(firings.kind, firings.labels, firings.attributes))
    if not by_shape:
        return durations
    spans = [np.broadcast_to(firings.size(entry), durations.shape) for entry in entries]
    work = np.maximum(np.broadcast_to(firings.work, durations.shape), 1.0)
    moved = durations.astype(float)
    for shape, points in by_shape.items():
        sizes = _sizes(shape, shape_suffix(firings.attributes))
        if len(sizes) != len(spans):
            continue
        fits = np.logical_and.reduce(
            [span == size for span, size in zip(spans, sizes, strict=True)]
        )
        if fits.any():
            works, measured_ns = np.array(points, float).T
            ratios = np.log(measured_ns / tabulated(works))
            moved[fits] *= np.exp(np.interp(np.log(work[fits]), np.log(works), ratios))
    return whole_ns(np.rint(moved))


@lru_cache(maxsize=4096)
def _sizes(shape: str, suffix: str) -> tuple[int, ...]:
    """Sizes of a shape by its name; empty where other attributes are in it."""
    numbers = shape.removesuffix(suffix)
    return tuple(map(int, numbers.split())) if numbers.replace(" ", "").isdecimal() else ()
