"""Tracing: from a module, a program or a file to a list of calls, with no weights computed with.

The module is copied with a fake tensor in place of every parameter and buffer, so that tracing
neither reads nor makes a weight: a model of any size traces in the time its layers take.
"""

import copy
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.models.errors import ModelError
from millrace.models.importers.torch_export.archive import plain_archive

WRAPPED = "module."  # where the traced module hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A traced program and what it reads.

    Attributes
    ----------
    graph : torch.fx.Graph
        Its calls.
    root : torch.fx.GraphModule
        Holds the submodules that calls refer to.
    parameters, buffers : dict
        Placeholder to (name in the module, tensor); tensors may be fake.
    inputs : tuple of str
        Placeholders of the user's inputs.
    predictions : str
        The call whose value the loss is taken of: the first floating output.
    batch : int
        Samples it was traced with.
    """

    graph: Any
    root: Any
    parameters: dict[str, tuple[str, Any]]
    buffers: dict[str, tuple[str, Any]]
    inputs: tuple[str, ...]
    predictions: str
    batch: int


def load(path: str | Path) -> Any:
    """Read a `.pt2` file; nothing in it is run.

    Its example inputs, which are a pickle, are left out.

    Raises
    ------
    ModelError
        There is no such file, it is not an exported program, or it needs what would run.
    """
    import torch

    if not Path(path).is_file():
        raise ModelError(f"`{path}`: there is no such file; expected a .pt2 file")
    log = logging.getLogger("torch.export")  # prints a traceback of every file it cannot read
    silent, log.disabled = log.disabled, True
    try:
        with plain_archive(Path(path)) as plain:
            return torch.export.load(plain)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"`{path}` is not an exported program ({_first_line(error)}); write it with "
            f"torch.export.save"
        ) from None
    finally:
        log.disabled = silent


def trace(module: Any, inputs: Any) -> Any:
    """Export a module on fake tensors and return the exported program.

    Raises
    ------
    ModelError
        The module cannot be exported: the message holds the exporter's reason.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    args, kwargs = _arguments(module, inputs)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    batch = _batch([*args, *kwargs.values()])

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = list(value.shape)
        if shape and shape[0] == batch:
            shape[0] = max(batch, 2)  # one sample could not be told from a dim of size one
        with mode:
            return torch.zeros(shape, dtype=value.dtype)

    try:
        wrapper = _wrapper(_fake_copy(module, mode)).train(module.training)
        with torch.no_grad() if not _trainable(module) else torch.enable_grad():
            return torch.export.export(
                wrapper,
                tuple(fake(value) for value in args),
                {name: fake(value) for name, value in kwargs.items()},
                strict=False,
            )
    except Exception as error:
        raise ModelError(
            f"module `{type(module).__name__}` cannot be exported: {_first_line(error)}; "
            f"control flow and shapes may not depend on values (a mixture of experts that does so "
            f"can be imported from its config.json)"
        ) from error


