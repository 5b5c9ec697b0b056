"""Weights: initial values of variables from a `.npz` file, one array per variable by its name.

What an importer finds in a module (`Imported.values`) is saved as such a file by `numpy.savez`.
Variables that the file leaves out begin as they would without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array
from millrace.models.graph import Graph

Names = frozenset[str]


class Weights:
    """A file of weights; arrays are read when they are asked for.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    DataError
        The file is not there or holds no arrays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._arrays() as arrays:
            self.names: Names = frozenset(arrays.files)

    def value(self, name: str) -> Array:
        """Return the whole value of a variable."""
        with self._arrays() as arrays:
            return np.asarray(arrays[name])

    @contextmanager
    def _arrays(self) -> Iterator[Any]:
        try:
            with self.path.open("rb") as file:
                found = np.load(file, allow_pickle=False)
                if not isinstance(found, np.lib.npyio.NpzFile):
                    raise DataError(
                        f"weights `{self.path}` is one array; expected a .npz of arrays by name"
                    )
                yield found
        except OSError as error:
            raise DataError(f"weights `{self.path}` cannot be read: {error.strerror}") from None
        except (ValueError, EOFError, BadZipFile) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"weights `{self.path}` cannot be read: expected a .npz of numbers, as numpy.savez "
                f"writes it"
            ) from None


def check_weights(path: Path | None, graph: Graph) -> None:
    """Hold every array of a file, where there is one, against the variables of a training graph.

    Raises
    ------
    DataError
        The file cannot be read; an array is no variable of the model, or has another shape.
    """
    if path is None:
        return
    weights = Weights(path)
    tensors = graph.tensors_by_name
    variables = [op.outputs[0] for op in graph.ops if op.kind == "variable"]
    if strange := sorted(weights.names - set(variables)):
        raise DataError(
            f"weights `{path}`: `{strange[0]}` is no variable of `{graph.name}`; its variables "
            f"are {', '.join(variables[:3])}, …"
        )
    for name in sorted(weights.names):
        shape = weights.value(name).shape
        if shape != tensors[name].shape:
            raise DataError(
                f"weights `{path}`: `{name}` has shape {shape}, the model's is "
                f"{tensors[name].shape}"
            )
