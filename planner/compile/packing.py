"""Packing: places for what a stage keeps from one section to another, by lifetimes.

A *bundle* is what a chunk makes in one part of the step and reads last in another: its registers
are alive together. In the stage's static order a version of it is alive from the turn of the one
part to the turn of the other. Intervals of one size need as many places as are alive at once: each
takes a place that is free, or a new one where none is (colouring of interval graphs; Golumbic,
"Algorithmic Graph Theory and Perfect Graphs", 1980, chapter 8). So the registers of one size,
whatever their bundles, need

    size · max over turns Σ over bundles (registers of that size · versions alive)

bytes, and all sizes need the sum of that. It is more than the most bytes alive at once where sizes
are at their most at different turns. To bring it near, small registers of a bundle are gathered
into *pieces*, which lie one register after another in a place of a larger size. Which size that is,
and of which bundles, is tried.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.planner.compile.stage_ir import SLOT_PARTS, Section

# A search for pieces leaves undone one part in GAP of the bytes that are alive at once, and a
# further size must save one in GAIN of them.
GAP, GAIN = 256, 1024
EMPTY = (16, 4)  # one part in so many of its place, a piece leaves empty at most; tried in turn
SIZES = 4  # of registers, those that hold most, whose multiples are tried as pieces
MULTIPLES = 8  # up to which they are tried

UNSTRETCHED = -1  # no stretch, but the whole section

Turns = NDArray[np.int64]  # one of every microbatch
Counts = NDArray[np.float64]  # whole numbers: exact, and multiplied faster than integers


class Bundle(NamedTuple):
    """Registers of a chunk of a stage that are alive together.

    They are made in part `start` and read last in part `end`: F, B, W or BW. The `stretch` is that
    of B in which they are made, or read last.
    """

    chunk: int
    start: str
    end: str
    stretch: int = UNSTRETCHED


Sizes = Mapping[Bundle, Mapping[int, int]]  # number of registers by bytes of a slot


class PackedPiece(NamedTuple):
    """Registers of a bundle that lie one after another in a place, by their bytes."""

    place_bytes: int
    sizes: tuple[int, ...]


Pieces = Counter[PackedPiece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Pieces of every bundle, and how many places of every size they have together.

    In sizes that are `shared`, bundles have fewer places than each needs by itself.
    """

    pieces: dict[Bundle, Pieces]
    places: dict[int, int]
    shared: tuple[int, ...]
    alive_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all places."""
        return _size_bytes(self.places)

    def of_size(self, place_bytes: int) -> dict[Bundle, list[PackedPiece]]:
        """Pieces of a size of every bundle, one by one."""
        rows = {
            bundle: sorted(piece for piece in row.elements() if piece.place_bytes == place_bytes)
            for bundle, row in self.pieces.items()
        }
        return {bundle: row for bundle, row in rows.items() if row}


def packed(sizes: Sizes, turns: Mapping[Section, Turns]) -> Packing:
    """Pieces and places that need few more bytes than are alive at once.

    Parameters
    ----------
    sizes : mapping of Bundle to mapping of int to int
        Number of the bundle's registers by bytes of a slot, which are more than 0.
    turns : mapping of Section to int array (microbatches,)
        The place of every section in the stage's order, by microbatch (`Timetable.turns`).

    Notes
    -----
    At first every register is a piece. As long as it helps, all bundles, or those of one chunk and
    life, are gathered into pieces of one more size, the one after which least is needed. So no more
    is needed than by registers of one size that share places. Stretches make more bundles, of fewer
    registers each: where nothing comes of that they are left out. What comes out depends on sizes
    and counts alone.

    Of one size, as many places are needed as are alive at once: colouring of interval graphs
    (Golumbic, "Algorithmic Graph Theory and Perfect Graphs", 1980, chapter 8).
    """
    unstretched: dict[Bundle, Counter[int]] = {}
    for bundle, counts in sizes.items():
        unstretched.setdefault(bundle._replace(stretch=UNSTRETCHED), Counter()).update(counts)
    packing = _packed(unstretched, turns)
    if len(unstretched) == len(sizes):
        return packing
    stretched = _packed(sizes, turns)
    saved = packing.size_bytes - stretched.size_bytes
    return stretched if saved * GAIN > packing.alive_bytes else packing


def alive_at_once(bundles: Sequence[Bundle], turns: Mapping[Section, Turns]) -> Counts:
    """Versions alive of every bundle, a row each, at the moments when there may be most."""
    times = _times(bundles, turns)
    moments = np.unique(np.concatenate([begins for begins, _ in times.values()]))
    alive = [
        np.searchsorted(begins, moments, "right") - np.searchsorted(ends, moments, "left")
        for begins, ends in times.values()
    ]
    columns = np.ascontiguousarray(np.array(alive, np.int32).T)
    distinct = b"".join(dict.fromkeys(column.tobytes() for column in columns))
    return _largest(np.frombuffer(distinct, np.int32).reshape(-1, len(bundles)).T)


def _largest(columns: NDArray[np.int32]) -> Counts:
    """Columns than which no other is at least as large in every row."""
    largest = np.zeros((len(columns), 0))
    for index in np.argsort(-columns.sum(axis=0), kind="stable"):
        column = columns[:, [index]]
        if not (largest >= column).all(axis=0).any():
            largest = np.hstack((largest, column))
    return largest


def taken_in_turn(
    counts: Mapping[Bundle, int], turns: Mapping[Section, Turns]
) -> dict[Bundle, list[tuple[int, ...]]]:
    """Places of every microbatch's version, for so many pieces of bundles: a row for each piece.

    A version takes the places that have been free longest when its turn begins, and new ones where
    there are too few; it leaves them when the turn that reads it last is over.
    """
    events = sorted(
        (moment, ends, bundle, microbatch)
        for bundle, times in _times(list(counts), turns).items()
        for ends, row in enumerate(times)
        for microbatch, moment in enumerate(row.tolist())
    )
    taken: dict[Bundle, list[list[int]]] = {bundle: [] for bundle in counts}
    free: deque[int] = deque()
    count = 0
    for _, ends, bundle, microbatch in events:
        if ends:
            free.extend(taken[bundle][microbatch])
            continue
        places = [free.popleft() for _ in range(min(counts[bundle], len(free)))]
        new = counts[bundle] - len(places)
        taken[bundle].append([*places, *range(count, count + new)])
        count += new
    return {bundle: list(zip(*rows, strict=True)) for bundle, rows in taken.items()}


def _packed(sizes: Sizes, turns: Mapping[Section, Turns]) -> Packing:
    """Pieces of these bundles as they are, and their places."""
    bundles = sorted(bundle for bundle, counts in sizes.items() if counts)
    if not bundles:
        return Packing(pieces={}, places={}, shared=(), alive_bytes=0)
    alive = alive_at_once(bundles, turns)
    pieces = [
        Counter({PackedPiece(size, (size,)): count for size, count in sizes[bundle].items()})
        for bundle in bundles
    ]
    bundle_bytes = np.array(
        [sum(piece.place_bytes * n for piece, n in row.items()) for row in pieces]
    )
    alive_bytes = int((bundle_bytes @ alive).max())
    needed = _size_bytes(_places(pieces, alive))
    allowed = deque(EMPTY)
    while allowed and needed > alive_bytes + alive_bytes // GAP:
        least, gathered = _gathered_once(bundles, pieces, alive, allowed[0])
        if least < needed - alive_bytes // GAIN:
            needed, pieces = least, gathered
        else:
            allowed.popleft()
    places = _places(pieces, alive)
    return Packing(
        pieces=dict(zip(bundles, pieces, strict=True)),
        places=places,
        shared=_shared(pieces, places, alive),
        alive_bytes=alive_bytes,
    )


def _gathered_once(
    bundles: Sequence[Bundle], pieces: Sequence[Pieces], alive: Counts, empty: int
) -> tuple[int, list[Pieces]]:
    """Fewest bytes after gathering into one more size, all bundles or those of one life."""
    tried = _piece_sizes(pieces, alive)
    sizes = np.array(sorted({*tried, *(piece.place_bytes for row in pieces for piece in row)}))
    counts = _of_sizes(pieces, sizes.tolist())
    used = counts @ alive
    lives = sorted({bundle[:3] for bundle in bundles})
    groups = [np.array([bundle[:3] == life for bundle in bundles]) for life in lives]
    groups.append(np.ones(len(bundles), bool))
    options: list[tuple[int, int, int, list[Pieces]]] = []
    for place_bytes in tried:
        gathered = _all_gathered(pieces, place_bytes, place_bytes // empty)
        change = _of_sizes(gathered, sizes.tolist()) - counts
        changed = np.flatnonzero(change.any(axis=1))
        rest = used.max(axis=1) @ sizes - used[changed].max(axis=1) @ sizes[changed]
        for number, group in enumerate(groups if len(changed) else ()):
            now = used[changed] + change[np.ix_(changed, group)] @ alive[group]
            needed = int(rest + now.max(axis=1) @ sizes[changed])
            options.append((needed, place_bytes, number, gathered))
    if not options:
        return int(used.max(axis=1) @ sizes), list(pieces)
    least, _, number, gathered = min(options, key=lambda option: option[:3])
    rows = zip(pieces, gathered, groups[number].tolist(), strict=True)
    return least, [after if chosen else before for before, after, chosen in rows]


def _times(
    bundles: Sequence[Bundle], turns: Mapping[Section, Turns]
) -> dict[Bundle, tuple[Turns, Turns]]:
    """Moments at which versions of bundles are made, and are read last, by microbatch.

    A turn has a moment for each stretch, and a last one, when all of them are over.
    """
    last = 1 + max(bundle.stretch for bundle in bundles)

    def moments(bundle: Bundle, part: str, otherwise: int) -> Turns:
        stretched = part == "B" and bundle.stretch != UNSTRETCHED
        turn = turns[SLOT_PARTS[part][0], bundle.chunk]
        return turn * (last + 1) + (bundle.stretch if stretched else otherwise)

    return {
        bundle: (moments(bundle, bundle.start, 0), moments(bundle, bundle.end, last))
        for bundle in bundles
    }


def _size_bytes(places: Mapping[int, int]) -> int:
    return sum(size * count for size, count in places.items())


def _places(pieces: Sequence[Pieces], alive: Counts) -> dict[int, int]:
    """Number of places of every size in use at once, the largest first."""
    sizes = sorted({piece.place_bytes for row in pieces for piece in row}, reverse=True)
    most = (_of_sizes(pieces, sizes) @ alive).max(axis=1)
    return dict(zip(sizes, map(int, most.tolist()), strict=True))


def _of_sizes(pieces: Sequence[Pieces], sizes: Sequence[int]) -> Counts:
    """Number of pieces of every size (rows) that a version of every bundle (columns) has."""
    counts = np.zeros((len(sizes), len(pieces)))
    rows = {size: row for row, size in enumerate(sizes)}
    for column, of_bundle in enumerate(pieces):
        for piece, count in of_bundle.items():
            counts[rows[piece.place_bytes], column] += count
    return counts


def _shared(pieces: Sequence[Pieces], places: Mapping[int, int], alive: Counts) -> tuple[int, ...]:
    """Sizes of which bundles that are each at their most would need more places."""
    sizes = list(places)
    apart = _of_sizes(pieces, sizes) @ alive.max(axis=1)
    gathered = {
        piece.place_bytes for row in pieces for piece in row if piece.sizes != (piece.place_bytes,)
    }
    return tuple(
        size
        for size, most in zip(sizes, apart.tolist(), strict=True)
        if most > places[size] or size in gathered
    )


def _piece_sizes(pieces: Sequence[Pieces], alive: Counts) -> list[int]:
    """Multiples of those registers' sizes that hold most, up to the largest bundle."""
    most = Counter[int]()
    for row, versions in zip(pieces, alive.max(axis=1).astype(int).tolist(), strict=True):
        for piece, count in row.items():
            most[piece.place_bytes] += piece.place_bytes * count * versions
    largest = max(sum(piece.place_bytes * n for piece, n in row.items()) for row in pieces)
    sizes = sorted(most, key=lambda size: (-most[size], size))[:SIZES]
    tried = {n * size for size in sizes for n in range(1, MULTIPLES + 1)}
    return sorted(size for size in tried if size <= largest)


