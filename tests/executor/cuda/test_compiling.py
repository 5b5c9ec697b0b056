import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from executor.cuda.compiling import offline_cubin
from executor.cuda.source_text import source_stems
from executor.errors import ExecutorError
from tests.executor.cuda.launched import launched_functions
from tests.extras import optional

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


@pytest.mark.parametrize("source", source_stems())
def test_every_function_that_is_launched_compiles(source: str):
    optional("cuda.core", extra="test")
    functions = launched_functions().get(source)
    if not functions:
        pytest.skip(f"no example and no small model launches a function of `{source}`")
    with ThreadPoolExecutor() as pool:  # the compiler works outside Python's lock
        compiled = pool.map(lambda one: offline_cubin(source, functions, one), ARCHITECTURES)
        for made in compiled:
            assert made.code[:4] == b"\x7fELF"
            assert set(made.symbols) == functions
            assert len(set(made.symbols.values())) == len(functions)


def test_what_does_not_compile_is_named_with_the_compilers_words():
    optional("cuda.core", extra="test")
    words = r'(?s)`contract` does not compile for sm_90.*"absent" is undef'
    with pytest.raises(ExecutorError, match=words):
        offline_cubin("contract", ["absent<float>"], "sm_90")


def test_without_the_compiler_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ExecutorError, match="pip install cuda-core"):
        offline_cubin("contract", ["contract<float, float, float>"], "sm_90")
