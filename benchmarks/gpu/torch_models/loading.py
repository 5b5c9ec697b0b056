"""Modules of PyTorch for specifications of the zoo, and the zoo's values in their parameters.

torch keeps a linear layer as [outputs, inputs], and several of ours in one; a convolution as
[outputs, inputs, rows, columns]. Linear layers of experts are as ours, [experts, inputs, outputs],
several of ours beside each other in the last dim.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.gpu.torch_models.bert import Bert
from benchmarks.gpu.torch_models.gpt import GPT
from benchmarks.gpu.torch_models.llama import Llama
from benchmarks.gpu.torch_models.resnet import ResNet
from millrace.models.spec import ModelSpec

Array = NDArray[Any]


def module_of(spec: ModelSpec, vocab_multiple: int = 1, grouped_experts: bool = False) -> Any:
    """Module of a specification, on torch's default device, with any weights."""
    if spec.family == "resnet":
        return ResNet(spec.config)
    if spec.family == "bert":
        return Bert(spec.config)
    if spec.family == "decoder":
        return Llama(spec.config, vocab_multiple, grouped_experts)
    return GPT(spec.config, vocab_multiple)


def parts(module: Any) -> Iterator[tuple[str, str, Tensor, tuple[str, ...]]]:
    """Yield path, kind (weight or bias), parameter, and the zoo's variables that it holds."""
    for path, ours in module.sources().items():
        try:
            part = module.get_submodule(path)
        except AttributeError:  # a block without a shortcut, or without experts, holds None
            continue
        if part is None:
            continue
        for kind in ("weight", "bias"):
            parameter = getattr(part, kind, None)
            if parameter is not None:
                yield path, kind, parameter, tuple(f"{name}.{kind}" for name in ours)


def load(module: Any, values: Mapping[str, Array]) -> None:
    """Fill every parameter from values of the zoo's variables; rows beyond stay zero."""
    filled = 0
    with torch.no_grad():
        for path, kind, parameter, names in parts(module):
            linear = kind == "weight" and isinstance(module.get_submodule(path), nn.Linear)
            parameter.zero_()
            into = parameter.movedim(-1, 0) if parameter.dim() == 3 else parameter
            begin = 0
            for name in names:
                value = torch.from_numpy(np.ascontiguousarray(values[name])).to(parameter.device)
                value = _as_torch(value, parameter, linear)
                into[begin : begin + len(value)] = value
                begin += len(value)
            filled += 1
    assert filled == len(list(module.parameters())), "a parameter has no value"


def _as_torch(value: Tensor, parameter: Tensor, linear: bool) -> Tensor:
    """Value of one of our variables in the order of torch's dims."""
    if linear:
        inward = parameter.shape[1]
        # The inputs are the dims in front, however many they are.
        return value.reshape(inward, -1).T
    if parameter.dim() == 3:
        return value.movedim(-1, 0)  # what lies beside each other comes first
    if parameter.dim() == 4 and value.shape[1:] != parameter.shape[1:]:
        return value.permute(0, 3, 1, 2)  # of images whose channels come last
    return value.reshape(-1, *parameter.shape[1:])


def zoo_variables(
    module: Any, of: Mapping[str, Array], gradients: bool = False
) -> dict[str, Array]:
    """Parameters (or gradients) as the zoo's variables, in the shapes of those in `of`."""
    values: dict[str, Array] = {}
    for path, kind, parameter, names in parts(module):
        linear = kind == "weight" and isinstance(module.get_submodule(path), nn.Linear)
        tensor = parameter.grad if gradients else parameter
        array = tensor.detach().float().cpu().numpy()
        begin = 0
        for name in names:
            shape = of[name].shape
            if parameter.dim() == 3:
                values[name] = array[..., begin : begin + shape[-1]]
                begin += shape[-1]
                continue
            inward = parameter.shape[1] if parameter.dim() > 1 else 1
            rows = int(np.prod(shape)) // inward if linear else shape[0]
            rows = int(np.prod(shape)) if parameter.dim() == 1 else rows
            region = array[begin : begin + rows]
            begin += rows
            if parameter.dim() == 4 and region.shape != shape:
                region = region.transpose(0, 2, 3, 1)
            values[name] = (region.T if linear else region).reshape(shape)
    return values
