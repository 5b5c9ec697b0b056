"""Program reader: call by call, constants worked out for real, the rest drafted.

What does not depend on the inputs or on a parameter (masks, positions, tables of angles) is
computed while reading; only what the predictions need is read at all. Calls that cannot be
expressed do not stop the reading: all of them are named in one error.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millrace.models.errors import ModelError
from millrace.models.importers.torch_export.draft import Array, Draft, DraftTensor, Route, fresh
from millrace.models.importers.torch_export.extents import Extent, ShapeError, TensorAxis
from millrace.models.importers.torch_export.node_matching import MatchedCall, kind
from millrace.models.importers.torch_export.sources import ParameterSource
from millrace.models.importers.torch_export.tracing import (
    WRAPPED,
    TracedProgram,
    has_values,
    module_path,
    whole_number,
)
from millrace.models.labels import BATCH, SEQUENCE

Kind = TypeVar("Kind")


class UnsupportedCallError(Exception):
    """A call that cannot be expressed; the message says why, or is empty."""


class _Unsupported:
    """Output of an unsupported call."""


POISON = _Unsupported()

Arguments = Mapping[str, Any]
Handler = Callable[["ProgramReader", Arguments], Any]

# Calls that have no value of their own to look at.
_SILENT = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size"}
_SHAPE_ONLY = {"zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0}
_SHAPE_ONLY |= {"empty_like": 0.0, "new_empty": 0.0, "zero": 0.0}
_FILLED = {"full_like", "new_full"}  # with the number that they are given
# Buffers that may have no values: a batch norm says itself which it reads.
_STATISTICS = ("running_mean", "running_var", "choice_bias")
_RANDOM = {"rand", "randn", "rand_like", "randn_like", "bernoulli", "multinomial", "randint"}


class BatchNumber(int):
    """Number that grows with the samples: it may say a shape, but not enter arithmetic."""


@dataclass(slots=True, kw_only=True)
class ProgramReader:
    """A program on its way to a draft.

    Parameters
    ----------
    program : Program
        What is read.
    handlers : mapping
        Name of an op to the function that drafts it.
    matchers : sequence
        Each looks back from a call for several that are one op.
    """

    program: TracedProgram
    handlers: Mapping[str, Handler]
    matchers: Sequence[Callable[[Any], MatchedCall | None]]
    draft: Draft = field(init=False)
    inputs: list[Array] = field(init=False, default_factory=list)
    unsupported: dict[str, list[str]] = field(init=False, default_factory=dict)
    # Inputs whose tokens see those behind them, and the first attention that shows them.
    both_ways: dict[str, str] = field(init=False, default_factory=dict)
    routes: dict[DraftTensor, Route] = field(init=False, default_factory=dict)  # by ids
    notes: list[str] = field(init=False, default_factory=list)
    # Inputs, and the ids that they are taken not to hold, each with the module that looks for it.
    absent_ids: dict[str, dict[int, str]] = field(init=False, default_factory=dict)
    _constants: dict[bytes, Array] = field(init=False, default_factory=dict)
    _parameters: dict[int, Array] = field(init=False, default_factory=dict)
    _batch_symbols: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.draft = Draft(batch=self.program.batch)

    def read(self) -> Array:
        """Return the predictions, everything they need drafted.

        Raises
        ------
        ModelError
            Calls that cannot be expressed, all of them by name and module path.
        """
        import torch

        nodes = list(self.program.graph.nodes)
        for node in nodes:
            value = node.meta.get("val")
            if node.name in self.program.inputs and len(getattr(value, "shape", ())) > 0:
                self._batch_symbols |= _symbols(value.shape[0])
        with torch.no_grad():
            returned = self._run(nodes)
        self._raise_unsupported()
        if not isinstance(returned, Array):
            raise ModelError("the module's predictions depend on neither its inputs nor parameters")
        if not returned.tensor.trained:
            raise ModelError(
                "the module's predictions depend on no parameter that is trained: requires_grad is "
                "off wherever there is one"
            )
        return returned

    def array(self, value: Any) -> Array:
        """A value as an array: constants become part of the graph."""
        if isinstance(value, Array):
            return value
        if isinstance(value, int | float):
            import torch

            value = torch.tensor(float(value))
        return self._constant(value)

    def number(self, value: Any) -> float | None:
        """A value as a number, if it is one.

        Raises
        ------
        UnsupportedCallError
            It counts samples.
        """
        if isinstance(value, BatchNumber):
            raise UnsupportedCallError("the number of samples enters arithmetic")
        if isinstance(value, bool | int | float):
            return float(value)
        if not isinstance(value, Array) and hasattr(value, "numel") and value.numel() == 1:
            return float(value.item())
        return None

    def _run(self, nodes: list[Any]) -> Any:
        """Read the calls that the predictions need, in order, and return the predictions."""
        wanted = next(node for node in nodes if node.name == self.program.predictions)
        rewrites = {
            node: pattern
            for node in nodes
            if node.op == "call_function" and (pattern := self._match(node)) is not None
        }
        needed = _needed(nodes, rewrites, wanted)
        last_readers = {
            source: node for node in nodes if node in needed for source in _sources(node, rewrites)
        }
        forgotten: dict[Any, list[Any]] = {}
        for source, node in last_readers.items():
            forgotten.setdefault(node, []).append(source)
        values: dict[Any, Any] = {}
        for node in nodes:
            if node not in needed:
                continue
            self.draft.where = module_path(node) or self.draft.where
            if node.op == "placeholder":
                values[node] = self._placeholder(node)
            elif node.op == "get_attr":  # the graph of a branch or loop
                values[node] = node.target
            else:
                values[node] = self._called(node, rewrites, values)
            for source in forgotten.get(node, ()):  # a mask of all positions is large
                del values[source]
        return values[wanted]

    def _match(self, node: Any) -> MatchedCall | None:
        matches = (matcher(node) for matcher in self.matchers)
        return next((match for match in matches if match is not None), None)

    def _placeholder(self, node: Any) -> Any:
        import torch

        program = self.program
        if node.name in program.parameters:
            name, tensor = program.parameters[node.name]
            return self._parameter(node, name, tensor)
        if node.name in program.buffers:
            name, tensor = program.buffers[node.name]
            name = name.removeprefix(WRAPPED)
            if node.name in program.changed:
                return MissingBuffer(f"buffer `{name}` is another one after every step")
            return tensor if has_values(tensor) else MissingBuffer(f"buffer `{name}` has no values")
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        return self._input(node.name, value)

    def _parameter(self, node: Any, name: str, tensor: Any) -> Array:
        keep = any(kind(user).startswith("conv") for user in node.users)
        key = id(tensor)
        if key not in self._parameters:
            shape = tuple(int(size) for size in tensor.shape)
            source = ParameterSource(fqn=name.removeprefix(WRAPPED), shape=shape)
            self._parameters[key] = self.draft.variable(
                source, shape, keep, trained=bool(tensor.requires_grad)
            )
        return self._parameters[key]

    def _input(self, name: str, value: Any) -> Array:
        shape = tuple(whole_number(size) for size in value.shape)
        integer = not value.is_floating_point()
        axes = [TensorAxis(Extent(size)) for size in shape]
        if axes and shape[0] == self.program.batch:
            axes[0].extent.role = BATCH
        else:
            raise ModelError(
                f"input `{name}` has shape {shape}: its first dim is not the batch "
                f"({self.program.batch} samples)"
            )
        if integer and len(axes) > 1:
            axes[1].extent.role = SEQUENCE
        if len(axes) == 4 and not integer:
            for axis, hint in zip(axes[1:], "cyx", strict=True):
                axis.extent.hint = hint
        tensor = DraftTensor(
            name=self.draft.name(name), axes=tuple(axes), kind="input", integer=integer
        )
        array = Array(tensor, tuple((axis,) for axis in axes))
        self.inputs.append(array)
        return array

    def _called(self, node: Any, rewrites: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
        name = kind(node)
        if name in _SILENT:
            return None
        scalar = _scalar(node.meta.get("val"), self._batch_symbols)
        if scalar is not None:
            return scalar
        if node in rewrites:
            name, arguments = rewrites[node]
            arguments = {key: _looked_up(value, values) for key, value in arguments.items()}
        else:
            arguments = _bound(node, values)
        try:
            if any(_holds(value, _Unsupported) for value in arguments.values()):
                if name not in _SHAPE_ONLY:
                    self._handler(node, name)
                return POISON
            return self._result(node, name, arguments, values)
        except (UnsupportedCallError, ShapeError) as error:
            reason = f" ({error})" if str(error) else ""
            self.unsupported.setdefault(f"{name}{reason}", []).append(module_path(node))
            return POISON

    def _result(self, node: Any, name: str, arguments: Arguments, values: Mapping[Any, Any]) -> Any:
        import torch

        if name in _SHAPE_ONLY:
            value = node.meta["val"]
            shape = [whole_number(size) for size in value.shape]
            return torch.full(shape, _SHAPE_ONLY[name], dtype=value.dtype)
        if name in _FILLED and self.number(arguments["fill_value"]) is not None:
            value = node.meta["val"]
            shape = [whole_number(size) for size in value.shape]
            return torch.full(shape, arguments["fill_value"], dtype=value.dtype)
        read = [value for key, value in arguments.items() if key not in _STATISTICS]
        for buffer in _those(read, MissingBuffer):
            raise UnsupportedCallError(buffer.why)
        if name in _RANDOM:
            raise UnsupportedCallError("it draws random values")
        if not any(_holds(value, Array) for value in arguments.values()):
            return _computed(node, values)
        return self._handler(node, name)(self, arguments)

    def _handler(self, node: Any, name: str) -> Handler:
        handler = self.handlers.get(name)
        if handler is None:
            raise UnsupportedCallError
        return handler

    def _constant(self, tensor: Any) -> Array:
        """A tensor as part of the graph; dims along which it is the same are left out."""
        import torch

        if tensor.dtype.is_floating_point or tensor.dtype is torch.bool:
            tensor = tensor.to(torch.float32)
        shape = tuple(tensor.shape)
        varying_dims = []
        for dim, size in enumerate(shape):
            if size > 1 and (
                tensor.stride(dim) == 0 or bool((tensor == tensor.narrow(dim, 0, 1)).all())
            ):
                tensor = tensor.narrow(dim, 0, 1)
            elif size > 1:
                varying_dims.append(dim)
        data = tensor.reshape([shape[dim] for dim in varying_dims]).contiguous().numpy()
        key = hashlib.sha256(f"{data.dtype} {data.shape}".encode() + data.tobytes()).digest()
        if key not in self._constants:
            axes = tuple(fresh(size) for size in data.shape)
            self._constants[key] = Array(
                DraftTensor(
                    name=self.draft.name(f"{self.draft.where}.constant".lstrip(".")),
                    axes=axes,
                    kind="constant",
                    integer=data.dtype.kind == "i",
                    payload=data,
                ),
                tuple((axis,) for axis in axes),
            )
        array = self._constants[key]
        groups = iter(array.dims)
        dims = tuple(
            next(groups) if dim in varying_dims else (fresh(size),) if size > 1 else ()
            for dim, size in enumerate(shape)
        )
        return Array(array.tensor, dims)

    def _raise_unsupported(self) -> None:
        if not self.unsupported:
            return
        lines = []
        for name, places in sorted(self.unsupported.items()):
            shown = ", ".join(f"`{place or 'the module itself'}`" for place in places[:3])
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            near = nearby(name, self.handlers)
            lines.append(f"`{name}` in {shown}{more}{near}")
        raise ModelError(
            f"{sum(map(len, self.unsupported.values()))} calls cannot be expressed: "
            + "; ".join(lines)
            + ". Rewrite these parts with supported ops"
        )


@dataclass(frozen=True, slots=True)
class MissingBuffer:
    """A buffer that cannot be read, and why."""

    why: str


def nearby(name: str, handlers: Mapping[str, Handler]) -> str:
    """Hint at what is supported that is called alike."""
    from difflib import get_close_matches

    bare = name.partition(" ")[0]
    if bare in handlers:
        return ""
    close = get_close_matches(bare, handlers, n=2, cutoff=0.6)
    return f" (supported: {', '.join(close)})" if close else ""


def _needed(nodes: list[Any], rewrites: Mapping[Any, Any], wanted: Any) -> set[Any]:
    """Calls that the wanted one reads, directly or not, and itself."""
    needed: set[Any] = {wanted}
    for node in reversed(nodes):
        if node in needed:
            needed |= _sources(node, rewrites)
    return needed


def _sources(node: Any, rewrites: Mapping[Any, Any]) -> set[Any]:
    """Calls that a call reads, or the ones that it stands for."""
    if node in rewrites:
        return {x for x in rewrites[node][1].values() if hasattr(x, "meta")}
    return set(node.all_input_nodes)


def _bound(node: Any, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Arguments of a call by name, defaults filled in."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {f"arg{i}": _looked_up(x, values) for i, x in enumerate(node.args)}
    arguments: dict[str, Any] = {}
    for index, argument in enumerate(schema.arguments):
        if index < len(node.args):
            arguments[argument.name] = _looked_up(node.args[index], values)
        elif argument.name in node.kwargs:
            arguments[argument.name] = _looked_up(node.kwargs[argument.name], values)
        else:
            arguments[argument.name] = argument.default_value
    return arguments


def _looked_up(value: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_looked_up(element, values) for element in value]
    if isinstance(value, dict):
        return {key: _looked_up(element, values) for key, element in value.items()}
    if hasattr(value, "all_input_nodes"):
        return values.get(value)
    return value


def _holds(value: Any, wanted: type) -> bool:
    return next(_those(value, wanted), None) is not None


def _those(value: Any, wanted: type[Kind]) -> Iterator[Kind]:
    """Objects of one type in a value, or in the lists that it is."""
    if isinstance(value, list | tuple):
        for element in value:
            yield from _those(element, wanted)
    elif isinstance(value, wanted):
        yield value


def _scalar(value: Any, batch_symbols: set[str]) -> int | float | bool | None:
    """A call's value where it is a number: a size, or arithmetic with sizes."""
    import torch

    if isinstance(value, torch.SymInt):
        number = whole_number(value)
        return BatchNumber(number) if _symbols(value) & batch_symbols else number
    if isinstance(value, int | float | bool):
        return value
    if isinstance(value, torch.SymFloat):
        raise ModelError("the program computes with a floating size, which is not supported")
    return None


def _symbols(size: Any) -> set[str]:
    expression = getattr(getattr(size, "node", None), "expr", None)
    return {str(symbol) for symbol in expression.free_symbols} if expression is not None else set()


def _computed(node: Any, values: Mapping[Any, Any]) -> Any:
    """Work out a call on constants."""
    arguments = _looked_up(node.args, values)
    keywords = {
        key: "cpu" if key == "device" else _looked_up(value, values)
        for key, value in node.kwargs.items()
        if key != "pin_memory"
    }
    try:
        return node.target(*arguments, **keywords)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UnsupportedCallError(f"it cannot be worked out: {lines[0]}") from None
