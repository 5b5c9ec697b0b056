"""Image nodes: rules of convolution and pooling.

Shape legend: b batch, c channels, y x rows and columns, j i the same after the op, n channels made,
q p rows and columns of a window, g groups.
"""

from typing import NamedTuple

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.rules.layout_nodes import one_factor, summed
from millrace.models.importers.onnx.values import Dims, Traced, UnsupportedNodeError, factors_of
from millrace.models.labels import BATCH


class Window(NamedTuple):
    """Movement of a window: pairs of (rows, columns)."""

    size: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]

    def output_size(self, image: tuple[int, ...], node: OnnxNode) -> tuple[int, int]:
        """Rows and columns that the window makes of an image's."""
        counts = tuple(
            (size + 2 * pad - dilation * (window - 1) - 1) // stride + 1
            for size, window, stride, pad, dilation in zip(image, *self, strict=True)
        )
        if min(counts) < 1:
            raise ModelError(f"{node.title}: an image of {image} is smaller than its window")
        return counts[0], counts[1]

    @property
    def attributes(self) -> dict[str, int | float | str | bool]:
        """Attributes that ops of windows share."""
        return {
            "stride_y": self.strides[0],
            "stride_x": self.strides[1],
            "pad_y": self.pads[0],
            "pad_x": self.pads[1],
        }


def _window(node: OnnxNode, size: tuple[int, ...] | None) -> Window:
    size = node.integers("kernel_shape") or size
    if size is None:
        raise ModelError(f"{node.title} lacks attribute `kernel_shape`; the file is malformed")
    if len(size) != 2:
        raise UnsupportedNodeError(f"has a window of {len(size)} dims (only images are read)")
    padding = node.text("auto_pad", "NOTSET")
    if padding not in ("NOTSET", "VALID"):
        raise UnsupportedNodeError(f"has auto_pad {padding} (export it with explicit pads)")
    pads = node.integers("pads") or (0, 0, 0, 0)
    strides = node.integers("strides") or (1, 1)
    dilations = node.integers("dilations") or (1, 1)
    if len(pads) != 4 or len(strides) != 2 or len(dilations) != 2:
        raise ModelError(f"{node.title}: pads, strides or dilations are not of an image")
    if min(pads) < 0 or min(strides) < 1 or min(dilations) < 1 or min(size) < 1:
        raise ModelError(f"{node.title}: a negative pad, or a stride or dilation below 1")
    if pads[:2] != pads[2:]:
        raise UnsupportedNodeError(f"has asymmetric pads {pads}")
    pairs = ((int(a), int(b)) for a, b in (size, strides, pads[:2], dilations))
    return Window(*pairs)