def _all_gathered(pieces: Sequence[Pieces], place_bytes: int, empty_bytes: int) -> list[Pieces]:
    """Pieces of every bundle gathered; chunks that are alike cost nothing."""
    gathered: dict[frozenset[tuple[PackedPiece, int]], Pieces] = {}
    for row in pieces:
        if (key := frozenset(row.items())) not in gathered:
            gathered[key] = _gathered(row, place_bytes, empty_bytes)
    return [gathered[frozenset(row.items())] for row in pieces]


def _gathered(pieces: Pieces, place_bytes: int, empty_bytes: int) -> Pieces:
    """Pieces of a bundle in as many places of a size as they fill, the largest first."""
    left = Counter(pieces)
    order = sorted((piece for piece in pieces if piece.place_bytes <= place_bytes), reverse=True)
    full: Pieces = Counter()
    while True:
        room, members = place_bytes, dict[PackedPiece, int]()
        for piece in order:
            if count := min(left[piece], room // piece.place_bytes):
                members[piece] = count
                room -= count * piece.place_bytes
        if not members or room > empty_bytes:
            return full + left
        times = min(left[piece] // count for piece, count in members.items())
        sizes = tuple(size for piece, n in members.items() for size in piece.sizes * n)
        full[PackedPiece(place_bytes, sizes)] += times
        left.subtract({piece: times * count for piece, count in members.items()})
