"""C compiler of this machine: sources in, a shared library in the user's cache out.

The library is named after all that it depends on: sources, options, compiler and processor. Ranks
that start at once compile side by side, and the last to finish puts its own, equal, in place.
"""

import os
import platform
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from millrace.executor.user_cache import cache_folder

SOURCES = Path(__file__).parent / "sources"
COMPILERS = ("cc", "gcc", "clang")
# Sums may be taken in another order than written, which vectors need; NaN and infinity stay.
OPTIONS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-shared",
    "-fPIC",
)


def compiled_library() -> Path | None:
    """Path of the library of all sources, compiled if it was not; None where that cannot be."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None or platform.system() != "Linux":
        return None
    sources = sorted(SOURCES.glob("*.[ch]"))
    folder = cache_folder()
    path = folder / f"kernels-{_digest(compiler, sources)}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix="kernels-") as name:
            output = Path(name) / path.name
            files = [str(source) for source in sources if source.suffix == ".c"]
            subprocess.run(
                [compiler, *OPTIONS, "-o", str(output), *files, "-lm"],
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
            )
            os.replace(output, path)
    except (OSError, subprocess.CalledProcessError):
        return None
    return path


def _digest(compiler: str, sources: list[Path]) -> str:
    parts = [" ".join(OPTIONS), compiler, _processor()]
    stat = Path(compiler).resolve().stat()
    parts += [str(stat.st_size), str(stat.st_mtime_ns)]
    parts += [source.read_text() for source in sources]
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Instructions that the processor has, which `-march=native` goes by."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = ("flags", "Features", "model name")
    return "; ".join(next((x for x in lines if x.startswith(name)), "") for name in names)
