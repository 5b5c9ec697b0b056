"""Importing a PyTorch module or program, and holding the import against PyTorch.

In comes a module with example inputs, or the name of a model; out goes an import whose loss and
gradients are PyTorch's own, with a note that says how close. Read `checking.py` first.
"""

from millrace.importing.checking import ImportCheck, check, checked
from millrace.importing.opening import import_module, open_checked

__all__ = ["ImportCheck", "check", "checked", "import_module", "open_checked"]
