"""Doorbells: how ranks of one host tell each other that they have come to a meeting.

MPI can only be asked, over and over, whether a message has arrived; a rank that asks all the time
burns a core, and one that sleeps in between answers late. So a rank rings every other member when
it posts its part: those who wait sleep until everyone is there, and only then ask all the time.
A ring that is lost costs time, never correctness: waiting ends by itself after a while.

Doorbells are Unix datagram sockets with abstract names: they leave no file, and end with their
process. Where there are none (not Linux), or between hosts, waiting falls back to sleeps.
"""

import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

_RING = struct.Struct("<iq")
_POSTED = _RING.pack(-1, 0)  # this rank's own driver has handed over a call


class Doorbell:
    """The doorbell of one rank, and those of its neighbours.

    Parameters
    ----------
    name
        Common to all ranks of the run and to no other run.
    rank
        This rank.
    neighbours
        Ranks on the same host.
    """

    def __init__(self, name: str, rank: int, neighbours: Iterable[int]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own = _address(name, rank)
        self._socket.bind(self._own)
        # A second socket to send from: the first has a timeout, which senders must not wait for.
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)
        self._addresses = {other: _address(name, other) for other in neighbours if other != rank}

    def post(self) -> None:
        """Wake this rank's own waiter (called from any thread)."""
        with suppress(OSError):
            self._out.sendto(_POSTED, self._own)

    def ring(self, others: Iterable[int], key: int, firing: int) -> None:
        """Tell `others` that this rank has come to firing `firing` of meeting `key`."""
        message = _RING.pack(key, firing)
        for other in others:
            address = self._addresses.get(other)
            if address is not None:
                with suppress(OSError):
                    self._out.sendto(message, address)

    def heard(self, wait_s: float | None) -> Iterator[tuple[int, int]]:
        """Wait for a ring, at most `wait_s` seconds; yield it and all others that are there.

        Yields
        ------
        (int, int)
            Meeting and firing; calls of this rank's own driver are not among them.
        """
        self._socket.settimeout(wait_s)
        try:
            while True:
                key, firing = _RING.unpack(self._socket.recv(_RING.size))
                if key >= 0:
                    yield key, firing
                self._socket.settimeout(0)
        except (TimeoutError, BlockingIOError):
            return

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        self._out.close()


def _address(name: str, rank: int) -> bytes:
    return f"\0millrace-{name}-{rank}".encode()
