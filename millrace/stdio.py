"""Stdio: stdout and stderr as whoever started the command has left them.

They may be closed, full, read by nobody, or take no letters but those of ASCII. An answer that
cannot be delivered ends the command; what is said beside it never does.
"""

import codecs
import json
import os
import re
import sys
from typing import Any, TextIO

ESCAPED = "millrace.escaped"
# C0 and C1 but for the ends of lines and tabs, what turns the direction of reading, and bytes of
# file names that are no letters.
STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class NobodyReadsError(Exception):
    """The reader of stdout has gone; no OSError, which libraries take for the end of a process."""


def visible(text: str) -> str:
    r"""Text that steers no terminal: names come from files, and files from anywhere.

    Examples
    --------
    >>> visible("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return STEERING.sub(lambda match: ascii(match[0])[1:-1], text)


def visible_json(text: str) -> str:
    """JSON text whose strings steer no terminal; they are the same strings."""
    return STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def take_over() -> None:
    """Replace stdout and stderr by streams that say what is wrong with them."""
    codecs.register_error(ESCAPED, _escaped)
    sys.stdout = CheckedStdout(_opened(sys.stdout))
    sys.stderr = Asides(_opened(sys.stderr))


def silence(stream: Any) -> None:
    """Redirect whatever a stream still holds to nowhere, so that the process ends quietly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _opened(stream: TextIO | None) -> TextIO:
    """Stream that can be written: this one, or one that goes nowhere where it is closed."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=ESCAPED)
    return stream


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """JSON escapes of text that a stream cannot encode: an answer stays the document that it is."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


class CheckedStdout:
    """Stdout: raises NobodyReadsError, or OSError with a sentence."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, as a stream does."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _undelivered(error) from None

    def flush(self) -> None:
        """Flush, as a stream does."""
        try:
            self._stream.flush()
        except OSError as error:
            raise _undelivered(error) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _undelivered(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return NobodyReadsError()
    return OSError(f"cannot write to stdout: {(error.strerror or str(error)).lower()}")


class Asides:
    """Stderr: what cannot be written is left out, and the command goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, as a stream does."""
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Flush, as a stream does."""
        try:
            self._stream.flush()
        except OSError:
            silence(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
