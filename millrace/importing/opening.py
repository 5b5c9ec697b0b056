"""Opening: a module, or whatever a user calls a model, imported and checked."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millrace.importing.checking import SIXTEEN, checked
from millrace.models.importers.opening import open_model
from millrace.models.spec import ModelSpec

if TYPE_CHECKING:
    from millrace.models.importers.torch_export import ExportedModel


def import_module(module: Any, inputs: Any, **options: Any) -> "ExportedModel":
    """Import a PyTorch module and check the import against it.

    Arguments are those of `models.importers.torch_export.import_module`. The last note says
    what the check gave, or why there was none.

    Raises
    ------
    ModelError
        The module cannot be imported, or the import is further from PyTorch than rounding.
    """
    from millrace.models.importers.torch_export import import_module as imported_from

    imported = imported_from(module, inputs, **options)
    exact = imported
    if imported.precision in SIXTEEN and imported.values is not None:
        exact = imported_from(module, inputs, **{**options, "precision": "fp32"})
    return replace(imported, notes=(*imported.notes, checked(exact, module, inputs)))


def open_checked(
    model: str,
    seq_len: int | None = None,
    precision: str = "fp32",
    told: Callable[[str], None] | None = None,
) -> ModelSpec:
    """Open a model as `open_model` does, and check it against PyTorch where it is a program.

    Raises
    ------
    ModelError
        The model cannot be opened, or a program's import is further from PyTorch than rounding.
    """
    return open_model(model, seq_len, precision, told=told, check=_checked_program)


def _checked_program(imported: "ExportedModel", program: Any) -> str:
    from millrace.models.importers.torch_export import import_program

    exact = imported
    if imported.precision in SIXTEEN:
        exact = import_program(program, name=imported.graph.name)
    return checked(exact, program)
