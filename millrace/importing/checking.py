"""Checking: a PyTorch module or program as imported, held against PyTorch itself.

Where the weights are real and a step is small enough, loss and all gradients of one random batch
are computed twice: by the graph, on one device, and by PyTorch's autograd in the module. An import
that is further from PyTorch than rounding is refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from millrace.models.errors import ModelError
from millrace.models.graph import ITEMSIZE, with_batch
from millrace.models.ops import model_flops
from millrace.models.spec import TrainingSpec

if TYPE_CHECKING:
    from millrace.models.importers.torch_export import ExportedModel
    from millrace.models.importers.torch_export.autograd import ModuleGradients

Values = NDArray[Any]

CHECKED_FLOPS = 2 * 10**10  # of a step: a second or so on a few cores
CHECKED_BYTES = 2**30  # of all its tensors, which the check keeps
TOLERANCE = 1e-4  # of a gradient's largest value: fp32 through some ten layers
_SMALL = 1e-3  # of the largest gradient: below it one is rounding alone (the bias of keys)
_ROUNDINGS = 10  # how much further than PyTorch's own fp32 from fp64 an import may be
SIXTEEN = ("bf16", "fp16", "fp8", "mxfp8", "mxfp4", "nvfp4")  # NumPy has no such arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportCheck:
    """Distance of an import from PyTorch.

    Attributes
    ----------
    loss_error : float
        Relative error of the loss of a random batch.
    gradient_error : float
        The largest over all parameters, relative to the parameter's own largest gradient.
    worst_parameter : str
        The parameter that has it.
    """

    loss_error: float
    gradient_error: float
    worst_parameter: str

    @property
    def line(self) -> str:
        """Sentence that says what the check gave."""
        return (
            f"checked against PyTorch: the loss is {self.loss_error:.1e} off, gradients "
            f"{self.gradient_error:.1e} at most (`{self.worst_parameter}`)"
        )


def checked(imported: "ExportedModel", source: Any, inputs: Any = None) -> str:
    """Sentence that says what checking an import gave, or why it was not checked.

    Parameters
    ----------
    imported : ExportedModel
        In a precision that NumPy computes in.
    source : torch.nn.Module or torch.export.ExportedProgram
        The module, or the program.
    inputs : tensor, sequence or mapping, optional
        Example inputs of the module; None for a program.

    Returns
    -------
    str
        Without a full stop.

    Raises
    ------
    ModelError
        The import is further from PyTorch than rounding; names the worst parameter.
    """
    reason = _reason_unchecked(imported)
    return (
        f"not checked against PyTorch: {reason}" if reason else check(imported, source, inputs).line
    )


def check(imported: "ExportedModel", source: Any, inputs: Any = None, seed: int = 0) -> ImportCheck:
    """Distance of an import from the module, or program, that it is of.

    Parameters
    ----------
    imported : ExportedModel
        As for `checked`; it has values.
    source : torch.nn.Module or torch.export.ExportedProgram
        As for `checked`.
    inputs : tensor, sequence or mapping, optional
        As for `checked`.
    seed : int
        Of the random batch.

    Returns
    -------
    ImportCheck
        Errors of the loss and of the gradients, no larger than rounding explains.

    Raises
    ------
    ModelError
        The import is further from PyTorch than rounding; names the worst parameter.
    """
    graph = imported.graph
    if inputs is None:
        return _checked(imported, source, inputs, seed)
    # The check takes another number of samples than the trace: code that counts them shows then.
    more = replace(imported, graph=with_batch(graph, graph.batch + 1))
    try:
        return _checked(more, source, inputs, seed)
    except _FixedError:
        return _checked(imported, source, inputs, seed)
    except ModelError:
        _checked(imported, source, inputs, seed)
        raise ModelError(
            f"`{graph.name}` computes with the number of samples ({graph.batch} in the example), "
            f"which a graph cannot: write it so that a sample does not depend on how many there are"
        ) from None


class _FixedError(Exception):
    """A module does not run with another number of samples."""


def _checked(imported: "ExportedModel", source: Any, inputs: Any, seed: int) -> ImportCheck:
    """Check with as many samples as the graph has."""
    with np.errstate(all="ignore"):  # what overflows here overflows in PyTorch, or is told below
        return _compare_with_pytorch(imported, source, inputs, seed)


def _compare_with_pytorch(
    imported: "ExportedModel", source: Any, inputs: Any, seed: int
) -> ImportCheck:
    """Check in fp32, and in fp64 where that is further off than the tolerance."""
    from millrace.models.importers.torch_export.autograd import gradients

    data = _batch(imported, np.random.default_rng(seed))
    given = {name: data.pop(op) for name, op in imported.inputs if op}
    (targets,) = data.values()
    asked = (source, inputs, imported, given, targets)
    ours = _reference(imported, {op: given[name] for name, op in imported.inputs if op} | data)
    try:
        theirs = _by_variable(imported, gradients(*asked), ours[1])
    except ModelError:
        raise
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        raise _FixedError(str(error)) from error
    comparison = _compared(imported, ours, theirs)
    if max(comparison.loss_error, comparison.gradient_error) <= TOLERANCE:
        return comparison
    exact = _by_variable(imported, gradients(*asked, double=True), ours[1])
    rounding = _compared(imported, theirs, exact)
    allowed = max(TOLERANCE, _ROUNDINGS * max(rounding.loss_error, rounding.gradient_error))
    if max(comparison.loss_error, comparison.gradient_error) <= allowed:
        return comparison
    raise ModelError(
        f"`{imported.graph.name}` as imported is not what PyTorch computes: the loss is "
        f"{comparison.loss_error:.1e} off and the gradient of `{comparison.worst_parameter}` "
        f"{comparison.gradient_error:.1e}, where rounding explains {allowed:.1e}; please report it "
        f"with the module"
    )


def _reason_unchecked(imported: "ExportedModel") -> str:
    """Reason why an import cannot be checked, empty where it can."""
    from millrace.models.training import training_graph

    if imported.values is None:
        return "the module has no values"
    for name, value in imported.values.items():
        if not np.isfinite(value).all():
            return f"`{imported.parameters[name].fqn}` holds values that are no finite numbers"
    if imported.precision in SIXTEEN:
        return f"NumPy has no arithmetic in {imported.precision}"
    graph = training_graph(imported.graph, TrainingSpec())
    flops = model_flops(graph)
    tensor_bytes = sum(prod(tensor.shape) * ITEMSIZE[tensor.dtype] for tensor in graph.tensors)
    if flops > CHECKED_FLOPS:
        return f"a step computes {flops / 1e9:,.0f} GFLOP ({CHECKED_FLOPS / 1e9:.0f} at most are)"
    if tensor_bytes > CHECKED_BYTES:
        return (
            f"a step holds {tensor_bytes / 2**30:,.1f} GiB "
            f"({CHECKED_BYTES / 2**30:.0f} at most are)"
        )
    return ""


def _batch(imported: "ExportedModel", random: np.random.Generator) -> dict[str, Values]:
    """Random values of every input, and the targets, by their ops."""
    values_by_op: dict[str, Values] = {}
    absent = {op: imported.absent_ids.get(name, ()) for name, op in imported.inputs if op}
    for op in imported.graph.ops:
        if op.kind != "input":
            continue
        tensor = imported.graph.tensor(op.outputs[0])
        if tensor.dtype.startswith("int"):
            ids = np.arange(max(1, int(op.attributes["values"])))
            allowed = np.setdiff1d(ids, absent.get(op.name, ()))
            values_by_op[op.name] = random.choice(allowed, tensor.shape).astype(np.int32)
        else:
            values_by_op[op.name] = random.normal(size=tensor.shape).astype(np.float32)
    return values_by_op


@dataclass(frozen=True, slots=True)
class _Batch:
    """Dataset of one batch, by source."""

    by_source: Mapping[str, Values]
    description: str = "one random batch"

    def read(self, source: Any, samples: NDArray[np.int64]) -> Values:
        """Samples of a source."""
        rows: Values = self.by_source[source.name][samples]
        return rows


def _reference(
    imported: "ExportedModel", data: Mapping[str, Values]
) -> tuple[float, dict[str, Values]]:
    """Loss, and gradients by variable, as the graph has them; nothing is dropped."""
    from millrace.executor.reference import Reference
    from millrace.models.training import STEP_TOTALS, training_graph

    assert imported.values is not None
    ops = tuple(
        msgspec.structs.replace(op, attributes={**op.attributes, "rate": 0.0})
        if op.kind == "dropout"
        else op
        for op in imported.graph.ops
    )
    forward = msgspec.structs.replace(imported.graph, ops=ops)
    by_source = {str(op.attributes["source"]): data[op.name] for op in ops if op.kind == "input"}
    reference = Reference(training_graph(forward, TrainingSpec()), 1, _Batch(by_source), 0)
    for variable, value in imported.values.items():
        np.copyto(reference.values[variable], value)
    reference.accumulate_gradients()
    return float(reference.values[STEP_TOTALS][0]), reference.gradients()


def _by_variable(
    imported: "ExportedModel", module_gradients: "ModuleGradients", of: Iterable[str]
) -> tuple[float, dict[str, Values]]:
    """Loss, and gradients by variable, as PyTorch has them."""
    sources = imported.parameters
    return module_gradients.loss, {
        name: sources[name].read(module_gradients.by_name[sources[name].fqn]) for name in of
    }


def _compared(
    imported: "ExportedModel",
    ours: tuple[float, Mapping[str, Values]],
    theirs: tuple[float, Mapping[str, Values]],
) -> ImportCheck:
    """Distance of `ours` from `theirs`."""
    loss, wanted = theirs
    largest = max((float(np.abs(value).max()) for value in wanted.values()), default=0.0)
    errors = {
        imported.parameters[name].fqn: _apart(ours[1][name], value, _SMALL * largest)
        for name, value in wanted.items()
    }
    worst = max(errors, key=errors.__getitem__, default="")
    return ImportCheck(
        loss_error=_apart(np.asarray(ours[0]), np.asarray(loss), 1e-30),
        gradient_error=errors.get(worst, 0.0),
        worst_parameter=worst,
    )


def _apart(ours: Values, theirs: Values, least: float) -> float:
    """Largest difference, relative to the largest value (`least` is added to that).

    Where one of the two alone has no finite number, they are infinitely far apart.
    """
    difference = np.abs(ours.astype(np.float64) - theirs)
    if not np.isfinite(difference).all():
        same = np.array_equal(np.isfinite(ours), np.isfinite(theirs))
        return 0.0 if same and not np.isfinite(theirs).any() else float("inf")
    worst, largest = difference.max(initial=0.0), np.abs(theirs).max(initial=0.0) + least
    return float(worst / largest) if worst and largest else float("inf") if worst else 0.0
