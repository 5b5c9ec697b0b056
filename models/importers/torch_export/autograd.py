"""Autograd: what PyTorch itself finds of an imported module, to hold the import against.

Dropout is off here, wherever it is written, and nothing is cast to fewer bits, as a graph has one
precision; all else is as the module's mode says.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.models.importers.torch_export.module_outputs import chosen
from millrace.models.importers.torch_export.sources import ExportedModel
from millrace.models.importers.torch_export.tracing import (
    arguments,
    by_gathered_experts,
    is_floating,
    quiet,
    whole_number,
)

Values = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGradients:
    """The loss summed over all targets, and its gradient by each parameter's name."""

    loss: float
    by_name: Mapping[str, Values]


def gradients(
    source: Any,
    inputs: Any,
    imported: ExportedModel,
    data: Mapping[str, Values],
    targets: Values,
    double: bool = False,
) -> ModuleGradients:
    """Return loss and gradients as PyTorch computes them.

    Parameters
    ----------
    source : torch.nn.Module or torch.export.ExportedProgram
        What was imported; it is copied, so that nothing of it changes.
    inputs : Any
        Example inputs of a module; of a program None.
    imported : ExportedModel
        What it was imported as.
    data, targets : mapping, array
        Values of the inputs by their names in the program, and the ids that are to be predicted.
    double : bool
        Compute in double precision.
    """
    import torch

    with quiet():
        module, args, kwargs = _called(source, inputs)
    module = module.cpu().double() if double else module.cpu().float()
    names = [name for name, _ in imported.inputs]
    args, kwargs = _with_data(args, kwargs, names, data, double)
    with torch.enable_grad(), _exact():
        logits, _ = chosen(module(*args, **kwargs), imported.output, is_floating)
        loss = _loss(imported, logits, targets)
        if loss.requires_grad:
            loss.backward()
    named = dict(module.named_parameters(remove_duplicate=False))
    return ModuleGradients(
        loss=float(loss.detach()),
        by_name={
            source.fqn: _numbers(named[source.fqn]) for source in imported.parameters.values()
        },
    )


def _called(source: Any, inputs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Module of its own, and the arguments that it is called with."""
    import torch

    if isinstance(source, torch.nn.Module):
        args, kwargs = arguments(source, inputs)
        return by_gathered_experts(copy.deepcopy(source)), args, kwargs
    from torch.utils import _pytree

    nodes = {node.name: node for node in source.graph.nodes}
    flat = []
    for entry in source.graph_signature.input_specs:
        if entry.kind.name == "USER_INPUT":
            value = getattr(nodes.get(entry.arg.name), "meta", {}).get("val")
            if isinstance(value, torch.Tensor):
                shape = [whole_number(size) for size in value.shape]
                flat.append(torch.zeros(shape, dtype=value.dtype))
            else:
                flat.append(getattr(entry.arg, "value", value))
    args, kwargs = _pytree.tree_unflatten(flat, source.call_spec.in_spec)
    return copy.deepcopy(source.module()), tuple(args), dict(kwargs)


def _with_data(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    data: Mapping[str, Values],
    double: bool,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with other values, in the order in which the program names them."""
    import torch
    from torch.utils import _pytree

    flat, form = _pytree.tree_flatten((tuple(args), dict(kwargs)))
    leaves = []
    for name, value in zip(names, flat, strict=True):
        if name in data:
            value = torch.from_numpy(data[name]).to(value.dtype)
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = value.double() if double and value.is_floating_point() else value
        leaves.append(value)
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = _pytree.tree_unflatten(leaves, form)
    return arguments


def _loss(imported: ExportedModel, logits: Any, targets: Values) -> Any:
    import torch

    functional = torch.nn.functional
    ids = torch.from_numpy(targets).reshape(-1)
    if imported.loss == "logistic":
        wanted = ids.to(logits.dtype)
        return functional.binary_cross_entropy_with_logits(
            logits.reshape(-1), wanted, reduction="sum"
        )
    assert imported.classes_dim is not None
    rows = logits.movedim(imported.classes_dim, -1)
    return functional.cross_entropy(rows.reshape(-1, rows.shape[-1]), ids.long(), reduction="sum")


def _numbers(parameter: Any) -> Values:
    if parameter.grad is None:
        return np.zeros(tuple(parameter.shape), np.float32)
    gradient: Values = parameter.grad.numpy()
    return gradient


def _is_cast(tensor: Any, options: Any) -> bool:
    """True if a copy changes the width of numbers alone."""
    dtype = (options or {}).get("dtype")
    return dtype is not None and dtype.is_floating_point and is_floating(tensor)


def _exact() -> Any:
    """Mode in which no call drops anything, and all numbers stay as wide as they came."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten

    class Exact(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is aten._to_copy.default and _is_cast(args[0], kwargs):
                return args[0].clone()
            if function is aten.native_dropout.default:
                return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
            if function is aten.bernoulli_.float:  # its mask is divided by the share afterwards
                share = (kwargs or {}).get("p", args[1] if len(args) > 1 else 0.5)
                return args[0].fill_(share)
            return function(*args, **(kwargs or {}))

    return Exact()
