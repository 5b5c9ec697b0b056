"""Tuning: candidates for a product, and ways of a choice, are timed, and the fastest is kept.

A product is timed on copies of its operands in scratch memory, as large and as aligned as they are
and full of numbers, so nothing of a run is touched, whatever the product reads of what it writes.
Before every timed run the caches are flushed: in a step a product finds what the kernel before it
left, and no more of its operands than fit beside that. Candidates take turns; those that are far
behind after their first turn have no other. What is timed is kept (`tuning_cache.py`), and a
product that has a pick takes it: with all picks kept, products give equal bits.

Ways are timed alike, each with its products tuned, but in place: how large the operands of a kernel
are is known to nobody else. Nothing has been loaded by then, and a step writes before it reads.

What has not enough room, or whose turn comes when the time is spent, takes the algorithm that the
library puts first, or the first way that the device can.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from millrace.executor.cuda.calls import Call, Clear, KernelAlternatives, Operand, ProductCall
from millrace.executor.cuda.products import spans
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.device import ADDRESS, address_of
from millrace.executor.gpu.gemm.cublaslt import PlannedProduct
from millrace.executor.gpu.gemm.tuning_cache import Pick, Picks, load_picks, save_picks
from millrace.executor.gpu.kernel_selection import Can, first_supported, key_of_choice
from millrace.executor.gpu.operand_noise import CACHE_BYTES, NOISE_ELEMENTS, noise

CANDIDATES = 8
ROUNDS = 5  # turns of every candidate that is not far behind; their median counts
FAR_BEHIND = 1.3  # such candidates are at least so many times as slow as the fastest
TUNING_SECONDS = 20.0  # seconds of a run, for all its products and choices
FREE_SHARE = 0.9  # share of free memory that copies may take
PLACE_BYTES = 256  # finer than this, copies are as aligned as what they are copies of
T = TypeVar("T")


class ProductLibraryProtocol(Protocol):
    """A library of matrix products (`millrace.executor.gpu.gemm.cublaslt.ProductLibrary`)."""

    @property
    def version(self) -> int:
        """Its number."""
        ...

    def supports(self, product: ProductCall, workspace_bytes: int) -> bool:
        """True if it can carry out a bound product."""
        ...

    def plan(self, product: ProductCall, workspace_bytes: int) -> PlannedProduct:
        """Plan of a product with the algorithm that it puts first."""
        ...

    def candidates(self, product: ProductCall, workspace_bytes: int, count: int) -> list[Any]:
        """Plans of a product with each of some algorithms."""
        ...

    def restored(self, planned: PlannedProduct, algorithm: bytes) -> PlannedProduct | None:
        """Plan of a product with an algorithm that was kept."""
        ...

    def run(self, planned: Any, product: ProductCall, workspace: int, stream: int, /) -> None:
        """Carry a product out in the order of a stream."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class TuningBench(Protocol):
    """Device as tuning needs it (`millrace.executor.gpu.device.DeviceDriver`, and scratch)."""

    name: str

    def free_bytes(self) -> int:
        """Bytes of memory that nobody holds now."""
        ...

    def scratch(self, size_bytes: int) -> AbstractContextManager[int]:
        """Lend memory that is given back at the end of the `with`."""
        ...

    def to_device(self, address: int, array: NDArray[Any]) -> None:
        """Copy an array to device memory."""
        ...

    def copy_async(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Copy bytes in the order of a stream."""
        ...

    def prepare(self, call: Call, stream: int) -> None:
        """Do what a call needs done once."""
        ...

    def issue(self, call: Call, stream: int) -> None:
        """Carry out one bound call."""
        ...

    def event(self, timed: bool = False) -> int:
        """Make an event."""
        ...

    def record(self, event: int, stream: int) -> None:
        """Let an event happen when all that the stream was given by now is done."""
        ...

    def synchronize(self, event: int) -> None:
        """Wait until the event has happened."""
        ...

    def elapsed_ns(self, start: int, end: int) -> int:
        """Nanoseconds between two events."""
        ...


class StreamWorkspace(NamedTuple):
    """Workspace of a stream."""

    address: int
    size_bytes: int


class Tuner:
    """Chooses algorithms for the products of one device, and among ways of computing one thing.

    Parameters
    ----------
    folder
        Folder in which picks are kept.
    seconds
        Time, about, for which all of them may be timed, together.
    """

    def __init__(self, folder: Path, *, seconds: float = TUNING_SECONDS) -> None:
        self._folder, self._left_ns = folder, round(seconds * 1e9)
        self._cached_picks: Picks | None = None
        self._used: dict[str, Pick] = {}
        self._is_settled = False
        self._events: tuple[int, int] | None = None

    @property
    def used(self) -> Picks | None:
        """Picks of all that was planned or chosen so far; None before the first."""
        if self._cached_picks is None:
            return None
        picks = self._cached_picks
        return Picks(device=picks.device, library_version=picks.library_version, picks=self._used)

    def plan(
        self,
        library: ProductLibraryProtocol,
        product: ProductCall,
        device: TuningBench,
        stream: int,
        workspace: StreamWorkspace,
    ) -> PlannedProduct:
        """Plan of a bound product with its pick, timing its candidates where it has none.

        Raises
        ------
        ExecutorError
            The library has no algorithm for it.
        """
        planned = library.plan(product, workspace.size_bytes)
        pick = self._pick(planned.key, library, device)
        if pick is not None:
            restored = library.restored(planned, bytes.fromhex(pick.taken))
            if restored is not None:
                self._used[planned.key] = pick
                return restored
        if self._is_settled or self._left_ns <= 0:
            return planned
        began = perf_counter_ns()
        best = self._fastest(library, product, device, stream, workspace)
        self._left_ns -= perf_counter_ns() - began
        if best is None:
            return planned
        fastest, duration_ns = best
        self._used[planned.key] = Pick(
            taken=bytes(fastest.algorithm).hex(), duration_ns=duration_ns
        )
        return fastest

    def choose(
        self,
        library: ProductLibraryProtocol,
        choice: KernelAlternatives,
        can: Can,
        device: TuningBench,
        stream: int,
    ) -> int:
        """Option of a bound choice that was picked; times the options where none was.

        Parameters
        ----------
        library
            The library that the picks are of.
        choice, can, stream
            As `millrace.executor.gpu.kernel_selection.Choose` has them.
        device
            The device that the options are carried out on.
        """
        key = key_of_choice(choice)
        pick = self._pick(key, library, device)
        if pick is not None and can(int(pick.taken)):
            self._used[key] = pick
            return int(pick.taken)
        if self._is_settled or self._left_ns <= 0:
            return first_supported(choice, can, stream)
        supported = [option for option in range(len(choice.options)) if can(option)]
        left_ns, began = self._left_ns, perf_counter_ns()
        best = self._fastest_option(choice, supported, device, stream)
        self._left_ns = left_ns - (
            perf_counter_ns() - began
        )  # The time that its products took is in it.
        if best is None:
            return supported[0]
        option, duration_ns = best
        self._used[key] = Pick(taken=str(option), duration_ns=duration_ns)
        return option

    def settle(self, picks: Picks | None) -> None:
        """Take the picks that all ranks agreed on, and time nothing from now on."""
        self._used = {} if picks is None else dict(picks.picks)
        self._is_settled = True

    def save(self) -> None:
        """Keep the picks that were used."""
        if self.used is not None:
            save_picks(self._folder, self.used)

    def _pick(self, key: str, library: ProductLibraryProtocol, device: TuningBench) -> Pick | None:
        """Pick of a product or choice that was used or, before ranks agreed, is kept."""
        if self._cached_picks is None:
            self._cached_picks = load_picks(self._folder, device.name, library.version)
        cached = {} if self._is_settled else self._cached_picks.picks
        return self._used.get(key) or cached.get(key)

    def _fastest(
        self,
        library: ProductLibraryProtocol,
        product: ProductCall,
        device: TuningBench,
        stream: int,
        workspace: StreamWorkspace,
    ) -> tuple[PlannedProduct, int] | None:
        """Fastest candidate and its time; None where there is no room or none of them runs."""
        copied, copied_bytes = copy_of(product)
        size_bytes = copied_bytes + CACHE_BYTES
        if size_bytes > device.free_bytes() * FREE_SHARE:
            return None
        candidates = library.candidates(product, workspace.size_bytes, CANDIDATES)
        with device.scratch(size_bytes) as base:
            begin = base + -base % PLACE_BYTES
            call = placed_at(copied, begin)
            fill(device, begin, copied_bytes, stream)
            flush = Clear(Operand(ADDRESS, 0, begin + copied_bytes), CACHE_BYTES - PLACE_BYTES)

            def timed_ns(candidate: PlannedProduct) -> int:
                run = partial(library.run, candidate, call, workspace.address, stream)
                return self._cold_ns(device, stream, flush, [run])

            return fastest(candidates, timed_ns, deadline_ns=perf_counter_ns() + self._left_ns)

    def _fastest_option(
        self, choice: KernelAlternatives, supported: Sequence[int], device: TuningBench, stream: int
    ) -> tuple[int, int] | None:
        """Fastest option and its time; None where there is one, no room, or none of them runs."""
        if len(supported) == 1 or device.free_bytes() * FREE_SHARE < CACHE_BYTES:
            return None
        with device.scratch(CACHE_BYTES) as base:
            flush = Clear(Operand(ADDRESS, 0, base), CACHE_BYTES)
            for option in supported:
                for call in choice.options[option]:
                    device.prepare(call, stream)

            def timed_ns(option: int) -> int:
                calls = [partial(device.issue, call, stream) for call in choice.options[option]]
                return self._cold_ns(device, stream, flush, calls)

            return fastest(supported, timed_ns, deadline_ns=perf_counter_ns() + self._left_ns)

    def _cold_ns(
        self, device: TuningBench, stream: int, flush: Clear, issues: Sequence[Callable[[], None]]
    ) -> int:
        """Nanoseconds of what is issued after the caches were flushed, once for every call."""
        if self._events is None:
            self._events = device.event(timed=True), device.event(timed=True)
        start, end = self._events
        for _ in issues:
            device.issue(flush, stream)
        device.record(start, stream)
        for issue in issues:
            issue()
        device.record(end, stream)
        device.synchronize(end)
        return device.elapsed_ns(start, end)


def fastest(
    candidates: Sequence[T], timed_ns: Callable[[T], int], *, deadline_ns: int
) -> tuple[T, int] | None:
    """Candidate of the least median time, and that time; of equals the one that comes first.

    Parameters
    ----------
    candidates
        In the order of preference.
    timed_ns
        Runs one and returns its time; one that raises an ExecutorError is left out.
    deadline_ns
        Time to stop at (`perf_counter_ns`); every candidate has one turn all the same.
    """
    times: list[tuple[T, list[int]]] = []
    for candidate in candidates:
        try:
            timed_ns(candidate)  # code is sent to the device at its first run
            times.append((candidate, [timed_ns(candidate)]))
        except ExecutorError:
            continue
    if not times:
        return None
    limit = FAR_BEHIND * min(durations[0] for _, durations in times)
    times = [each for each in times if each[1][0] <= limit]
    for _ in range(ROUNDS - 1):
        if len(times) == 1 or perf_counter_ns() > deadline_ns:
            break
        for candidate, durations in times:
            durations.append(timed_ns(candidate))
    candidate, durations = min(times, key=lambda each: median(each[1]))
    return candidate, round(median(durations))


def copy_of(product: ProductCall) -> tuple[ProductCall, int]:
    """A bound product with its parts behind each other from address 0, and their bytes.

    Every part is as aligned as it was, and parts that lay in one place do so again.
    """
    places: dict[Operand, int] = {}
    end = 0
    sizes = spans(product)
    for name, part in product.parts.items():
        if part.operand not in places:
            places[part.operand] = end + address_of(part.operand) % PLACE_BYTES
        last = places[part.operand] + sizes[name]
        end = max(end, -(-last // PLACE_BYTES) * PLACE_BYTES)
    changes: dict[str, Any] = {
        name: part._replace(operand=Operand(ADDRESS, 0, places[part.operand]))
        for name, part in product.parts.items()
    }
    return product._replace(**changes), end


def placed_at(product: ProductCall, base: int) -> ProductCall:
    """A product that lies from address 0 on, moved to another base."""
    changes: dict[str, Any] = {
        name: part._replace(operand=Operand(ADDRESS, 0, base + part.operand.offset_bytes))
        for name, part in product.parts.items()
    }
    return product._replace(**changes)


def fill(device: TuningBench, address: int, size_bytes: int, stream: int) -> None:
    """Fill memory with numbers, of which products of zeros would draw less power.

    Bits of bfloat16 from 0 to 1 are finite numbers in every floating dtype.
    """
    content = noise("bfloat16", NOISE_ELEMENTS).view(np.uint8)[:size_bytes]
    device.to_device(address, content)
    done = content.nbytes
    while done < size_bytes:
        more = min(done, size_bytes - done)
        device.copy_async(address + done, address, more, stream)
        done += more
