"""An ONNX file in plain values: nodes, initializers and inputs; all that is odd is refused.

The only file that touches the `onnx` package, and only when it is used.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from millrace.models.documents import read_bytes
from millrace.models.errors import ModelError
from millrace.models.importers.onnx.values import Array

BYTES_MAX = 2**31  # no message of protobuf is longer; larger models keep their weights beside them
OPSET_MIN = 17
OWN_DOMAINS = ("", "ai.onnx")
INSTALL = "pip install '.[onnx]' in Millrace's checkout"
_PARAMETER_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"  # written by torch.onnx.export
_SCOPES = "pkg.torch.onnx.name_scopes"  # written by it too


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxNode:
    """One node: its kind, its names, and its attributes as numbers, texts, lists or arrays."""

    kind: str
    name: str
    path: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Name of the node in messages: kind, name and the module path that produced it."""
        return f"{self.kind} `{self.name}`" + (f" (in `{self.path}`)" if self.path else "")

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is one integer."""
        return int(self._typed(name, (int,), default))

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is one number."""
        return float(self._typed(name, (int, float), default))

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a text."""
        return str(self._typed(name, (str,), default))

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers, or None where it is left out."""
        numbers = self.attributes.get(name)
        if numbers is None:
            return None
        if not isinstance(numbers, list) or not all(isinstance(item, int) for item in numbers):
            raise ModelError(f"{self.title}: attribute `{name}` is not a list of integers")
        return tuple(numbers)

    def _typed(self, name: str, types: tuple[type, ...], default: Any) -> Any:
        attribute = self.attributes.get(name, default)
        if attribute is None:
            raise ModelError(f"{self.title} lacks attribute `{name}`; the file is malformed")
        if not isinstance(attribute, types):
            raise ModelError(f"{self.title}: attribute `{name}` is {attribute!r}, of another type")
        return attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Initializer:
    """A tensor kept in the file: its values may lie in a file that is not there.

    `trained` is what the exporter said of it (parameter or buffer), None where it said nothing.
    """

    name: str
    shape: tuple[int, ...]
    floating: bool
    array: Array | None
    trained: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """An input of the graph; a symbolic dim is its name, one left open an empty text."""

    name: str
    dims: tuple[int | str, ...]
    floating: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxSource:
    """Content of a file."""

    name: str
    nodes: tuple[OnnxNode, ...]
    initializers: Mapping[str, Initializer]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]


def read_file(path: Path) -> OnnxSource:
    """Read a file, with the weights that lie in or beside it.

    Raises
    ------
    ModelError
        The file is not there or no ONNX model, its opset is too old, or a tensor is malformed.
    """
    onnx = _onnx(path)
    content = read_bytes(path, "ONNX file", bytes_max=BYTES_MAX, error=ModelError)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's decoder raises errors of several packages
        raise ModelError(f"`{path}` is not an ONNX file: {error}") from None
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError(f"`{path}` is not an ONNX file: it holds no graph with an output")
    _check_opset(path, model)
    if model.functions:
        try:
            model = _inlined(model)
        except Exception as error:  # the native library reports a bad model so
            raise ModelError(f"`{path}`: its functions cannot be inlined: {error}") from None
    try:
        return _source(onnx, path, model)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"`{path}` is malformed: {error}") from None


def _onnx(path: Path) -> Any:
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError:
        raise ModelError(
            f"`{path}`: reading ONNX files needs the package onnx: {INSTALL}"
        ) from None
    return onnx


def _inlined(model: Any) -> Any:
    from onnx.inliner import inline_local_functions

    return inline_local_functions(model)


def _check_opset(path: Path, model: Any) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain in OWN_DOMAINS]
    if not versions:
        raise ModelError(f"`{path}` names no opset; export it with opset {OPSET_MIN} or newer")
    if max(versions) < OPSET_MIN:
        raise ModelError(
            f"`{path}` is of opset {max(versions)}; {OPSET_MIN} or newer is read: export it again "
            f"or convert it with onnx.version_converter"
        )


def _source(onnx: Any, path: Path, model: Any) -> OnnxSource:
    graph = model.graph
    if any(isinstance(name, bytes) for name in _names(graph)):  # protobuf leaves it as bytes
        raise ModelError(f"`{path}` is malformed: a name in it is not UTF-8 text")
    if graph.sparse_initializer:
        raise ModelError(f"`{path}` holds sparse initializers, which are not read")
    kinds = {
        info.name: entry.value
        for info in (*graph.value_info, *graph.input)
        for entry in info.metadata_props
        if entry.key == _PARAMETER_KIND
    }
    initializers = {
        tensor.name: _initializer(onnx, path, tensor, kinds.get(tensor.name))
        for tensor in graph.initializer
    }
    return OnnxSource(
        name=graph.name or path.stem,
        nodes=tuple(_node(onnx, path, index, node) for index, node in enumerate(graph.node)),
        initializers=initializers,
        inputs=tuple(_input(onnx, i) for i in graph.input if i.name not in initializers),
        outputs=tuple(output.name for output in graph.output),
    )


