"""Torchtitan's modules, importable without a GPU and without its data loaders.

Its configurations name classes of packages that reading settings never calls (Triton's kernels,
datasets, checkpoints). `install` puts empty modules where these are missing.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

PACKAGES = ("datasets", "torch_checkpointing", "torchdata", "wandb")
MODULES = (  # of kernels, and of what draws curves
    "torch.utils.tensorboard",
    "torchtitan.distributed.minimal_async_ep.kernels",
    "torchtitan.models.moe.kernels",
)


class _EmptyModule(ModuleType):
    """A module that has every class, each of them empty."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = fullname.partition(".")[0]
        absent = package in PACKAGES and importlib.machinery.PathFinder.find_spec(package) is None
        if not absent and fullname not in MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the module is empty."""


def install() -> None:
    """Let what is absent be imported as empty modules, in this process."""
    sys.meta_path.insert(0, _Finder())
