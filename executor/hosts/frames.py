"""Frames: what the command and its host agents say to each other over a connection.

A frame is four bytes with its length and a MessagePack document. Nothing that is received is run.
"""

import select
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

import msgspec

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 2**26
BEAT_S = 0.5
SILENT_S_MAX = 8.0  # No sign of life for so long: the other side has gone, or the way to it.
SEND_S_MAX = SILENT_S_MAX


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First words of an agent: the secret that it was started with, and the number of its host."""

    token: str
    host: int


class Start(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Order to start a host's ranks."""

    module: str
    job: str  # token of the job's processes
    ranks: tuple[int, ...]
    size: int
    environment: dict[str, str]


class FilePart(msgspec.Struct, frozen=True, tag=True):
    """Bytes of a file in the job's folder, from an offset on."""

    name: str
    offset: int
    data: bytes


class Pmi(msgspec.Struct, frozen=True, tag=True):
    """Line between a rank's MPI and the PMI server."""

    rank: int
    line: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """End of a rank's process, as `RankEnded`."""

    rank: int
    code: int | None
    is_done: bool


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Sign of life."""


class End(msgspec.Struct, frozen=True, tag=True):
    """Order to end what runs on a host, and the answer that all has gone."""


Frame = Hello | Start | FilePart | Pmi | Ended | Beat | End


class FrameLine:
    """Connection over which frames travel.

    Parameters
    ----------
    connection
        A connected socket, which belongs to the line from now on.

    Attributes
    ----------
    heard_s
        When the last frame came, on the monotonic clock.
    is_closed
        True when the other side has gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(SEND_S_MAX)
        with suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._heard = bytearray()
        self._sending = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
        self.heard_s = monotonic()
        self.is_closed = False

    def fileno(self) -> int:
        """Descriptor to wait for."""
        return self._socket.fileno()

    @property
    def address(self) -> str:
        """Address of this side of the connection."""
        return str(self._socket.getsockname()[0])

    def send(self, *frames: Frame) -> None:
        """Send frames; the line is closed where nobody takes them."""
        if self.is_closed:
            return
        texts = [self._encoder.encode(frame) for frame in frames]
        data = b"".join(len(text).to_bytes(LENGTH_BYTES, "big") + text for text in texts)
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                self.is_closed = True

    def receive(self) -> list[Frame]:
        """Frames that have come; waits for none."""
        while not self.is_closed and select.select([self._socket], [], [], 0)[0]:
            try:
                received = self._socket.recv(2**20)
            except OSError:
                received = b""
            if not received:
                self.is_closed = True
            self._heard += received
        frames: list[Frame] = []
        while len(self._heard) >= LENGTH_BYTES:
            length = int.from_bytes(self._heard[:LENGTH_BYTES], "big")
            if length > FRAME_BYTES_MAX:
                self.is_closed = True
                break
            if len(self._heard) < LENGTH_BYTES + length:
                break
            text = bytes(self._heard[LENGTH_BYTES : LENGTH_BYTES + length])
            del self._heard[: LENGTH_BYTES + length]
            try:
                frames.append(self._decoder.decode(text))
            except msgspec.MsgspecError:  # what is not ours has found the port
                self.is_closed = True
                break
        if frames:
            self.heard_s = monotonic()
        return frames

    def close(self) -> None:
        """Close the connection."""
        self.is_closed = True
        self._socket.close()


class Beating:
    """Signs of life on lines, from a thread, for whoever may be busy for seconds."""

    def __init__(self) -> None:
        self._lines: list[FrameLine] = []
        self._ended = threading.Event()
        threading.Thread(target=self._beat, name="signs of life", daemon=True).start()

    def add(self, line: FrameLine) -> None:
        """Beat on a line too."""
        self._lines.append(line)

    def close(self) -> None:
        """Beat no more."""
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            for line in tuple(self._lines):
                line.send(Beat())


def wait_for_any(lines: Sequence[FrameLine | socket.socket], wait_s: float) -> None:
    """Wait until there is something to read, or for `wait_s` seconds.

    Parameters
    ----------
    lines
        Connections; those that are closed are left out.
    wait_s
        The longest wait.
    """
    select.select([line for line in lines if line.fileno() >= 0], [], [], wait_s)
