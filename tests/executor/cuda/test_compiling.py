import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from executor.cuda.compiling import offline_cubin
from executor.cuda.source_text import source_stems
from executor.errors import ExecutorError
from tests.executor.cuda.launched import functions_in_bf16, launched_functions
from tests.extras import optional

FIRST, OTHERS = "sm_90", ("sm_80", "sm_100")


@pytest.mark.parametrize("source", source_stems())
def test_every_function_that_is_launched_compiles(source: str):
    """All for one architecture; for the others what training in bf16 launches."""
    optional("cuda.core", extra="test")
    functions, in_bf16 = launched_functions()[source], functions_in_bf16().get(source)
    wanted = [(FIRST, functions), *((one, in_bf16) for one in OTHERS if in_bf16)]
    with ThreadPoolExecutor() as pool:  # the compiler works outside Python's lock
        compiled = pool.map(lambda one: offline_cubin(source, one[1], one[0]), wanted)
        for made, (_, names) in zip(compiled, wanted, strict=True):
            assert made.code[:4] == b"\x7fELF"
            assert set(made.symbols) == names
            assert len(set(made.symbols.values())) == len(names)


def test_what_does_not_compile_is_named_with_the_compilers_words():
    optional("cuda.core", extra="test")
    words = r'(?s)`contract` does not compile for sm_90.*"absent" is undef'
    with pytest.raises(ExecutorError, match=words):
        offline_cubin("contract", ["absent<float>"], "sm_90")


def test_without_the_compiler_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ExecutorError, match="pip install cuda-core"):
        offline_cubin("contract", ["contract<float, float, float>"], "sm_90")
