"""Mirror of a job's folder: what changes in it on a host is told to the command, and back.

Files of a job are small or grow slowly, and some are written in mapped memory, of which no time of
change tells. So they are compared, block by block, with what was sent last.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from millrace.executor.hosts.frames import FilePart

MIRROR_S = 0.25  # from one look for changes to the next
BLOCK_BYTES = 2**16
NAME = re.compile(r"[a-z][\w-]*(\.[\w-]+)*")
DRAFT = ".draft"  # files that are renamed when they are complete


class FolderMirror:
    """Sender and receiver of a folder's files.

    Parameters
    ----------
    folder
        The folder.
    is_sent
        Tells by name which files are sent; those that were received never are.
    """

    def __init__(self, folder: Path, is_sent: Callable[[str], bool] = lambda name: True) -> None:
        self._folder, self._is_sent = folder, is_sent
        self._sent: dict[str, list[bytes]] = {}
        self._received: set[str] = set()

    def changes(self) -> Iterator[FilePart]:
        """Parts of files that have changed since the last call."""
        for path in sorted(self._folder.iterdir()):
            name = path.name
            if name in self._received or name.endswith(DRAFT) or not self._is_sent(name):
                continue
            with suppress(FileNotFoundError), path.open("rb") as file:
                blocks = self._sent.setdefault(name, [])
                number = 0
                while block := file.read(BLOCK_BYTES):
                    if number == len(blocks):
                        blocks.append(b"")
                    if block != blocks[number]:
                        blocks[number] = block
                        yield FilePart(name, number * BLOCK_BYTES, block)
                    number += 1

    def receive(self, part: FilePart) -> None:
        """Write a part of a file; documents appear complete, everything else in place.

        Raises
        ------
        ValueError
            The name is none that a file of a job has.
        """
        if not NAME.fullmatch(part.name):
            raise ValueError(f"{part.name!r} is no file of a job")
        self._received.add(part.name)
        path = self._folder / part.name
        if part.name.endswith(".json") and part.offset == 0 and len(part.data) < BLOCK_BYTES:
            draft = path.with_suffix(DRAFT)
            draft.write_bytes(part.data)
            draft.replace(path)
            return
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, part.data, part.offset)
        finally:
            os.close(handle)
