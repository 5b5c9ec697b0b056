"""Optional packages that some tests compare with: absent, those tests skip and say what to install.

`MILLRACE_ALL_EXTRAS=1` (set by the full check) turns a skip into a failure.
"""

import importlib
import os
import warnings
from types import ModuleType

import pytest


def optional(name: str, extra: str = "torch") -> ModuleType:
    """Import a package, or skip the module of tests that needs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importlib.import_module(name)
        except ImportError:
            if os.environ.get("MILLRACE_ALL_EXTRAS"):
                raise
        else:
            if name.partition(".")[0] == "torch":
                # Threads of its pool spin while they wait for each other: on shared cores a step
                # of a small model takes a hundred times as long with two of them as with one.
                importlib.import_module("torch").set_num_threads(1)
            return module
    pytest.skip(f"{name} is not installed: pip install '.[{extra}]'", allow_module_level=True)
