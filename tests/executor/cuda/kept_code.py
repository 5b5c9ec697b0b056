"""Code of our sources for devices, kept between runs, for tests that look into it.

Compiling takes seconds and follows from the text, the options, the compiler and our way of asking
it alone. `FileStreamProgramCache` lets several processes read and write at once.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from hashlib import sha256

import msgspec

from benchmarks.gpu.kernel_resources import Resources
from millrace.executor.cuda import compiling
from millrace.executor.cuda.compiling import Cubin, cubin_of, program_options
from millrace.executor.cuda.source_text import source_text
from millrace.executor.measure import cache_folder
from tests.executor.cuda import ptx

FOLDER = cache_folder() / "tests"
FUNCTION = re.compile(
    r"Compiling entry function '(\S+)' for .*?"
    r"(\d+) bytes stack frame.*?Used (\d+) registers([^\n]*)",
    flags=re.DOTALL,
)


def cached_cubin(source: str, functions: Iterable[str], architecture: str) -> Cubin:
    """Cubin of functions of a source, as `offline_cubin` makes it."""
    return kept_cubin_of(source_text(source), source, functions, architecture)


def kept_cubin_of(text: str, source: str, functions: Iterable[str], architecture: str) -> Cubin:
    """Cubin of functions of a translation unit, as `cubin_of` makes it."""
    names = sorted(set(functions))

    def encoded_cubin() -> bytes:
        return msgspec.msgpack.encode(cubin_of(text, source, names, architecture))

    return msgspec.msgpack.decode(
        _cached(text, source, names, architecture, "cubin", encoded_cubin), type=Cubin
    )


def kept_ptx(text: str, functions: Iterable[str], architecture: str) -> str:
    """PTX of functions of a translation unit, as `ptx_of` makes it."""
    names = sorted(set(functions))

    def encoded_ptx() -> bytes:
        return ptx.ptx_of(text, names, architecture).encode()

    return _cached(text, "text", names, architecture, "ptx", encoded_ptx).decode()


def _cached(
    text: str, source: str, names: list[str], architecture: str, form: str,
    make: Callable[[], bytes],
) -> bytes:  # fmt: skip
    from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

    askers = inspect.getsource(compiling) + inspect.getsource(ptx)
    key = make_program_cache_key(
        code=text, code_type="c++", options=program_options(source, architecture),
        target_type=form, name_expressions=names, extra_digest=sha256(askers.encode()).digest(),
    )  # fmt: skip
    with FileStreamProgramCache(FOLDER) as cache:
        code = cache.get(key)
        if code is None:
            code = make()
            cache[key] = code
    return code


def assembler_resources(cubin: Cubin) -> dict[str, Resources]:
    """Resources that every function takes, by symbol, in the words of the assembler."""
    resources = {}
    for symbol, stack, registers, rest in FUNCTION.findall(cubin.report):
        shared = re.search(r"(\d+) bytes smem", rest)
        resources[symbol] = Resources(int(registers), int(shared[1]) if shared else 0, int(stack))
    return resources
