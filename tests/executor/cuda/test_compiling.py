import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from math import prod

import pytest

from benchmarks.gpu.kernel_resources import occupancy, resources_of, shared_bytes
from millrace.executor.cuda.calls import WARP_THREADS
from millrace.executor.cuda.compiling import OPTIONS, Cubin, offline_cubin, program_options
from millrace.executor.cuda.source_text import source_stems, source_text
from millrace.executor.errors import ExecutorError
from tests.executor.cuda.kept_code import assembler_resources, cached_cubin
from tests.executor.cuda.launched import functions_in_bf16, launched_functions, launches
from tests.executor.cuda.ptx import ptx_of
from tests.extras import optional

FIRST, OTHERS = "sm_90", ("sm_80", "sm_100")

# CUDA C++ programming guide 13.0, technical specifications per compute capability; a block may ask
# for 99 KiB of shared memory on 8.6, 8.9 and 12.0, for more on the others.
THREADS_MAX = 1024
STATIC_BYTES_MAX = 48 * 1024  # of shared memory
ASKED_BYTES_MAX = 99 * 1024
# Attention without matrix units (float32, and what those of 16 bits do not take) keeps a few values
# in local memory, and two blocks on a multiprocessor in return; nothing else may.
SPILLING = ("attention", "attention_grad")
RARE = re.compile(r"\b(double|f16)\b")  # templates have other numbers in the other functions


def some_of_each(functions: Iterable[str], turn: int = 0, turns: int = 1) -> frozenset[str]:
    """Every eighth function of each template, one at least; of every `turns`th template alone."""
    templates = groupby(sorted(functions), key=lambda name: name.partition("<")[0])
    chosen = (
        list(alike)[::8] for number, (_, alike) in enumerate(templates) if number % turns == turn
    )
    return frozenset(name for names in chosen for name in names)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("source", source_stems())
def test_every_function_that_is_launched_compiles(source: str, every: bool):
    """All for one architecture, of rare numbers some; some that bf16 launches for the others."""
    optional("cuda.core", extra="test")
    functions, in_bf16 = launched_functions().get(source), functions_in_bf16().get(source, ())
    assert functions, f"no example, small model or stored plan launches a function of `{source}`"
    rare = frozenset() if every else frozenset(filter(RARE.search, functions))
    wanted = [(FIRST, functions - rare | some_of_each(rare))]
    for turn, other_architecture in enumerate(OTHERS):
        names = frozenset(in_bf16) if every else some_of_each(in_bf16, turn, len(OTHERS))
        wanted += [(other_architecture, names)] if names else []
    with ThreadPoolExecutor() as pool:  # the compiler works outside Python's lock
        compiled = pool.map(lambda job: cached_cubin(source, job[1], job[0]), wanted)
        for cubin, (architecture, names) in zip(compiled, wanted, strict=True):
            assert cubin.code[:4] == b"\x7fELF"
            assert set(cubin.symbols) == names
            assert len(set(cubin.symbols.values())) == len(names)
            require_launchable(source, architecture, cubin)
            require_the_assemblers_words(architecture, cubin)


def require_launchable(source: str, architecture: str, cubin: Cubin) -> None:
    """Require that no block takes more than a multiprocessor has, which a device would refuse."""
    taken, spilled = resources_of(cubin.code), cubin.spilled_bytes()
    for launch in launches():
        if launch.source == source and launch.function in cubin.symbols:
            symbol = cubin.symbols[launch.function]
            threads, dynamic_bytes = prod(launch.block), launch.shared_bytes
            fits = occupancy(taken[symbol], threads, architecture, dynamic_bytes)
            assert fits.blocks >= 1, (launch.function, launch.block, taken[symbol])
            static_bytes = shared_bytes(taken[symbol], architecture)
            assert static_bytes <= STATIC_BYTES_MAX, launch.function
            assert static_bytes + dynamic_bytes <= ASKED_BYTES_MAX, launch.function
            assert not spilled[symbol] or source in SPILLING, (launch.function, spilled[symbol])


def require_the_assemblers_words(architecture: str, cubin: Cubin) -> None:
    """Require that a cubin says of its functions what the assembler said."""
    taken, told = resources_of(cubin.code), assembler_resources(cubin)
    assert set(taken) == set(told) >= set(cubin.symbols.values())
    for symbol, resources in taken.items():
        assert (
            resources._replace(shared_bytes=shared_bytes(resources, architecture)) == told[symbol]
        )


def test_every_launch_is_one_that_a_device_takes():
    for launch in launches():
        x, y, z = launch.grid
        assert 0 < x <= 2**31 - 1, launch
        assert 0 < min(y, z) <= max(y, z) <= 65535, launch
        assert 0 < prod(launch.block) <= THREADS_MAX, launch
        assert prod(launch.block) % WARP_THREADS == 0, launch


def test_what_compiles_here_is_what_cupy_compiles():
    """CuPy is given `OPTIONS`, and adds the architecture, two options and folders of headers."""
    optional("cuda.core", extra="test")
    assert OPTIONS == ("-std=c++17",)
    options = {option.lstrip(b"-") for option in program_options("loss", FIRST).as_bytes("nvrtc")}
    assert options == {
        b"std=c++17", b"arch=sm_90", b"ftz=true", b"device-as-default-execution-space",
        b"ptxas-options=-v",
    }  # fmt: skip
    assert not any("#include" in source_text(stem) for stem in source_stems())


def test_float32_arithmetic_flushes_denormals_and_unmarked_functions_are_the_devices():
    optional("cuda.core", extra="test")
    text = """
    float twice(float x) { return 2 * x; }
    extern "C" __global__ void doubled(float* x) { *x = twice(*x); }
    """
    assert "add.ftz.f32" in ptx_of(text, ["doubled"], FIRST)


def test_what_does_not_compile_is_named_with_the_compilers_words():
    optional("cuda.core", extra="test")
    words = r'(?s)`contract` does not compile for sm_90.*"absent" is undef'
    with pytest.raises(ExecutorError, match=words):
        offline_cubin("contract", ["absent<float>"], "sm_90")


def test_without_the_compiler_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ExecutorError, match="pip install cuda-core"):
        offline_cubin("contract", ["contract<float, float, float>"], "sm_90")
