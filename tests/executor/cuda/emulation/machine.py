"""A GPU of one CPU thread: runs the calls of CUDA factories on NumPy memory.

The sources are compiled as C++ with `on_cpu.h`, one shared library per source with every function
that is asked for, so that their arithmetic, indexing and barriers are tested without a device.
Libraries are kept in the temporary folder under a digest of their text. The order of threads and
blocks is drawn from a seed, and `device.cpp` checks every access of memory.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

import numpy as np

from millrace.executor.cuda.binding import leaves
from millrace.executor.cuda.calls import (
    Argument,
    Attention,
    AttentionGrad,
    Call,
    Clear,
    Convolution,
    CopyCall,
    Dim3,
    KernelAlternatives,
    Launch,
    LibraryCall,
    Matrices,
    Operand,
    Pointers,
    ProductCall,
    Vector,
)
from millrace.executor.cuda.source_text import source_text
from millrace.executor.measure import cache_folder
from tests.executor.cuda.emulation.networks import carry_out, reach_bytes, strided_memory

COMPILER = which("g++")
FOLDER = cache_folder() / "emulation"
HERE = Path(__file__).parent
HEADER = HERE / "on_cpu.h"
LETTERS = {np.int32: "i", np.uint32: "u", np.int64: "l", np.float32: "f", np.float64: "d"}
CTYPES = {
    np.int32: ctypes.c_int32,
    np.uint32: ctypes.c_uint32,
    np.int64: ctypes.c_int64,
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
}

Address = Callable[[Operand], int]
Ranges = Sequence[tuple[int, int]]

LANGUAGE = ["-std=c++17", "-fPIC", "-w", "-fno-strict-aliasing"]
# Static memory of a library is its own (not one of all libraries), and is what kernels share.
STATIC = ["-fvisibility=hidden", "-fno-gnu-unique"]
FAST = ["-fno-plt", "-fno-semantic-interposition"]  # calls between the libraries
# The calls that `device.cpp` answers: of every access, and of what the language leaves undefined.
# A barrier of the source stays one place of the code: nothing behind a branch is copied into it.
UNDEFINED = "alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero"
CHECKED = [
    *FAST,
    "-fno-thread-jumps",
    "-fsanitize=thread",
    f"-fsanitize={UNDEFINED}",
    "--param=tsan-instrument-func-entry-exit=0",
]


class Emulator:
    """Device that carries out calls, given the address of every operand.

    Parameters
    ----------
    functions
        Every function that will be launched, by source.
    seed
        Seed of the order of threads and blocks.
    checked
        Check every access of memory, which takes several times as long.
    option
        Option of a choice that is taken: the last, of kernels of ours (where it has fewer, too), or
        one with the library's calls, which are then computed in NumPy.
    """

    def __init__(
        self,
        functions: Mapping[str, Iterable[str]],
        seed: int = 0,
        *,
        checked: bool = True,
        option: int = -1,
    ) -> None:
        self._option = option
        _compile(functions, checked)
        reseed(seed)
        self._kernels = {
            (source, name): _KERNELS[checked, source, name]
            for source, names in functions.items()
            for name in names
        }

    def run(self, call: Call, address: Address, within: Ranges = ()) -> None:
        """Carry out one call, which may touch what lies `within` (nothing given: all)."""
        match call:
            case Launch():
                self._launch(call, address, within)
            case ProductCall():
                _multiply(call, address, within)
            case Clear():
                _require(address(call.target), call.size_bytes, within)
                ctypes.memset(address(call.target), 0, call.size_bytes)
            case CopyCall():
                _require(address(call.target), call.size_bytes, within)
                _require(address(call.source), call.size_bytes, within)
                ctypes.memmove(address(call.target), address(call.source), call.size_bytes)
            case Attention() | AttentionGrad() | Convolution():
                _by_library(call, address, within)
            case KernelAlternatives():
                option = self._option if self._option < len(call.options) else -1
                for chosen in call.options[option]:
                    self.run(chosen, address, within)

    def _launch(self, call: Launch, address: Address, within: Ranges) -> None:
        kernel = self._kernels[call.source, call.function]
        kinds = "".join(_kind(argument) for argument in call.args)
        assert kinds == kernel.kinds, f"{call.function} takes {kernel.kinds}, was given {kinds}"
        values = [_by_value(argument, address) for argument in call.args]
        fault = kernel.run(call.grid, call.block, values, within, call.shared_bytes)
        assert fault is None, f"{call.function}: {fault}"


def _kind(argument: Argument) -> str:
    """Letters of an argument's type, as `letters` of `on_cpu.h` has them."""
    if isinstance(argument, Pointers):
        return f"[{len(argument.operands)}]"
    return "p" if isinstance(argument, Operand) else LETTERS[type(argument)]


