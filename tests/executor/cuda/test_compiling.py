import sys
from concurrent.futures import ThreadPoolExecutor
from math import ceil, prod

import pytest

from executor.cuda.calls import WARP_THREADS
from executor.cuda.compiling import Cubin, offline_cubin
from executor.cuda.resources import resources_of
from executor.cuda.source_text import source_stems
from executor.errors import ExecutorError
from tests.executor.cuda.launched import functions_in_bf16, launched_functions, launches
from tests.extras import optional

FIRST, OTHERS = "sm_90", ("sm_80", "sm_100")

# CUDA programming guide, technical specifications per compute capability (8.0 to 10.0): threads and
# registers of a block, the latter in units of a warp, and its shared memory, static, and with what
# it asks for (99 KiB for 8.6, 8.9 and 12.0, more for the others); from 9.0 on the system has a KiB
# of each block, which a cubin counts along.
THREADS_MAX = 1024
REGISTERS_MAX = 65536
REGISTER_UNIT = 256
SHARED_BYTES_MAX = 48 * 1024
ASKED_BYTES_MAX = 99 * 1024
RESERVED_BYTES = 1024


@pytest.mark.parametrize("source", source_stems())
def test_every_function_that_is_launched_compiles(source: str):
    """All for one architecture; for the others what training in bf16 launches."""
    optional("cuda.core", extra="test")
    functions, in_bf16 = launched_functions().get(source), functions_in_bf16().get(source)
    assert functions, f"no example, small model or stored plan launches a function of `{source}`"
    wanted = [(FIRST, functions), *((one, in_bf16) for one in OTHERS if in_bf16)]
    with ThreadPoolExecutor() as pool:  # the compiler works outside Python's lock
        compiled = pool.map(lambda one: offline_cubin(source, one[1], one[0]), wanted)
        for made, (_, names) in zip(compiled, wanted, strict=True):
            assert made.code[:4] == b"\x7fELF"
            assert set(made.symbols) == names
            assert len(set(made.symbols.values())) == len(names)
            require_launchable(source, made)


def require_launchable(source: str, made: Cubin) -> None:
    """A device refuses a launch whose block takes more than a multiprocessor has."""
    taken = resources_of(made.code)
    for launch in launches():
        if launch.source == source and launch.function in made.symbols:
            found = taken[made.symbols[launch.function]]
            threads = prod(launch.block)
            of_warp = ceil(found.registers * WARP_THREADS / REGISTER_UNIT) * REGISTER_UNIT
            registers = of_warp * threads // WARP_THREADS
            assert registers <= REGISTERS_MAX, (launch.function, launch.block, found)
            assert found.shared_bytes <= SHARED_BYTES_MAX + RESERVED_BYTES, launch.function
            asked = found.shared_bytes + launch.shared_bytes
            assert asked <= ASKED_BYTES_MAX + RESERVED_BYTES, launch.function


def test_every_launch_is_one_that_a_device_takes():
    for launch in launches():
        x, y, z = launch.grid
        assert 0 < x <= 2**31 - 1, launch
        assert 0 < min(y, z) <= max(y, z) <= 65535, launch
        assert 0 < prod(launch.block) <= THREADS_MAX, launch
        assert prod(launch.block) % WARP_THREADS == 0, launch


def test_what_does_not_compile_is_named_with_the_compilers_words():
    optional("cuda.core", extra="test")
    words = r'(?s)`contract` does not compile for sm_90.*"absent" is undef'
    with pytest.raises(ExecutorError, match=words):
        offline_cubin("contract", ["absent<float>"], "sm_90")


def test_without_the_compiler_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ExecutorError, match="pip install cuda-core"):
        offline_cubin("contract", ["contract<float, float, float>"], "sm_90")
