"""Raw link: bytes a second that two TCP connections carry between two hosts, one each way.

`both_ways_bytes_per_s` starts this module on both hosts. It is what a transport between them is
held against: the same hosts, the same links and cores, and nothing but the kernel's own work.
"""

import socket
import subprocess
import sys
import threading
from statistics import median
from time import perf_counter, sleep

from benchmarks.executor.namespaces import NetworkHost

MESSAGE_BYTES = 2**26
ROUNDS, WARM_UP = 15, 3
PORT = 17_017
PATIENCE_S = 60


def both_ways_bytes_per_s(first: NetworkHost, second: NetworkHost) -> float:
    """Bytes a second each way, both ways at once; the median of some rounds."""
    command = [sys.executable, "-m", "benchmarks.executor.raw_link"]
    with subprocess.Popen(
        first.command(*command, "listen", first.address), stdout=subprocess.PIPE, text=True
    ) as listener:
        subprocess.run(
            second.command(*command, "call", first.address), timeout=PATIENCE_S, check=True
        )
        output, _ = listener.communicate(timeout=PATIENCE_S)
    return float(output)


def main(role: str, address: str) -> None:
    """Send and receive at once with the other host, round by round."""
    if role == "listen":
        with socket.create_server((address, PORT)) as server:
            there, back = (server.accept()[0] for _ in range(2))
    else:
        back, there = (_connection(address) for _ in range(2))
    seconds = [_exchange_s(there, back, is_first=role == "listen") for _ in range(ROUNDS + WARM_UP)]
    if role == "listen":
        print(MESSAGE_BYTES / median(seconds[WARM_UP:]))


def _connection(address: str) -> socket.socket:
    for _ in range(100):
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            sleep(0.05)
    raise ConnectionRefusedError(f"nobody listens at {address}")


def _exchange_s(there: socket.socket, back: socket.socket, *, is_first: bool) -> float:
    """Seconds of a message each way."""
    content, room = bytes(MESSAGE_BYTES), memoryview(bytearray(MESSAGE_BYTES))
    if is_first:
        there.sendall(b"!")
        back.recv(1)
    else:
        back.recv(1)
        there.sendall(b"!")
    start_s = perf_counter()
    sender = threading.Thread(target=there.sendall, args=(content,))
    sender.start()
    received = 0
    while received < MESSAGE_BYTES:
        received += back.recv_into(room[received:])
    sender.join()
    return perf_counter() - start_s


if __name__ == "__main__":
    main(*sys.argv[1:])
