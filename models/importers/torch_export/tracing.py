"""Tracing: from a module, a program or a file to a list of calls, with no weights computed with.

The module is copied with a fake tensor in place of every parameter and buffer, so that tracing
neither reads nor makes a weight: a model of any size traces in the time its layers take.
"""

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from millrace.models.errors import ModelError
from millrace.models.importers.predictions import LOGITS
from millrace.models.importers.torch_export.archive import plain_archive
from millrace.models.importers.torch_export.module_outputs import chosen

WRAPPED = "module."  # the traced module hangs there
STOPPED = "wrap_with_set_grad_enabled"  # a region with gradients off or on


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """A traced program and what it reads.

    Attributes
    ----------
    graph : torch.fx.Graph
        Its calls.
    parameters, buffers : dict
        Placeholder to (name in the module, tensor); tensors may be fake.
    changed : frozenset of str
        Placeholders of the buffers that are others after a step.
    inputs : tuple of str
        Placeholders of the user's inputs.
    predictions : str
        The call whose value the loss is taken of.
    batch : int
        Samples it was traced with.
    """

    graph: Any
    parameters: dict[str, tuple[str, Any]]
    buffers: dict[str, tuple[str, Any]]
    changed: frozenset[str]
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
    try:
        with quiet(), plain_archive(Path(path)) as plain:
            return torch.export.load(plain)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"`{path}` is not an exported program ({_first_line(error)}); write it with "
            f"torch.export.save"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch.export from warning of itself, and from printing its graph where it fails."""
    names = ("torch.export", "torch.fx.experimental.symbolic_shapes")
    logs = [logging.getLogger(name) for name in names]
    silent = [log.disabled for log in logs]
    try:
        for log in logs:
            log.disabled = True
        with redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, was in zip(logs, silent, strict=True):
            log.disabled = was


def trace(module: Any, inputs: Any, output: str | int | None = None) -> Any:
    """Export a module on fake tensors and return the exported program.

    It returns first what the loss is taken of (see `outputs.chosen`), then what else is floating.

    Parameters
    ----------
    module : torch.nn.Module
        May be on the meta device.
    inputs : tensor, sequence or mapping
        Example inputs; only shapes and dtypes of tensors are read.
    output : str or int, optional
        Output, of several, that the loss is taken of.

    Raises
    ------
    ModelError
        The module cannot be exported: the message holds the exporter's reason.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    args, kwargs = arguments(module, inputs)
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
        wrapper = _wrapper(_fake_copy(module, mode), output).train(module.training)
        with quiet(), torch.enable_grad() if _trainable(module) else torch.no_grad():
            return torch.export.export(
                wrapper,
                tuple(fake(value) for value in args),
                {name: fake(value) for name, value in kwargs.items()},
                strict=False,
            )
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"module `{type(module).__name__}` cannot be exported: {_first_line(error)}; "
            f"control flow and shapes may not depend on values"
        ) from error