def _names(graph: Any) -> Iterator[Any]:
    """Names in a graph, all of them."""
    yield graph.name
    for named in (*graph.input, *graph.output, *graph.initializer):
        yield named.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _initializer(onnx: Any, path: Path, tensor: Any, kind: str | None) -> Initializer:
    types = onnx.TensorProto
    floating = tensor.data_type in (types.FLOAT, types.FLOAT16, types.BFLOAT16, types.DOUBLE)
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise ModelError(f"`{path}`: initializer `{tensor.name}` has shape {shape}")
    return Initializer(
        name=tensor.name,
        shape=shape,
        floating=floating,
        array=_array(onnx, path, tensor),
        trained={"PARAMETER": True, "BUFFER": False}.get(kind or ""),
    )


def _array(onnx: Any, path: Path, tensor: Any) -> Array | None:
    """Values of a tensor; None where they lie in a file that is not there."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return _plain(onnx.numpy_helper.to_array(tensor), tensor)
    places = {entry.key: entry.value for entry in tensor.external_data}
    folder = path.parent.resolve()
    file = (folder / places.get("location", "")).resolve()
    if not file.is_relative_to(folder):
        raise ModelError(f"`{path}`: the data of `{tensor.name}` lie outside its folder ({file})")
    if not file.is_file():
        return None
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    offset, size = int(places.get("offset", 0)), prod(tensor.dims) * np.dtype(dtype).itemsize
    if offset < 0 or offset + size > file.stat().st_size:
        raise ModelError(f"`{file}` is too short to hold `{tensor.name}`")
    if not size:
        return np.zeros(tuple(tensor.dims), dtype)
    mapped = np.memmap(file, np.uint8, mode="r", offset=offset, shape=(size,))
    return _plain(mapped.view(dtype).reshape(tuple(tensor.dims)), tensor)


def _plain(array: Array, tensor: Any) -> Array:
    """Bring bfloat16, which NumPy has not, to float32."""
    if array.shape != tuple(tensor.dims):
        raise ModelError(f"tensor `{tensor.name}` holds {array.shape}, not {tuple(tensor.dims)}")
    return array.astype(np.float32) if array.dtype.kind not in "fiubUOS" else array


def _node(onnx: Any, path: Path, index: int, node: Any) -> OnnxNode:
    output = next((name for name in node.output if name), f"node_{index}")
    kind = node.op_type if node.domain in OWN_DOMAINS else f"{node.domain}.{node.op_type}"
    properties = {entry.key: entry.value for entry in node.metadata_props}
    return OnnxNode(
        kind=kind,
        name=node.name or output,
        path=_module_path(properties.get(_SCOPES, ""), node.name),
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={
            attribute.name: _attribute(onnx, path, attribute) for attribute in node.attribute
        },
    )


def _module_path(scopes: str, name: str) -> str:
    """Last module of a list such as "['', 'layers.0', 'layers.0.attn', 'linear_3']"."""
    pieces = [piece.strip().strip("'\"") for piece in scopes.strip("[]").split(",")]
    modules = [piece for piece in pieces[:-1] if piece]
    if modules:
        return modules[-1]
    return ".".join(name.split("/")[:-1]).strip(".") if "/" in name else ""


def _attribute(onnx: Any, path: Path, attribute: Any) -> Any:
    kinds = onnx.AttributeProto
    if attribute.type == kinds.TENSOR:
        return _array(onnx, path, attribute.t)
    if attribute.type in (kinds.FLOAT, kinds.INT, kinds.STRING, kinds.FLOATS, kinds.INTS):
        attribute_value = onnx.helper.get_attribute_value(attribute)
        if isinstance(attribute_value, bytes):
            return attribute_value.decode("utf-8", "replace")
        return (
            list(attribute_value)
            if attribute.type in (kinds.FLOATS, kinds.INTS)
            else attribute_value
        )
    return onnx.AttributeProto.AttributeType.Name(attribute.type)


def _input(onnx: Any, info: Any) -> GraphInput:
    kind = info.type.tensor_type
    types = onnx.TensorProto
    if not kind.HasField("shape"):
        raise ModelError(f"input `{info.name}` has no shape; export the model with one")
    floating = kind.elem_type in (types.FLOAT, types.FLOAT16, types.BFLOAT16, types.DOUBLE)
    if not floating and kind.elem_type not in (types.INT32, types.INT64, types.BOOL):
        raise ModelError(f"input `{info.name}` is neither floating nor integer")
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.shape.dim
    )
    if any(isinstance(dim, int) and dim < 1 for dim in dims):
        raise ModelError(f"input `{info.name}` has shape {dims}; every dim is at least 1")
    return GraphInput(name=info.name, dims=dims, floating=floating)
