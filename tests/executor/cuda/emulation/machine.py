"""A GPU of one CPU thread: runs the calls of CUDA factories on NumPy memory.

The sources are compiled as C++ with `on_cpu.h`, one shared library per source with every function
that is asked for, so that their arithmetic, indexing and barriers are tested without a device.
Libraries are kept in the temporary folder under a digest of their text.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from shutil import which

import numpy as np

from executor.cuda.calls import Call, Clear, Copy, Launch, Matrices, Operand, Product
from executor.cuda.source_text import source_text

COMPILER = which("g++")
FOLDER = Path(tempfile.gettempdir()) / "millrace-emulation"
HEADER = Path(__file__).parent / "on_cpu.h"
LETTERS = {np.int32: "i", np.uint32: "u", np.int64: "l", np.float32: "f", np.float64: "d"}
CTYPES = {
    np.int32: ctypes.c_int32,
    np.uint32: ctypes.c_uint32,
    np.int64: ctypes.c_int64,
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
}

Address = Callable[[Operand], int]


class Emulator:
    """Carries out calls, given the address of every operand.

    Parameters
    ----------
    functions
        Every function that will be launched, by source.
    """

    def __init__(self, functions: Mapping[str, Iterable[str]]) -> None:
        _compile(functions)
        self._functions = {
            (source, name): _KNOWN[source, name]
            for source, names in functions.items()
            for name in names
        }

    def run(self, call: Call, address: Address) -> None:
        """Carry out one call."""
        match call:
            case Launch():
                self._launch(call, address)
            case Product():
                _multiply(call, address)
            case Clear():
                ctypes.memset(address(call.target), 0, call.size_bytes)
            case Copy():
                ctypes.memmove(address(call.target), address(call.source), call.size_bytes)

    def _launch(self, call: Launch, address: Address) -> None:
        function, kinds = self._functions[call.source, call.function]
        found = "".join("p" if isinstance(a, Operand) else LETTERS[type(a)] for a in call.args)
        assert found == kinds, f"{call.function} takes {kinds}, was given {found}"
        values = [
            ctypes.c_void_p(address(a)) if isinstance(a, Operand) else CTYPES[type(a)](a.item())
            for a in call.args
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        function((ctypes.c_uint * 3)(*call.grid), (ctypes.c_uint * 3)(*call.block), pointers)


def functions_of(calls: Iterable[Call]) -> dict[str, set[str]]:
    """The functions that some calls launch, by source."""
    found: dict[str, set[str]] = {}
    for call in calls:
        if isinstance(call, Launch):
            found.setdefault(call.source, set()).add(call.function)
    return found


def _kinds(library: ctypes.CDLL, at: int) -> str:
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
                _KNOWN[source, name] = (getattr(library, f"run_{at}"), _kinds(library, at))


def _library(source: str, names: Sequence[str]) -> ctypes.CDLL:
    """Compile the functions `names` of a source."""
    wrappers = "".join(
        f'extern "C" void run_{at}(const unsigned* g, const unsigned* b, void** a) '
        f"{{ Emulated<&{name}>::run(g, b, a); }}\n"
        f'extern "C" int kinds_{at}(char* k) {{ return Emulated<&{name}>::kinds(k); }}\n'
        for at, name in enumerate(names)
    )
    text = f'#include "{HEADER}"\n{source_text(source)}\n{wrappers}'
    digest = sha256((text + HEADER.read_text()).encode()).hexdigest()[:24]
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{source}-{digest}.so"
    if not path.exists():
        code, draft = path.with_suffix(".cpp"), path.with_suffix(".draft")
        code.write_text(text)
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fno-strict-aliasing"]
        done = subprocess.run(
            ["g++", *flags, "-o", str(draft), str(code)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[:4000]
        draft.replace(path)
    return ctypes.CDLL(str(path))


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