def _by_value(argument: Argument, address: Address) -> Any:
    if isinstance(argument, Pointers):
        return (ctypes.c_void_p * len(argument.operands))(*map(address, argument.operands))
    if isinstance(argument, Operand):
        return ctypes.c_void_p(address(argument))
    return CTYPES[type(argument)](argument.item())


def _require(begin: int, size_bytes: int, within: Ranges) -> None:
    inside = any(first <= begin and begin + size_bytes <= end for first, end in within)
    assert inside or not within or not size_bytes, f"{size_bytes} bytes outside of the operands"


def functions_of(calls: Iterable[Call]) -> dict[str, set[str]]:
    """The functions that some calls launch, by source."""
    names_by_source: dict[str, set[str]] = {}
    for call in leaves(*calls):
        if isinstance(call, Launch):
            names_by_source.setdefault(call.source, set()).add(call.function)
    return names_by_source


class EmulatedKernel(NamedTuple):
    """A compiled kernel, and a letter for the type of each of its parameters."""

    function: Callable[..., bytes | None]
    kinds: str

    def run(
        self,
        grid: Dim3,
        block: Dim3,
        values: Sequence[Any],
        within: Ranges = (),
        shared_bytes: int = 0,
    ) -> str | None:
        """Launch it with arguments; return the first fault."""
        ends = [end for bounds in within for end in bounds]
        _device().emulated_memory((ctypes.c_size_t * len(ends))(*ends), len(within))
        _device().emulated_shared_bytes(ctypes.c_size_t(shared_bytes))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        fault = self.function((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), pointers)
        return None if fault is None else fault.decode()


def reseed(seed: int) -> None:
    """Begin another order of threads and blocks."""
    _device().emulated_seed(ctypes.c_uint64(seed))


def traffic(within: Ranges) -> list[tuple[int, int]]:
    """Bytes that threads of the last launch read and wrote of each of the ranges it was given."""
    moved = (ctypes.c_uint64 * (2 * len(within)))()
    _device().emulated_traffic(moved)
    return list(zip(moved[::2], moved[1::2], strict=True))


_KERNELS: dict[tuple[bool, str, str], EmulatedKernel] = {}


def _compile(functions: Mapping[str, Iterable[str]], checked: bool) -> None:
    """Compile what this process has not, one library per source.

    Whoever knows all that many tests will launch asks for it at once: a library takes seconds.
    """
    wanted = {
        source: sorted(name for name in set(names) if (checked, source, name) not in _KERNELS)
        for source, names in functions.items()
    }
    wanted = {source: names for source, names in wanted.items() if names}
    _device()
    with ThreadPoolExecutor(2) as pool:
        libraries = pool.map(
            lambda job: compiled(job[0], source_text(job[0]), job[1], checked=checked),
            wanted.items(),
        )
        for source, kernels in zip(wanted, libraries, strict=True):
            for name, kernel in kernels.items():
                _KERNELS[checked, source, name] = kernel


def compiled(
    stem: str, text: str, names: Sequence[str], *, checked: bool = True
) -> dict[str, EmulatedKernel]:
    """Compile the kernels `names` of a text."""
    _device()  # whose functions the library calls
    seen = 'extern "C" __attribute__((visibility("default")))'
    wrappers = "".join(
        f"{seen} const char* run_{number}(const unsigned* g, const unsigned* b, void** a) "
        f"{{ return Emulated<&{name}>::run(g, b, a); }}\n"
        f"{seen} int kinds_{number}(char* k) {{ return Emulated<&{name}>::kinds(k); }}\n"
        for number, name in enumerate(names)
    )
    flags = ["-O1", *(CHECKED if checked else ()), f"-DON_CPU_CHECKED={int(checked)}"]
    library = _built(stem, f'#include "{HEADER.name}"\n{text}\n{wrappers}', [*flags, *STATIC])
    kernels = {}
    for number, name in enumerate(names):
        function, letters = getattr(library, f"run_{number}"), ctypes.create_string_buffer(256)
        function.restype = ctypes.c_char_p
        getattr(library, f"kinds_{number}")(letters)
        kernels[name] = EmulatedKernel(function, letters.value.decode())
    return kernels


@cache
def _device() -> ctypes.PyDLL:
    """The device that all kernels of this process run on."""
    return _built("device", (HERE / "device.cpp").read_text(), ["-O3", *FAST])