def _image(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Input laid out as b c y x, each dim there and of one factor (the channels grouped)."""
    x = low.floating(node, 0)
    if len(x.dims) != 4:
        raise UnsupportedNodeError(f"has an input of {len(x.dims)} dims (only images are read)")
    if [f.name for f in x.dims[0]] != [BATCH]:
        raise UnsupportedNodeError("has an input whose first dim is not the batch")
    dims = tuple(dim or (low.fresh(1),) for dim in x.dims)
    laid = low.laid_out(x.seen_as(dims), dims, low.name(node))
    return one_factor(low, one_factor(low, laid, 2), 3)


def conv(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add a convolution, in groups or not, and its bias."""
    x = _image(low, node)
    weight = low.traced(node, 1)
    if len(weight.dims) != 4:
        raise UnsupportedNodeError(
            f"has a weight of {len(weight.dims)} dims (only images are read)"
        )
    window = _window(node, weight.shape[2:])
    groups = node.integer("group", 1)
    x, weight = _grouped(low, node, x, weight, groups)
    if window.size != weight.shape[2:]:
        raise ModelError(f"{node.title}: kernel_shape {window.size} for a weight {weight.shape}")
    channels = weight.dims[0] if groups == 1 else (x.dims[1][0], *weight.dims[0][1:])
    rows, columns = (low.fresh(size) for size in window.output_size(x.shape[2:], node))
    out: Dims = (x.dims[0], channels, (rows,), (columns,))
    ends = (*factors_of((*x.dims[2:], *weight.dims[2:])), rows, columns)
    names = dict(zip(ends, "yxqpji", strict=True))
    names |= {weight.dims[1][0]: "c", weight.dims[0][-1]: "n"}
    names |= {x.dims[1][0]: "g"} if groups > 1 else {}
    attributes = window.attributes
    if window.dilations != (1, 1):
        attributes |= {"dilation_y": window.dilations[0], "dilation_x": window.dilations[1]}
    biased = low.has_input(node, 2) and low.scalar(node.inputs[2]) != 0
    convolved = low.emit(
        "conv",
        low.name(node, "conv") if biased else low.name(node),
        (x, weight),
        (out,),
        whole_factors=ends,
        names=names,
        attributes=attributes,
    )
    if not biased:
        return convolved
    bias = low.traced(node, 2)
    return low.elementwise("add", low.name(node), (convolved, bias.seen_as((*bias.dims, (), ()))))


def _grouped(
    low: OnnxLowering, node: OnnxNode, x: Traced, weight: Traced, groups: int
) -> tuple[Traced, Traced]:
    """Let the channels of input and weight share factors: (g c) and (g n) c."""
    output_channels, group_channels = weight.shape[:2]
    if groups < 1 or output_channels % groups or group_channels * groups != x.shape[1]:
        raise ModelError(
            f"{node.title}: {groups} groups and a weight of {weight.shape} for {x.shape[1]} "
            f"channels"
        )
    x = one_factor(low, x, 1)
    weight = weight.renewed(low.fresh)
    seen = tuple(dim or (low.fresh(1),) for dim in weight.dims)
    weight = low.laid_out(weight.seen_as(seen), seen, low.name(node, "weight"))
    for axis in range(4):
        weight = one_factor(low, weight, axis)
    inner, group, new = (
        low.fresh(group_channels),
        low.fresh(groups),
        low.fresh(output_channels // groups),
    )
    outer = (inner,) if groups == 1 else (group, inner)
    first = (new,) if groups == 1 else (group, new)
    x = x.replaced({x.dims[1][0]: outer})
    return x, weight.replaced({weight.dims[0][0]: first, weight.dims[1][0]: (inner,)})


def pool(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add the largest (MaxPool) or the mean (AveragePool) of every window."""
    if len([name for name in node.outputs if name]) > 1:
        raise UnsupportedNodeError("gives indices away")
    window = _window(node, None)
    if node.integer("ceil_mode", 0) or window.dilations != (1, 1):
        raise UnsupportedNodeError("has ceil_mode or dilations")
    average = node.kind == "AveragePool"
    if average and window.pads != (0, 0) and not node.integer("count_include_pad", 0):
        raise UnsupportedNodeError("leaves its padding out of the mean (count_include_pad=0)")
    if any(2 * pad > size for pad, size in zip(window.pads, window.size, strict=True)):
        raise UnsupportedNodeError("has padding of more than half its window")
    x = _image(low, node)
    rows, columns = (low.fresh(size) for size in window.output_size(x.shape[2:], node))
    out: Dims = (*x.dims[:2], (rows,), (columns,))
    names = dict(zip((*x.dims[2], *x.dims[3], rows, columns), "yxji", strict=True))
    attributes = window.attributes | {"size_y": window.size[0], "size_x": window.size[1]}
    return low.emit(
        "avg_pool" if average else "max_pool",
        low.name(node),
        (x,),
        (out,),
        whole_factors=names,
        names=names,
        attributes=attributes,
    )


def global_average(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add the mean over all rows and columns."""
    x = low.floating(node, 0)
    return summed(low, node, x, set(range(2, len(x.dims))), True, mean=True)
