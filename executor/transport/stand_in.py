"""Stand-in: a communicator of a rank that meets nobody, for rehearsals of what it computes."""

import threading
from queue import SimpleQueue

import numpy as np

from millrace.executor.transport.communicator import Done, Failed, RankArrays
from millrace.models.arrays import Array
from millrace.planner.actors.protocol import Fire

SEED = 0


class StandInCommunicator:
    """Communicator whose meetings end at once, as if every member sent what this rank sends.

    What nothing is sent for is drawn once, ids being 0: values are of no meaning, but lie within
    their bounds.

    Parameters
    ----------
    memory
        The rank's memory.
    """

    def __init__(self, memory: RankArrays) -> None:
        self._memory = memory
        self._posted: SimpleQueue[tuple[Fire, Done] | None] = SimpleQueue()
        self._drawn: set[int] = set()
        self._thread = threading.Thread(target=self._serve, name="stand-in", daemon=True)
        self._failed: Failed | None = None

    def start(self, failed: Failed) -> None:
        """Begin; `failed(rank, fire, error)` is called if a meeting cannot be stood in for."""
        self._failed = failed
        self._thread.start()

    def post(self, rank: int, fire: Fire, done: Done) -> None:
        """Hand over one firing of a meeting actor."""
        self._posted.put((fire, done))

    def close(self) -> None:
        """End the thread."""
        self._posted.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (posted := self._posted.get()) is not None:
            fire, done = posted
            try:
                self._receive(fire)
            except BaseException as error:
                assert self._failed is not None
                self._failed(self._memory.rank, fire, error)
                return
            done(fire)

    def _receive(self, fire: Fire) -> None:
        """Write what a meeting would bring: what is sent, again and again, or numbers once."""
        sends, receives = self._memory.arrays(fire)
        for number, target in enumerate(receives):
            if sends:
                source = sends[min(number, len(sends) - 1)]
                np.copyto(target, np.resize(source, target.shape), casting="unsafe")
            elif np.issubdtype(target.dtype, np.integer):
                target.fill(0)
            elif id(target) not in self._drawn:
                self._draw(target)

    def _draw(self, target: Array) -> None:
        """Fill an array with normal numbers."""
        self._drawn.add(id(target))
        np.copyto(target, np.random.default_rng(SEED).standard_normal(target.shape, np.float32))