def _built(stem: str, text: str, flags: list[str]) -> ctypes.PyDLL:
    """A library of a text, built where it is not yet; one call at a time goes into it.

    Its digest knows no path, so that all checkouts share what they have in common.
    """
    headers = HEADER.read_text() + (HERE / "device.h").read_text()
    digest = sha256("\0".join([text, headers, *flags, *LANGUAGE]).encode()).hexdigest()[:24]
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{stem}-{digest}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            code, object_file, draft = (
                Path(folder) / f"{stem}{end}" for end in (".cpp", ".o", ".so")
            )
            code.write_text(text)
            # linked in a step of its own, without the sanitizers' libraries
            for step in (
                [*LANGUAGE, *flags, f"-I{HERE}", "-c", "-o", str(object_file), str(code)],
                ["-shared", "-o", str(draft), str(object_file)],
            ):
                done = subprocess.run(["g++", *step], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr[:4000]
            draft.replace(path)
    return ctypes.PyDLL(str(path), ctypes.RTLD_GLOBAL)


STORED = {"float64": np.float64, "float32": np.float32, "float16": np.float16}


def to_wide(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as stored (bfloat16 as uint16) in the dtype that products add up in."""
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64 if dtype == "float64" else np.float32)


def to_stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values rounded to a dtype, ties to even (bfloat16 as uint16)."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(STORED[dtype])


def _multiply(call: ProductCall, address: Address, within: Ranges) -> None:
    shapes = {
        "a": (call.batch, call.m, call.k),
        "b": (call.batch, call.k, call.n),
        **dict.fromkeys(("d", "c", "aux"), (call.batch, call.m, call.n)),
    }
    parts = call.parts
    views = {
        name: _matrices(parts[name], shape, address, within)
        for name, shape in shapes.items()
        if name in parts
    }
    wide = {name: to_wide(views[name], parts[name].dtype) for name in views}
    product = wide["a"] @ wide["b"]
    if call.accumulate or call.c is not None:
        product = product + wide["d" if call.c is None else "c"]
    if call.bias is not None:
        bias = _vectors(call.bias, (call.batch, call.n), address, within)
        product = product + to_wide(bias, call.bias.dtype)[:, None, :]
    if call.slope:
        product = product * SLOPES[call.slope](wide["aux"])
    elif call.aux is not None:
        views["aux"][...] = to_stored(product, call.aux.dtype)
    if call.activation:
        product = ACTIVATIONS[call.activation](product)
    views["d"][...] = to_stored(product, call.d.dtype)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(GELU_SCALE * (x + 0.044715 * x**3))) / 2


def _gelu_slope(x: np.ndarray) -> np.ndarray:
    tanh = np.tanh(GELU_SCALE * (x + 0.044715 * x**3))
    inner = GELU_SCALE * (1 + 3 * 0.044715 * x**2)
    return (1 + tanh) / 2 + x * (1 - tanh**2) * inner / 2


GELU_SCALE = float(np.sqrt(2 / np.pi))
ACTIVATIONS = {"gelu": _gelu, "relu": lambda x: np.maximum(x, 0)}
SLOPES = {"gelu": _gelu_slope}


def _vectors(
    vectors: Vector, shape: tuple[int, int], address: Address, within: Ranges
) -> np.ndarray:
    """Vectors of a stack, [batch, length], in device memory."""
    stacked = Matrices(vectors.operand, vectors.dtype, 1, 1, vectors.batch_stride)
    return _matrices(stacked, (shape[0], 1, shape[1]), address, within)[:, 0, :]


def _by_library(call: LibraryCall, address: Address, within: Ranges) -> None:
    arrays = []
    for tensor, sizes in zip(call.tensors, call.sizes, strict=True):
        begin = address(tensor.operand)
        _require(begin, reach_bytes(tensor, sizes), within)
        arrays.append(strided_memory(begin, tensor, sizes))
    carry_out(call, arrays, to_wide, to_stored)


def _matrices(
    matrices: Matrices, shape: tuple[int, int, int], address: Address, within: Ranges
) -> np.ndarray:
    stored = np.dtype(np.uint16 if matrices.dtype == "bfloat16" else STORED[matrices.dtype])
    strides = (matrices.batch_stride, matrices.row_stride, matrices.column_stride)
    assert 1 in strides[1:]
    last = sum(stride * (size - 1) for stride, size in zip(strides, shape, strict=True))
    begin, size_bytes = address(matrices.operand), (last + 1) * stored.itemsize
    _require(begin, size_bytes, within)
    flat = np.frombuffer((ctypes.c_char * size_bytes).from_address(begin), stored)
    return np.lib.stride_tricks.as_strided(
        flat, shape, tuple(stride * stored.itemsize for stride in strides)
    )
