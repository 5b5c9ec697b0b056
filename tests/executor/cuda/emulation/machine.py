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

import numpy as np

from executor.cuda.calls import Call, Clear, Copy, Launch, Matrices, Operand, Product
from executor.cuda.source_text import source_text

COMPILER = which("g++")
FOLDER = Path(tempfile.gettempdir()) / "millrace-emulation"
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
# The calls that `device.cpp` answers: of every access, and of what the language leaves undefined.
UNDEFINED = "alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero"
CHECKED = ["-fsanitize=thread", f"-fsanitize={UNDEFINED}"]


class Emulator:
    """Carries out calls, given the address of every operand.

    Parameters
    ----------
    functions
        Every function that will be launched, by source.
    seed
        What the order of threads and blocks is drawn from.
    """

    def __init__(self, functions: Mapping[str, Iterable[str]], seed: int = 0) -> None:
        _compile(functions)
        self.reseed(seed)
        self._functions = {
            (source, name): _KNOWN[source, name]
            for source, names in functions.items()
            for name in names
        }

    def reseed(self, seed: int) -> None:
        """Begin another order of threads and blocks, of all emulators."""
        _device().emulated_seed(ctypes.c_uint64(seed))

    def run(self, call: Call, address: Address, within: Ranges = ()) -> None:
        """Carry out one call; kernels may touch what lies `within` (nothing given: all)."""
        match call:
            case Launch():
                self._launch(call, address, within)
            case Product():
                _multiply(call, address)
            case Clear():
                ctypes.memset(address(call.target), 0, call.size_bytes)
            case Copy():
                ctypes.memmove(address(call.target), address(call.source), call.size_bytes)

    def _launch(self, call: Launch, address: Address, within: Ranges) -> None:
        function, kinds = self._functions[call.source, call.function]
        found = "".join("p" if isinstance(a, Operand) else LETTERS[type(a)] for a in call.args)
        assert found == kinds, f"{call.function} takes {kinds}, was given {found}"
        values = [
            ctypes.c_void_p(address(a)) if isinstance(a, Operand) else CTYPES[type(a)](a.item())
            for a in call.args
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        ends = [end for found in within for end in found]
        _device().emulated_memory((ctypes.c_size_t * len(ends))(*ends), len(within))
        fault = function((ctypes.c_uint * 3)(*call.grid), (ctypes.c_uint * 3)(*call.block), pointers)
        assert fault is None, f"{call.function}: {fault.decode()}"


def functions_of(calls: Iterable[Call]) -> dict[str, set[str]]:
    """The functions that some calls launch, by source."""
    found: dict[str, set[str]] = {}
    for call in calls:
        if isinstance(call, Launch):
            found.setdefault(call.source, set()).add(call.function)
    return found


def _kinds(library: ctypes.PyDLL, at: int) -> str:
    letters = ctypes.create_string_buffer(64)
    getattr(library, f"kinds_{at}")(letters)
    return letters.value.decode()


_KNOWN: dict[tuple[str, str], tuple[Callable[..., object], str]] = {}


def _compile(functions: Mapping[str, Iterable[str]]) -> None:
    """Compile what this process has not, one library per source.

    Whoever knows all that many tests will launch asks for it at once: a library takes seconds.
    """
    wanted = {
        source: tuple(sorted(name for name in set(names) if (source, name) not in _KNOWN))
        for source, names in functions.items()
    }
    wanted = {source: names for source, names in wanted.items() if names}
    with ThreadPoolExecutor(2) as pool:
        for (source, names), library in zip(
            wanted.items(), pool.map(_library, wanted, wanted.values()), strict=True
        ):
            for at, name in enumerate(names):
                run = getattr(library, f"run_{at}")
                run.restype = ctypes.c_char_p
                _KNOWN[source, name] = (run, _kinds(library, at))


def _library(source: str, names: Sequence[str]) -> ctypes.PyDLL:
    """Compile the functions `names` of a source."""
    _device()
    seen = 'extern "C" __attribute__((visibility("default")))'
    wrappers = "".join(
        f"{seen} const char* run_{at}(const unsigned* g, const unsigned* b, void** a) "
        f"{{ return Emulated<&{name}>::run(g, b, a); }}\n"
        f"{seen} int kinds_{at}(char* k) {{ return Emulated<&{name}>::kinds(k); }}\n"
        for at, name in enumerate(names)
    )
    text = f'#include "{HEADER}"\n{source_text(source)}\n{wrappers}'
    return _built(source, text, ["-Og", *STATIC, *CHECKED])


@cache
def _device() -> ctypes.PyDLL:
    """The device that all kernels of this process run on."""
    return _built("device", (HERE / "device.cpp").read_text(), ["-O2", f"-I{HERE}"])


def _built(stem: str, text: str, flags: list[str]) -> ctypes.PyDLL:
    """A library of a text, built where it is not yet; one call at a time goes into it."""
    headers = HEADER.read_text() + (HERE / "device.h").read_text()
    digest = sha256("\0".join([text, headers, *flags, *LANGUAGE]).encode()).hexdigest()[:24]
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{stem}-{digest}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            code, made, draft = (Path(folder) / f"{stem}{end}" for end in (".cpp", ".o", ".so"))
            code.write_text(text)
            # linked in a step of its own, without the sanitizers' libraries
            for step in (
                [*LANGUAGE, *flags, "-c", "-o", str(made), str(code)],
                ["-shared", "-o", str(draft), str(made)],
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


def _multiply(call: Product, address: Address) -> None:
    a = to_wide(_matrices(call.a, (call.batch, call.m, call.k), address), call.a.dtype)
    b = to_wide(_matrices(call.b, (call.batch, call.k, call.n), address), call.b.dtype)
    d = _matrices(call.d, (call.batch, call.m, call.n), address)
    made = a @ b
    if call.accumulate:
        made = made + to_wide(d, call.d.dtype)
    d[...] = to_stored(made, call.d.dtype)


def _matrices(found: Matrices, shape: tuple[int, int, int], address: Address) -> np.ndarray:
    stored = np.dtype(np.uint16 if found.dtype == "bfloat16" else STORED[found.dtype])
    strides = (found.batch_stride, found.row_stride, found.column_stride)
    assert 1 in strides[1:]
    last = sum(stride * (size - 1) for stride, size in zip(strides, shape, strict=True))
    room = (ctypes.c_char * ((last + 1) * stored.itemsize)).from_address(address(found.operand))
    flat = np.frombuffer(room, stored)
    return np.lib.stride_tricks.as_strided(
        flat, shape, tuple(stride * stored.itemsize for stride in strides)
    )