def _trainable(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:; ")


def arguments(module: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named inputs; positional ones go by name where `forward` has names."""
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
    """Copy of the module whose parameters and buffers are fake."""
    import torch

    memo: dict[int, Any] = {}
    with mode:
        for parameter in module.parameters():
            fake_values = torch.empty(parameter.shape, dtype=parameter.dtype)
            memo[id(parameter)] = torch.nn.Parameter(fake_values, parameter.requires_grad)
        for buffer in module.buffers():
            memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
    copied = copy.deepcopy(module, memo)
    return by_gathered_experts(copied)


def by_gathered_experts(module: Any) -> Any:
    """The module itself, its experts told to compute in a way that any routing and dtype takes.

    Of the ways in which transformers can compute experts one does not depend on the routing.
    """
    if getattr(module, "_can_set_experts_implementation", bool)():
        module.set_experts_implementation("batched_mm")
    return module


def _wrapper(module: Any, output: str | int | None) -> Any:
    """Module that returns the tensor the loss is taken of by the name of logits, and others."""
    import torch

    class KeywordWrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            logits, others = chosen(self.module(*args, **kwargs), output, is_floating)
            return {LOGITS: logits, "others": others}

    return KeywordWrapper()


def functionalized(exported: Any) -> Any:
    """The program without writes: what it wrote through views and in place, it makes anew.

    A region without gradients would vanish on the way, so what it returns is detached first.
    """
    import torch

    graph, signature = copy.deepcopy(exported.graph), copy.deepcopy(exported.graph_signature)
    for old, new in zip(exported.graph.nodes, graph.nodes, strict=True):
        new.name = old.name  # a copy gives another name to what is called like a built-in
    for node in list(graph.nodes):
        if getattr(node.target, "__name__", "") == STOPPED and node.args[0] is False:
            for part in list(node.users):
                with graph.inserting_after(part):
                    stopped = graph.call_function(torch.ops.aten.detach.default, (part,))
                stopped.meta = dict(part.meta)
                part.replace_all_uses_with(
                    stopped, lambda user, detached=stopped: user is not detached
                )
                signature.replace_all_uses(part.name, stopped.name)
    changed = torch.export.ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )
    try:
        with quiet():
            return changed.run_decompositions({})
    except Exception as error:
        raise ModelError(
            f"the program's writes in place cannot be taken out ({_first_line(error)}); write it "
            f"without them"
        ) from error


def _check_constants(exported: Any) -> None:
    """Refuse a value of the program that it holds as a constant: what `.data` reads, say."""
    for name, value in exported.graph_signature.inputs_to_lifted_tensor_constants.items():
        is_lifted = "lifted_tensor" in value  # it is no attribute of the module
        if is_lifted and not has_values(exported.constants[value]):
            nodes = (node for node in exported.graph.nodes if node.name == name)
            places = {module_path(user) for node in nodes for user in node.users}
            where = ", ".join(f"`{place or 'the module itself'}`" for place in sorted(places))
            raise ModelError(
                f"{where} reads `.data` of a value (or makes a tensor past the tracer), which "
                f"torch.export takes as a constant; use `detach()`, or compute with the value"
            )


def module_path(node: Any) -> str:
    """Path of the module that a call stands in."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    return path.removeprefix(WRAPPED.rstrip(".")).removeprefix(".")


def program_of(
    exported: Any, module: Any = None, *, output: str | int | None = None
) -> TracedProgram:
    """Sort the placeholders of an exported program.

    Parameters
    ----------
    exported : torch.export.ExportedProgram
        As `trace` or torch made it.
    module : torch.nn.Module, optional
        Holds the real tensors, if any, and was traced for `output`.
    output : str or int, optional
        Output that the loss is taken of.
    """
    _check_constants(exported)
    exported = functionalized(exported)
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
    changed = set(exported.graph_signature.buffers_to_mutate.values())
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    shaped = [values[name] for name in inputs if getattr(values[name], "ndim", 0)]
    if not shaped:
        raise ModelError("the program has no input with a batch dim")
    return TracedProgram(
        graph=exported.graph,
        parameters=parameters,
        buffers=buffers,
        changed=frozenset(name for name, (target, _) in buffers.items() if target in changed),
        inputs=tuple(inputs),
        predictions=_predictions_of(exported, output, traced=module is not None),
        batch=whole_number(shaped[0].shape[0]),
    )


def _predictions_of(exported: Any, output: str | int | None, traced: bool) -> str:
    """Name of the call the loss is taken of, among those that the program returns."""
    from torch.utils import _pytree

    nodes = {node.name: node for node in exported.graph.nodes}

    def floating(name: Any) -> bool:
        return str(name) in nodes and is_floating(nodes[str(name)].meta.get("val"))

    names = list(exported.graph_signature.user_outputs)
    returned = _pytree.tree_unflatten(names, exported.call_spec.out_spec)
    predictions, others = chosen(returned, LOGITS if traced else output, floating)
    if output is None:
        _check_others(exported, nodes[predictions], [nodes[name] for name in others])
    return str(predictions)


def _check_others(exported: Any, predictions: Any, others: Sequence[Any]) -> None:
    """Refuse to leave out what has parameters of its own."""
    parameters = exported.graph_signature.inputs_to_parameters
    gone = _ancestors(others) - _ancestors([predictions])
    lost = sorted(parameters[node.name] for node in gone if node.name in parameters)
    if lost:
        shown = ", ".join(f"`{name.removeprefix(WRAPPED)}`" for name in lost[:3])
        raise ModelError(
            f"the module returns more than its predictions, and what is left out has "
            f"{len(lost)} parameters of its own ({shown}{' ...' * (len(lost) > 3)}), which would "
            f"not be trained; to leave them out, say what the loss is taken of (output=)"
        )


def _ancestors(nodes: Sequence[Any]) -> set[Any]:
    """Calls that some calls read, directly or not, and these themselves."""
    reached, queue = set(nodes), list(nodes)
    while queue:
        new = [node for node in queue.pop().all_input_nodes if node not in reached]
        reached.update(new)
        queue += new
    return reached


def is_floating(value: Any) -> bool:
    """True if a value is a tensor of numbers."""
    floating = getattr(value, "is_floating_point", None)
    return floating is not None and bool(floating())


def _identity(tensor: Any) -> Any:
    """Key that is equal for two tensors that are one in memory."""
    if not has_values(tensor) or not tensor.numel():
        return id(tensor)
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)


def whole_number(size: Any) -> int:
    """A size as a number: that of the example where it is a symbol."""
    if isinstance(size, int):
        return size
    if size.node.hint is None:
        raise ModelError(
            f"a size of the program depends on values (`{size}`): choose places by constants, or "
            f"multiply by a mask"
        )
    return int(size.node.hint)


def has_values(tensor: Any) -> bool:
    """True if a tensor is neither fake nor on the meta device."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def _buffers_from_nothing(module: Any) -> dict[str, Any]:
    """Values of buffers that a meta module lacks, where what holds them can initialise its parts.

    Modules of transformers can (`_init_weights`), and their tables of angles are in no checkpoint.
    Only parts without parameters of their own are made real.
    """
    buffers: dict[str, Any] = {}
    able: dict[str, Any] = {}  # the nearest module around a part that can initialise it, by path
    for path, part in module.named_modules():
        able[path] = getattr(part, "_init_weights", able.get(path.rpartition(".")[0]))
        part_buffers = dict(part.named_buffers(recurse=False))
        if all(has_values(tensor) for tensor in part_buffers.values()) or list(part.parameters()):
            continue
        if able[path] is None:
            continue
        real_part = copy.deepcopy(part).to_empty(device="cpu")
        able[path](real_part)
        for name, tensor in real_part.named_buffers(recurse=False):
            buffers[f"{path}.{name}".lstrip(".")] = tensor
    return buffers
