"""Op batch: firings of one op on many local shapes, and the facts that their times follow from.

The actors of a plan have one shape each, the options of a search thousands: both are arrays here.

Shapes: arrays [firings], one entry for each local shape of the op; a scalar stands for all.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.models.graph import ITEMSIZE
from millrace.models.labels import bind, parse
from millrace.models.ops import op_kind, op_work
from millrace.planner.cluster import Device
from millrace.planner.collectives import LOCAL_BOXING
from millrace.planner.errors import ClusterError
from millrace.planner.fusion.fused_traffic import Share

Shape = tuple[int, ...]
Attributes = Mapping[str, int | float | str | bool]

DRAWN = "input"  # the kind of op that draws samples of the data

PRECISION = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

# Drawing a sample (a random stream of its own) takes as long as drawing so many bytes of one: 10 of
# the 25 us of a sample of 784 features, on one core of a Xeon, 2026-11.
SAMPLE_BYTES = 2048

# Formats of eight or four bits that a product may be done in (attribute `arithmetic` of its op):
# rows of `Device.flops_per_s` whose rate they have, the first that there is.
NARROW = {"fp8": ("fp8",), "mxfp8": ("mxfp8", "fp8"), "nvfp4": ("nvfp4",)}
# Blackwell multiplies both formats of four bits at one rate (PTX ISA 8.8, tcgen05.mma, kinds mxf4
# and mxf4nvf4, read 2026-11).
NARROW |= {"mxfp4": ("mxfp4", "nvfp4")}


class OpFirings(NamedTuple):
    """Firings of one op, each on its own local shapes.

    Attributes
    ----------
    kind, labels, attributes
        The op, as in `millrace.models.graph.Op`; `slice` and `pad` of the compiler move bytes only.
    sizes
        Size of every label on one device; empty for kinds without products.
    spans
        Size of every label of any kind, where shapes of one form may be told apart; else empty.
    bytes
        Bytes read and written, as `millrace.models.ops.op_work` counts it.
    precision
        That of the arithmetic, see `precision_of`; without products only a measured device's tables
        tell one from another.
    follows
        It is done inside the kernel of another op (`millrace.planner.fusion`) and launches nothing.
    samples
        Samples of the data that an `input` draws, each of which costs its host as much as
        `SAMPLE_BYTES`.
    beside
        Bytes, of those in `bytes`, that other ops of a product's kernel move behind it.
    """

    kind: str
    labels: str
    attributes: Attributes
    sizes: Mapping[str, Ints]
    bytes: Ints
    precision: str
    follows: bool = False
    samples: Ints | int = 0
    spans: Mapping[str, Ints] = {}
    beside: Ints | int = 0

    @property
    def work(self) -> Floats:
        """Work that measured tables go by: FLOPs, or bytes for what multiplies nothing."""
        flops = self.flops
        return np.where(flops > 0, flops, self.bytes + SAMPLE_BYTES * np.asarray(self.samples))

    @property
    def flops(self) -> Floats:
        """FLOPs as the op table counts them: attention in full, causal or not."""
        total = np.zeros(np.shape(self.bytes))
        if self.sizes:
            operands, row = parse(self.labels).operands, op_kind(self.kind)
            if row.flops is not None:
                total = total + row.flops(self.labels, self.attributes, self.sizes)
            for pair in row.products:
                points = dict.fromkeys(
                    label for operand in pair for dim in operands[operand] for label in dim
                )
                total = total + 2.0 * self.size(points)
        return total

    def size(self, labels: Sequence[str] | Mapping[str, object]) -> Floats:
        """Points that these labels span together."""
        points: Floats = np.array(1.0)
        for label in labels:
            points = points * (self.sizes or self.spans)[label]
        return points


def precision_of(kind: str, dtypes: Sequence[str], attributes: Attributes | None = None) -> str:
    """Precision in which an op computes: its attribute `arithmetic`, or by its inputs.

    These give that of the wider one of its first product. Inputs that only scale or join what is
    multiplied (the logsumexp of an attention) do not count. An op that multiplies nothing has that
    of its first floating input, fp32 without one.

    Parameters
    ----------
    kind : str
        Row of `millrace.models.ops.OPS`; only asked where no attribute decides.
    dtypes : sequence of str
        Dtypes of the inputs, in the order of the labels (`bfloat16`, `int32`).
    attributes : mapping or None
        Attributes of the op, of which `arithmetic` counts if it is one of `NARROW`; None: none.

    Returns
    -------
    str
        One of `PRECISION` (fp64, fp32, bf16, fp16) or of `NARROW`, as `peak_flops_per_s` takes it.

    Raises
    ------
    ModelError
        The op table has no such kind.

    Examples
    --------
    >>> precision_of("attention_grad", [*["bfloat16"] * 4, "float32", "bfloat16"])
    'bf16'
    >>> precision_of("matmul", ["bfloat16"] * 2, {"arithmetic": "fp8"})
    'fp8'
    >>> precision_of("layer_norm_grad_input", [*["bfloat16"] * 3, *["float32"] * 2])
    'bf16'
    """
    arithmetic = (attributes or {}).get("arithmetic")
    if arithmetic in NARROW:
        return str(arithmetic)
    products = op_kind(kind).products
    if not products:
        return next((PRECISION[dtype] for dtype in dtypes if dtype in PRECISION), "fp32")
    inputs = [dtypes[operand] for operand in products[0] if operand < len(dtypes)]
    floating = [dtype for dtype in inputs if dtype in PRECISION]
    return PRECISION[max(floating, key=lambda dtype: ITEMSIZE[dtype])] if floating else "fp32"


def peak_flops_per_s(device: Device, precision: str) -> float:
    """Dense peak of a device [FLOP/s].

    Parameters
    ----------
    device : Device
        Its `flops_per_s` lists a rate per precision.
    precision : str
        As `precision_of` gives it; mxfp8 has fp8's rate, and mxfp4 nvfp4's, where the device
        lists none of its own.

    Raises
    ------
    ClusterError
        The device has no such arithmetic; lists what it has.
    """
    for name in NARROW.get(precision, (precision,)):
        if name in device.flops_per_s:
            return device.flops_per_s[name]
    precisions = ", ".join(sorted(device.flops_per_s))
    raise ClusterError(
        f"device `{device.name}` has no {precision} arithmetic (flops_per_s lists {precisions}):"
        f" choose another precision"
    )


def firing_of(
    kind: str,
    labels: str,
    attributes: Attributes,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape],
    input_dtypes: Sequence[str],
    output_dtypes: Sequence[str],
    share: Share | None = None,
) -> OpFirings:
    """One firing on the local shapes of its operands, in arrays of one element.

    Parameters
    ----------
    kind, labels, attributes : str, str, mapping
        The op, as in `millrace.models.graph.Op`; `slice` and `pad` of the compiler move bytes only.
    input_shapes, output_shapes : sequence of tuple of int
        Shapes on one device, in the order of the labels.
    input_dtypes, output_dtypes : sequence of str
        Dtypes of the same operands; of the inputs they give the precision too.
    share : Share or None
        As part of a fused actor: bytes per element that each operand counts with, and whether it
        launches nothing. None: it is alone, and they are the dtypes' own.

    Raises
    ------
    ModelError
        The op table has no such kind, or the shapes do not fit the labels.
    """
    inputs: Sequence[int] = [ITEMSIZE[dtype] for dtype in input_dtypes]
    outputs: Sequence[int] = [ITEMSIZE[dtype] for dtype in output_dtypes]
    if share is not None:
        inputs, outputs = share.inputs, share.outputs
    sizes: dict[str, Ints] = {}
    spans: dict[str, Ints] = {}
    precision = "fp32"
    if kind in LOCAL_BOXING:
        # As much is read as lands in the smaller side: a slice reads its piece, a pad its shard.
        read = sum(prod(s) * i for s, i in zip(input_shapes, inputs, strict=True))
        written = sum(prod(s) * i for s, i in zip(output_shapes, outputs, strict=True))
        moved = written + min(read, written)
    else:
        moved = op_work(
            kind, labels, attributes, input_shapes, output_shapes, inputs, outputs
        ).bytes
        expression = parse(labels)
        if len(expression.inputs) == len(input_shapes):  # what waits for another op reads it too
            bound = bind(expression, input_shapes, output_shapes)
            spans = {label: np.array([size]) for label, size in bound.items()}
        sizes = spans if op_kind(kind).multiplies else {}
        precision = precision_of(kind, input_dtypes, attributes)
    follows = share is not None and share.follows
    samples = output_shapes[0][0] if kind == DRAWN and output_shapes[0] else 0
    beside = 0 if share is None else share.beside * prod(output_shapes[0])
    moved_bytes = np.array([moved])
    return OpFirings(
        kind, labels, attributes, sizes, moved_bytes, precision, follows, samples, spans, beside
    )
