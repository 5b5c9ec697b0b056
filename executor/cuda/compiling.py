"""Compiling our sources to machine code where there is no GPU: the only door to cuda-core.

The driver of a GPU is not needed for it, so that every kernel is known to compile for the
architectures we support before it meets one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from executor.cuda.source_text import source_text
from executor.errors import ExecutorError

STANDARD = "c++17"


class Cubin(NamedTuple):
    """Machine code of one source for one architecture.

    `symbols` has the name in the code of every function that was asked for.
    """

    code: bytes
    symbols: Mapping[str, str]


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
    names = tuple(sorted(set(functions)))
    try:
        from cuda.core import Program, ProgramOptions
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("nvrtc")
    except (ImportError, RuntimeError) as error:  # no package, or none of its libraries
        raise ExecutorError(
            f"compiling without a GPU needs NVIDIA's compiler library ({error}): "
            f"`pip install cuda-core cuda-bindings nvidia-cuda-nvrtc`"
        ) from error
    options = ProgramOptions(arch=architecture, std=STANDARD, name=f"{source}.cu")
    program = Program(source_text(source), "c++", options)
    try:
        made = program.compile("cubin", name_expressions=names)
    except Exception as error:  # NVRTCError, whose name is not public
        raise ExecutorError(
            f"source `{source}` does not compile for {architecture} with "
            f"{', '.join(names)}: {error}"
        ) from error
    return Cubin(
        code=bytes(made.code),
        symbols={name: made.symbol_mapping[name].decode() for name in names},
    )
