"""PTX of sources, the text that the assembler is given: which instructions they come to."""

from collections.abc import Iterable

from millrace.executor.cuda.compiling import program_options


def ptx_of(text: str, functions: Iterable[str], architecture: str) -> str:
    """PTX of functions of a translation unit, compiled with the options of `offline_cubin`."""
    options = program_options("text", architecture).as_bytes("nvrtc")
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"text.cu", 0, [], [])
    for name in functions:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, status
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx_bytes = bytes(size)
    nvrtc.nvrtcGetPTX(program, ptx_bytes)
    nvrtc.nvrtcDestroyProgram(program)
    return ptx_bytes.rstrip(b"\0").decode()
