"""Loading of cuDNN: the setting that decides its use, and errors where it is missing."""

import os
from collections.abc import Mapping

from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.availability import INSTALL
from millrace.executor.gpu.cudnn.library import CudnnLibrary
from millrace.executor.gpu.cudnn.limits import VERSION_MIN, version_in_words

SETTING = "MILLRACE_CUDNN"
CHOICES = ("auto", "on", "off")


def cudnn_library(
    environment: Mapping[str, str] = os.environ, *, deterministic: bool = False
) -> CudnnLibrary | None:
    """The library cuDNN on the current device, or None where it is not to be used.

    The setting `MILLRACE_CUDNN` is `auto` (where it is installed; the default), `on` (it must be
    there) or `off`. `deterministic` as of `CudnnLibrary`.

    Raises
    ------
    ExecutorError
        The setting is none of these, or is `on` and something is missing; says what.
    """
    setting = environment.get(SETTING, CHOICES[0])
    if setting not in CHOICES:
        raise ExecutorError(f"{SETTING} is {setting!r}: set it to one of {', '.join(CHOICES)}")
    if setting == "off":
        return None
    try:
        return CudnnLibrary(_module(), deterministic=deterministic)
    except ExecutorError as error:
        if setting == "on":
            raise ExecutorError(f"{SETTING} is on, but {error.cause}") from error
        return None


def _module() -> object:
    """The front end, which finds the library itself."""
    try:
        import cudnn
    except (
        ImportError,
        OSError,
        AssertionError,
    ) as error:  # The import loads the library, if it finds one.
        raise ExecutorError(
            f"cuDNN's front end cannot be imported ({error}): {INSTALL}, or "
            f"pip install nvidia-cudnn-frontend"
        ) from error
    try:
        version = cudnn.backend_version()
    except RuntimeError as error:
        raise ExecutorError(f"cuDNN itself was not found ({error}): {INSTALL}") from error
    if version < VERSION_MIN:
        raise ExecutorError(
            f"cuDNN {version_in_words(VERSION_MIN)} or later is needed, found "
            f"{version_in_words(version)}: {INSTALL}"
        )
    return cudnn
