"""Torch export: a module, `torch.export` program or `.pt2` file becomes a Graph.

In comes a module (meta and fake ones too), out goes `ExportedModel`: the forward graph with its
loss, where each variable's value is found, and the values where the module has some.
`import_program.py` is the front; `tracing.py` exports, `program_reader.py` drafts call by call,
`writing.py` makes the Graph.
"""

from millrace.models.importers.torch_export.import_program import (
    import_file,
    import_module,
    import_program,
)
from millrace.models.importers.torch_export.sources import ExportedModel, ParameterSource, spec
from millrace.models.importers.torch_export.tracing import load

__all__ = [
    "ExportedModel",
    "ParameterSource",
    "import_file",
    "import_module",
    "import_program",
    "load",
    "spec",
]
