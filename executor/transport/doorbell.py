"""Doorbells: how ranks of one host wake each other without a core spent on waiting.

A ring says only "look again": what there is to see lies in shared memory. So a ring may be lost if
another is still unheard (the socket's queue is then not empty, and its owner will look).

Doorbells are Unix datagram sockets. Those that neighbours ring have abstract names (Linux): they
leave no file and end with their process.
"""

import socket
from collections.abc import Iterable
from contextlib import suppress
from select import select
from socket import MSG_DONTWAIT

_RING = b"!"


class Doorbell:
    """The doorbell of one rank, and those of its neighbours.

    Parameters
    ----------
    name
        Common to all ranks of the run and to no other run.
    rank
        This rank.
    neighbours
        The other ranks on this host.
    """

    def __init__(self, name: str, rank: int, neighbours: Iterable[int]) -> None:
        self._addresses = {other: _address(name, other) for other in neighbours}
        # A second socket to send from: who is rung for must never wait for a full queue.
        if self._addresses:
            self._addresses[rank] = _address(name, rank)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(self._addresses[rank])
            self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        else:
            self._socket, self._out = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)

    def ring(self, ranks: Iterable[int]) -> None:
        """Wake the waiters of `ranks`, this one's own among them if it is named."""
        for rank in ranks:
            with suppress(OSError):
                if self._addresses:
                    self._out.sendto(_RING, self._addresses[rank])
                else:
                    self._out.send(_RING)

    def wait(self, wait_s: float | None) -> None:
        """Wait until the bell has rung, or for `wait_s` seconds; all rings until then count."""
        if wait_s is None:
            self._socket.recv(1)
        elif wait_s > 0:  # a socket's own timeout counts in milliseconds
            select([self._socket], (), (), wait_s)
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(1, MSG_DONTWAIT)

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        self._out.close()


def _address(name: str, rank: int) -> bytes:
    return f"\0millrace-{name}-{rank}".encode()
