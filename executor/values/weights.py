"""Weights: initial values of variables from a `.npz` file, one array per variable by its name.

What an importer finds in a module (`Imported.values`) is saved as such a file by `numpy.savez`.
Variables that the file leaves out begin as they would without it.
"""

import tokenize
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from millrace.executor.errors import DataError
from millrace.executor.kernels.context import BITS, Array
from millrace.models.graph import Graph, Tensor

Names = frozenset[str]

NUMBERS = "fiu"  # kinds of dtypes: floating, signed and unsigned integers

# NumPy and zipfile raise these where a member or its header is not what they write.
_MALFORMED = (
    ValueError,
    EOFError,
    BadZipFile,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
    zlib.error,
)


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
        """Whole value of a variable."""
        with self._arrays() as arrays:
            return np.asarray(arrays[name])

    @contextmanager
    def _arrays(self) -> Iterator[Any]:
        try:
            with self.path.open("rb") as file:
                arrays = np.load(file, allow_pickle=False)
                if not isinstance(arrays, np.lib.npyio.NpzFile):
                    raise DataError(
                        f"weights `{self.path}` is one array; expected a .npz of arrays by name"
                    )
                yield arrays
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataError(f"weights `{self.path}` cannot be read: {reason}") from None
        except DataError:
            raise
        except _MALFORMED:
            raise DataError(
                f"weights `{self.path}` cannot be read: expected a .npz of numbers, as numpy.savez "
                f"writes it"
            ) from None


def check_weights(path: Path | None, graph: Graph, approximations: Sequence[str] = ()) -> None:
    """Hold every array of a file, where there is one, against the variables of a training graph.

    Parameters
    ----------
    path
        The file; None: there is none.
    graph
        Training graph of the model.
    approximations
        What the model computes and the graph does not: with any, no weights are taken.

    Raises
    ------
    DataError
        The graph is an approximation; the file cannot be read; an array is no variable of the
        model, has another shape, or holds something else than finite numbers in the range of the
        variable's dtype.
    """
    if path is None:
        return
    if approximations:
        raise DataError(
            f"weights `{path}`: the graph of `{graph.name}` does not compute what these weights "
            f"are for ({'; '.join(approximations)}); leave --weights out"
        )
    weights = Weights(path)
    tensors = graph.tensors_by_name
    variables = [op.outputs[0] for op in graph.ops if op.kind == "variable"]
    if strange := sorted(weights.names - set(variables)):
        raise DataError(
            f"weights `{path}`: `{strange[0]}` is no variable of `{graph.name}`; its variables "
            f"are {', '.join(variables[:3])}, …"
        )
    for name in sorted(weights.names):
        if wrong := _misfit(weights.value(name), tensors[name]):
            raise DataError(f"weights `{path}`: `{name}` {wrong}")


def _misfit(values: Array, variable: Tensor) -> str:
    """Reason why values cannot be those of a variable; empty where they can."""
    if values.shape != variable.shape:
        return f"has shape {values.shape}, the model's is {variable.shape}"
    if values.dtype.kind not in NUMBERS:
        return f"is of dtype {values.dtype}: expected numbers; save it as float32"
    if not np.isfinite(values).all():
        count = int(np.count_nonzero(~np.isfinite(values)))
        return f"holds {count} values that are not finite: a run would begin with them"
    dtype = np.float32 if variable.dtype in BITS else np.dtype(variable.dtype)
    with np.errstate(over="ignore"):
        fits = np.isfinite(values.astype(dtype)).all()
    return "" if fits else f"holds values beyond the range of {variable.dtype}"
