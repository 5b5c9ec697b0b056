"""Compiling our sources to machine code where there is no GPU: the only door to cuda-core.

The driver of a GPU is not needed for it, so that every kernel is known to compile for the
architectures we support before it meets one. It is compiled as CuPy does on a GPU.
"""

import re
from collections.abc import Iterable, Mapping
from io import StringIO
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from millrace.executor.cuda.source_text import source_text
from millrace.executor.errors import ExecutorError

if TYPE_CHECKING:
    from cuda.core import ProgramOptions

STANDARD = "c++17"
OPTIONS = (f"-std={STANDARD}",)
"""Options that CuPy is given for our sources."""
# What CuPy adds to them by itself (14.2, cupy/cuda/compiler.py, 2026-08), as cuda-core calls it:
# float32 arithmetic flushes denormals. The folders of headers that it adds too mean nothing to
# sources that include none.
ADDED = {"ftz": True, "device_as_default_execution_space": True}
_LOADING = Lock()  # modules of the package import one another, which two threads at once trip over
_SPILLS = re.compile(
    r"Compiling entry function '(?P<symbol>\S+)' for .*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads",
    flags=re.DOTALL,
)


class Cubin(NamedTuple):
    """Machine code of one source for one architecture.

    `symbols` has the name in the code of every function that was asked for, `report` what the
    assembler says of them (`ptxas -v`).
    """

    code: bytes
    symbols: Mapping[str, str]
    report: str = ""

    def spilled_bytes(self) -> dict[str, int]:
        """Bytes that every function stores and loads for want of registers, by symbol.

        The machine code holds only the size of the stack's frame, where other things lie too.
        """
        return {
            match["symbol"]: int(match["stores"]) + int(match["loads"])
            for match in _SPILLS.finditer(self.report)
        }


def offline_cubin(source: str, functions: Iterable[str], architecture: str) -> Cubin:
    """Compile functions of a source with NVRTC.

    Parameters
    ----------
    source
        Stem of its file in `executor/cuda/sources`.
    functions
        Names with template arguments: `layer_norm<bf16, bf16, float>`.
    architecture
        `sm_80` and the like.

    Raises
    ------
    ExecutorError
        cuda-core, its bindings or NVRTC are not installed; or the source does not compile: holds
        NVRTC's own words.
    """
    return cubin_of(source_text(source), source, functions, architecture)


def program_options(source: str, architecture: str) -> "ProgramOptions":
    """Options of a program that is called `source`, with the compiler loaded.

    Raises
    ------
    ExecutorError
        cuda-core, its bindings or NVRTC are not installed.
    """
    with _LOADING:
        try:
            from cuda.core import ProgramOptions
            from cuda.pathfinder import load_nvidia_dynamic_lib

            load_nvidia_dynamic_lib("nvrtc")
        except (ImportError, RuntimeError) as error:  # no package, or none of its libraries
            raise ExecutorError(
                f"compiling without a GPU needs NVIDIA's compiler library ({error}): "
                f"`pip install cuda-core cuda-bindings nvidia-cuda-nvrtc`"
            ) from error
    return ProgramOptions(
        arch=architecture, std=STANDARD, name=f"{source}.cu", ptxas_options=["-v"], **ADDED
    )


def cubin_of(text: str, source: str, functions: Iterable[str], architecture: str) -> Cubin:
    """Compile functions of a translation unit that is called `source`; see `offline_cubin`."""
    names = tuple(sorted(set(functions)))
    options = program_options(source, architecture)
    from cuda.core import Program

    program = Program(text, "c++", options)
    compiler_log = StringIO()
    try:
        object_code = program.compile("cubin", name_expressions=names, logs=compiler_log)
    except Exception as error:  # NVRTCError, whose name is not public
        raise ExecutorError(
            f"source `{source}` does not compile for {architecture} with "
            f"{', '.join(names)}: {error}"
        ) from error
    return Cubin(
        code=bytes(object_code.code),
        symbols={name: object_code.symbol_mapping[name].decode() for name in names},
        report=compiler_log.getvalue(),
    )
