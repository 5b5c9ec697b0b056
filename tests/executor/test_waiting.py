"""Waiting for other ranks: a bell is heard once, and nobody waits for nothing."""

import threading
from collections.abc import Iterator
from secrets import token_hex
from socket import MSG_DONTWAIT

import pytest

from benchmarks.executor.firing import IdleWork
from millrace.executor.probes.probe_graphs import pair_graph
from millrace.executor.rank import RankMemory
from millrace.executor.recording import Recorder
from millrace.executor.threaded import RankDriver
from millrace.executor.transport import mpi, rank_communicator
from millrace.executor.transport.doorbell import Doorbell
from millrace.executor.transport.stand_in import StandInCommunicator

DEADLINE_S = 120


@pytest.fixture
def bells() -> Iterator[tuple[Doorbell, Doorbell]]:
    name = token_hex(8)
    pair = Doorbell(name, 0, [1]), Doorbell(name, 1, [0])
    yield pair
    for bell in pair:
        bell.close()


def test_a_ring_wakes_who_waits(bells: tuple[Doorbell, Doorbell]) -> None:
    bell, peer_bell = bells
    woken = threading.Event()

    def wait() -> None:
        bell.wait(DEADLINE_S)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    peer_bell.ring([0])
    assert woken.wait(DEADLINE_S / 2)
    thread.join()


def test_all_rings_before_a_wait_count_as_one(bells: tuple[Doorbell, Doorbell]) -> None:
    bell, peer_bell = bells
    for _ in range(3):
        peer_bell.ring([0])
    bell.ring([0])
    bell.wait(DEADLINE_S)
    with pytest.raises(BlockingIOError):
        bell._socket.recv(1, MSG_DONTWAIT)


def test_a_ring_for_a_rank_that_has_gone_is_lost(bells: tuple[Doorbell, Doorbell]) -> None:
    bell, peer_bell = bells
    peer_bell.close()
    bell.ring([1, 0])
    bell.wait(DEADLINE_S)


def test_who_waits_looks_again_within_a_millisecond() -> None:
    for module in (rank_communicator, mpi):
        assert 0 < module.SLEEP_S_MIN <= module.SLEEP_S_MAX <= 1e-3


def test_a_rank_that_has_nothing_to_do_ends_at_once() -> None:
    memory = RankMemory(pair_graph(3), 2)
    assert not memory.program.actors
    driver = RankDriver(
        memory.program,
        2,
        1,
        work=IdleWork(),
        communicator=StandInCommunicator(memory),
        recorder=Recorder(memory.program, 1, spans=True),
        failed=lambda rank, fire, error: None,
    )
    driver.start()
    thread = threading.Thread(target=driver.join, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert driver.finished
    assert not thread.is_alive()