def _trainable(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:; ")


def _arguments(module: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named inputs; positional ones by their names where `forward` has some."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    given = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    parameters = list(inspect.signature(module.forward).parameters.values())[: len(given)]
    if any(x.kind is not x.POSITIONAL_OR_KEYWORD for x in parameters):
        return given, {}
    return (), {x.name: value for x, value in zip(parameters, given, strict=True)}


def _batch(values: Sequence[Any]) -> int:
    for value in values:
        if getattr(value, "ndim", 0):
            return int(value.shape[0])
    raise ModelError("no input is a tensor with a batch dim; give example inputs")


def _fake_copy(module: Any, mode: Any) -> Any:
    """A copy of the module whose parameters and buffers are fake."""
    import torch

    memo: dict[int, Any] = {}
    with mode:
        for parameter in module.parameters():
            made = torch.empty(parameter.shape, dtype=parameter.dtype)
            memo[id(parameter)] = torch.nn.Parameter(made, parameter.requires_grad)
        for buffer in module.buffers():
            memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
    copied = copy.deepcopy(module, memo)
    # Of the ways in which transformers can compute experts one does not depend on the routing.
    if getattr(copied, "_can_set_experts_implementation", bool)():
        copied.set_experts_implementation("batched_mm")
    return copied


def _wrapper(module: Any) -> Any:
    """A module that returns only the tensor the loss is taken of."""
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return predictions(self.module(*args, **kwargs))

    return Wrapper()


def predictions(returned: Any) -> Any:
    """The tensor a loss is taken of: `logits` where there is one, else the first floating one."""
    import torch

    if isinstance(returned, torch.Tensor):
        return returned
    if hasattr(returned, "logits"):
        return returned.logits
    if isinstance(returned, Mapping):
        if "logits" in returned:
            return returned["logits"]
        returned = tuple(returned.values())
    for value in returned if isinstance(returned, list | tuple) else ():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise ModelError(
        f"the module returns a {type(returned).__name__} without a floating tensor; the loss needs "
        f"its predictions"
    )


def program_of(exported: Any, module: Any = None) -> Program:
    """Sort the placeholders of an exported program; `module` holds the real tensors, if any."""
    state = dict(exported.state_dict) | dict(exported.constants)
    if module is not None:
        named = [*module.named_parameters(remove_duplicate=False)]
        named += [*module.named_buffers(remove_duplicate=False)]
        state |= {WRAPPED + name: tensor for name, tensor in named}
        state |= {WRAPPED + name: t for name, t in _buffers_from_nothing(module).items()}
    first: dict[Any, tuple[str, Any]] = {}  # shared parameters go by the first of their names
    for name, tensor in state.items() if module is None else module.named_parameters():
        first.setdefault(_identity(tensor), (name, tensor))
    parameters, buffers, inputs = {}, {}, []
    for entry in exported.graph_signature.input_specs:
        kind, name = entry.kind.name, getattr(entry.arg, "name", "")
        if kind == "PARAMETER":
            tensor = state[entry.target]
            parameters[name] = first.get(_identity(tensor), (entry.target, tensor))
        elif kind in ("BUFFER", "CONSTANT_TENSOR"):
            buffers[name] = (entry.target, state[entry.target])
        elif kind == "USER_INPUT" and name:
            inputs.append(name)
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    shaped = [values[name] for name in inputs if getattr(values[name], "ndim", 0)]
    if not shaped:
        raise ModelError("the program has no input with a batch dim")
    return Program(
        graph=exported.graph,
        root=exported.graph_module,
        parameters=parameters,
        buffers=buffers,
        inputs=tuple(inputs),
        predictions=_predictions_of(exported, values),
        batch=whole_number(shaped[0].shape[0]),
    )


def _predictions_of(exported: Any, values: Mapping[str, Any]) -> str:
    for name in exported.graph_signature.user_outputs:
        floating = getattr(values.get(str(name)), "is_floating_point", None)
        if floating is not None and floating():
            return str(name)
    raise ModelError("the program returns no floating tensor; the loss needs its predictions")


def _identity(tensor: Any) -> Any:
    """Equal for two tensors that are one in memory."""
    if not has_values(tensor) or not tensor.numel():
        return id(tensor)
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)


def whole_number(size: Any) -> int:
    """A size as a number: that of the example where it is a symbol."""
    if isinstance(size, int):
        return size
    return int(size.node.hint)


def has_values(tensor: Any) -> bool:
    """Whether a tensor is neither fake nor on the meta device."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def _buffers_from_nothing(module: Any) -> dict[str, Any]:
    """Values of buffers that a meta module lacks, where what holds them can initialise its parts.

    Modules of transformers can (`_init_weights`), and their tables of angles are in no checkpoint.
    Only parts without parameters of their own are made real.
    """
    found: dict[str, Any] = {}
    able: dict[str, Any] = {}  # the nearest module around a part that can initialise it, by path
    for path, part in module.named_modules():
        able[path] = getattr(part, "_init_weights", able.get(path.rpartition(".")[0]))
        own = dict(part.named_buffers(recurse=False))
        if all(has_values(tensor) for tensor in own.values()) or any(part.parameters()):
            continue
        if able[path] is None:
            continue
        made = copy.deepcopy(part).to_empty(device="cpu")
        able[path](made)
        for name, tensor in made.named_buffers(recurse=False):
            found[f"{path}.{name}".lstrip(".")] = tensor
    return found
