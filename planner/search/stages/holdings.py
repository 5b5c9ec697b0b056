"""Holdings: everything one stage may hold, as counts of variants, in arrays.

A *make-up* says how many blocks of each template a stage holds; its rows are all ways to give them
variants (multisets, for equal blocks are interchangeable). Only rows that no other beats in every
figure matter, and few of them are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from numpy.typing import NDArray

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.stages.shape import Lifetimes, Pipeline, VariantFigures

TOO_LARGE = 2**50  # bytes that no stage has, and that many blocks still add up
# Columns of figures; of what is kept per microbatch one for each lifetime.
TIME, UPDATE, DEFERRED, STAYS = range(4)
KEEPS = slice(4, None)


def figure_table(variants: Sequence[VariantFigures], pipeline: Pipeline) -> tuple[Ints, Ints]:
    """Figures of variants [V, columns], and their transient bytes [V].

    What is deferred counts in shares of one stage, so that all figures are whole numbers.
    """
    stages = pipeline.stages
    defers = pipeline.defers_weight_gradients
    rows = [
        (
            variant.microbatch_ns,
            variant.step_ns,
            defers * min(2 * variant.deferrable_ns * (stages - 1), variant.microbatch_ns * stages),
            variant.persistent_bytes,
            *variant.lifetimes[: pipeline.lifetimes],
        )
        for variant in variants
    ]
    transient = [variant.transient_bytes for variant in variants]
    return np.array(rows, np.int64), np.array(transient, np.int64)


_MULTISETS: dict[tuple[int, int], tuple[int, Floats, Ints]] = {}


def multisets(kinds: int, most: int, mixed: int) -> tuple[Floats, Ints]:
    """All counts of `kinds` things [rows, kinds], by their number up to `most`, and the starts.

    At most `mixed` of the kinds come together. Counts are floats, which multiply fastest.
    """
    # Multisets of fewer things are the first rows of those of more.
    mixed = min(mixed, kinds)
    cached = _MULTISETS.get((kinds, mixed))
    if cached is None or cached[0] < most:
        cached = (most, *_counted(kinds, most, mixed))
        _MULTISETS[kinds, mixed] = cached
    _, table, starts = cached
    return table[: starts[most + 1]], starts[: most + 2]


def _counted(kinds: int, most: int, mixed: int) -> tuple[Floats, Ints]:
    total = np.arange(most + 1, dtype=np.int16)
    kinds_used = np.minimum(total, 1)
    columns = [total]
    for _ in range(kinds - 1):
        # Rows with so many more of the next kind, those with none of it first.
        rows = [np.flatnonzero(kinds_used <= mixed)]
        rows += [
            np.flatnonzero((total <= most - n) & (kinds_used < mixed)) for n in range(1, most + 1)
        ]
        taken = np.concatenate(rows)
        more = np.repeat(
            np.arange(most + 1, dtype=np.int16), [len(part_rows) for part_rows in rows]
        )
        columns = [*(column[taken] for column in columns), more]
        total, kinds_used = total[taken] + more, kinds_used[taken] + (more > 0)
    order = np.argsort(total, kind="stable")
    table = np.empty((len(order), kinds), order="F")
    for kind, column in enumerate(columns):
        table[:, kind] = column[order]
    return table, np.searchsorted(total[order], np.arange(most + 2))


def multiset_count(kinds: int, number: int, mixed: int) -> int:
    """Number of multisets of so many things, at most `mixed` of the kinds together."""
    if not number:
        return 1
    most = min(kinds, number, mixed)
    return sum(
        comb(kinds, distinct) * comb(number - 1, distinct - 1) for distinct in range(1, most + 1)
    )


class Palette:
    """Variants of one template, and the multisets of them that may be worth holding.

    Parameters
    ----------
    kinds : tuple
        Figures and transient bytes of the variants per kind of device.
    stages : int
    exchange : bool
        True if two blocks may be exchanged for two others wherever they lie: one chunk a stage.
    mixed : int
        Variants that a stage may mix.
    """

    def __init__(
        self, kinds: tuple[tuple[Ints, Ints], ...], stages: int, exchange: bool, mixed: int
    ) -> None:
        self.kinds = kinds
        self.stages = stages
        self._figures = np.concatenate([figures for figures, _ in kinds], axis=1)
        self._sections = np.column_stack([sections for _, sections in kinds])
        self.numbers = self._undominated()
        # Two of one kind may have to be exchanged for two that are not held yet.
        self.exchange = exchange and mixed >= self.size
        self.mixed = mixed
        self._tables: dict[int, tuple[Floats, Ints]] = {}
        self._least: dict[tuple[int, Lifetimes, bytes], Ints] = {}

    @property
    def columns(self) -> int:
        """Number of figures of a variant."""
        return int(self.kinds[0][0].shape[1])

    @property
    def size(self) -> int:
        """Number of variants that no other beats."""
        return len(self.numbers)

    def _strict(self, groups: Ints) -> Ints:
        """Figures that must not grow when blocks are exchanged [G, blocks], kind by kind."""
        sums = self._figures[groups].sum(axis=1).reshape(len(groups), len(self.kinds), self.columns)
        ramp = sums[..., [TIME]] * self.stages - sums[..., [DEFERRED]]
        plain = np.concatenate([sums[..., [TIME, UPDATE, STAYS]], sums[..., KEEPS]], axis=-1)
        pieces = [plain.reshape(len(groups), -1), ramp.reshape(len(groups), -1)]
        return np.concatenate([*pieces, self._sections[groups].max(axis=1)], axis=1)

    def _undominated(self) -> tuple[int, ...]:
        """Variants that no other beats; of those alike the first."""
        figures = self._strict(np.arange(len(self._figures))[:, None])
        no_more = (figures[:, None] <= figures).all(axis=2)
        first = np.triu(np.ones_like(no_more), 1)
        beats = no_more & (~no_more.T | first)
        return tuple(np.flatnonzero(~beats.any(axis=0)).tolist())

    def count(self, number: int) -> int:
        """Number of ways to hold so many blocks."""
        return multiset_count(self.size, number, self.mixed)

    def least_bytes(self, kind: int, inflight: Lifetimes, levels: Ints) -> Ints:
        """Bytes of the smallest variant whose sections stay within each level."""
        key = kind, inflight, levels.tobytes()
        if key not in self._least:
            figures, sections = self.kinds[kind]
            size = figures[:, STAYS] + figures[:, KEEPS] @ inflight
            fits = sections[:, None] <= levels
            self._least[key] = np.where(fits, size[:, None], TOO_LARGE).min(axis=0)
        return self._least[key]

    def table(self, most: int) -> tuple[Floats, Ints]:
        """Counts of the variants in `numbers`, and where each number of blocks starts."""
        if most not in self._tables:
            table, starts = multisets(self.size, most, self.mixed)
            if self.exchange and self.size > 2 and most > 1:
                keep = self._unexchanged(table)
                starts = np.concatenate([[0], np.cumsum(keep)])[starts]
                table = table[keep]
            self._tables[most] = (table, starts)
        return self._tables[most]

    def within(
        self,
        kind: int,
        most: int,
        number: int,
        inflight: Lifetimes,
        time_ns: int,
        memory_bytes: int,
    ) -> tuple[Ints, Ints, Ints]:
        """Rows of so many blocks that there is room for, their figures and largest sections."""
        table, starts = self.table(most)
        begin, end = int(starts[number]), int(starts[number + 1])
        variant_figures, sections = (array[list(self.numbers)] for array in self.kinds[kind])
        # Whole numbers that floats hold exactly: a stage's nanoseconds and bytes.
        figures = variant_figures.astype(np.float64)
        need = figures[:, [TIME, STAYS]]
        need[:, 1] += figures[:, KEEPS] @ inflight
        taken = table[begin:end] @ need
        rows = np.flatnonzero((taken[:, 0] <= time_ns) & (taken[:, 1] <= memory_bytes))
        counts = table[begin:end][rows]
        largest = np.zeros(len(rows), np.int64)
        for column, section in zip(counts.T, sections, strict=True):
            np.maximum(largest, section, out=largest, where=column > 0)
        return begin + rows, (counts @ figures).astype(np.int64), largest

    def _unexchanged(self, table: Floats) -> NDArray[np.bool_]:
        """Rows that hold no two blocks for which two others are better in everything."""
        pairs = list(combinations_with_replacement(range(self.size), 2))
        sums = self._strict(np.array(self.numbers)[np.array(pairs)])
        keep = np.ones(len(table), bool)
        for pair, (first, second) in enumerate(pairs):
            better = (sums <= sums[pair]).all(axis=1)
            strictly = better & (sums < sums[pair]).any(axis=1)
            if strictly.any():
                has_second = table[:, second] > 0 if first != second else table[:, first] > 1
                keep &= ~(has_second & (table[:, first] > 0))
        return keep


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Holdings:
    """Rows of figures of what a stage may hold, by make-up.

    Attributes
    ----------
    makeup : array [rows]
        Number of the row's make-up, ascending.
    time, ramp, update, base : array [rows]
        Nanoseconds (`ramp` in shares of one stage), and bytes whatever is in flight.
    keeps : array [rows, K]
        Bytes that count as often as microbatches are alive, which each stage says of each: of every
        part one column for each lifetime.
    picks : array [rows, parts]
        Row of each part in its palette's table.
    """

    makeup: Ints
    time: Ints
    ramp: Ints
    update: Ints
    base: Ints
    keeps: Ints
    picks: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRoom:
    """Room of a stage: time and bytes at most, and the fewest microbatches alive by part."""

    time_ns: int
    memory_bytes: int
    inflight: tuple[Lifetimes, ...]


def rows_of(
    parts: Sequence[tuple[Palette, int]], kind: int, most: int, makeup: int, room: StageRoom
) -> Holdings:
    """Every way to hold one make-up, so many blocks of each palette, that there is room for."""
    columns = parts[0][0].columns if parts else KEEPS.start
    sums = np.zeros((1, columns), np.int64)
    transient = np.zeros(1, np.int64)
    kept_bytes = np.zeros(1, np.int64)
    keeps = np.zeros((1, 0), np.int64)
    picks = np.zeros((1, 0), np.int64)
    stages = 1
    for (palette, count), inflight in zip(parts, room.inflight, strict=True):
        stages = palette.stages
        # Parts only add to what the others take.
        left = room.time_ns - int(sums[:, TIME].min(initial=room.time_ns))
        spare = room.memory_bytes - int(
            (sums[:, STAYS] + kept_bytes).min(initial=room.memory_bytes)
        )
        first, here, largest = palette.within(kind, most, count, inflight, left, spare)
        a, b = len(sums), len(here)
        sums = (sums[:, None] + here).reshape(a * b, columns)
        transient = np.maximum(transient[:, None], largest).ravel()
        kept_bytes = (kept_bytes[:, None] + here[:, KEEPS] @ inflight).ravel()
        fits = sums[:, TIME] <= room.time_ns
        fits &= sums[:, STAYS] + transient + kept_bytes <= room.memory_bytes
        rows = np.flatnonzero(fits)
        before, added = np.divmod(rows, max(b, 1))
        sums, transient, kept_bytes = sums[rows], transient[rows], kept_bytes[rows]
        keeps = np.column_stack([keeps[before], here[added, KEEPS]])
        picks = np.column_stack([picks[before], first[added]])
    time = sums[:, TIME]
    return Holdings(
        makeup=np.full(len(sums), makeup),
        time=time,
        ramp=stages * time - sums[:, DEFERRED],
        update=sums[:, UPDATE],
        base=sums[:, STAYS] + transient,
        keeps=keeps,
        picks=picks,
    )


def joined(pieces: Sequence[Holdings]) -> Holdings:
    """Rows of several make-ups together; parts that one has not are zero."""

    def padded(arrays: list[Ints]) -> Ints:
        columns = max(array.shape[1] for array in arrays)
        missing = [np.zeros((len(array), columns - array.shape[1]), np.int64) for array in arrays]
        return np.concatenate([np.column_stack(pair) for pair in zip(arrays, missing, strict=True)])

    return Holdings(
        makeup=np.concatenate([piece.makeup for piece in pieces]),
        time=np.concatenate([piece.time for piece in pieces]),
        ramp=np.concatenate([piece.ramp for piece in pieces]),
        update=np.concatenate([piece.update for piece in pieces]),
        base=np.concatenate([piece.base for piece in pieces]),
        keeps=padded([piece.keeps for piece in pieces]),
        picks=padded([piece.picks for piece in pieces]),
    )


def frontier(makeup: Ints, time: Ints, ramp: Ints, update: Ints) -> Ints:
    """Rows, sorted by make-up and time, less those that another of their make-up beats."""
    if not len(makeup):
        return np.zeros(0, np.int64)
    new = np.ones(len(makeup), bool)
    np.not_equal(makeup[1:], makeup[:-1], out=new[1:])
    starts = np.flatnonzero(new)
    of: Ints = np.cumsum(new)
    # First leave out everything that one fastest row of the make-up beats: it is most of them.
    fastest = time == np.minimum.reduceat(time, starts)[of - 1]
    huge = np.iinfo(np.int64).max
    least = np.minimum.reduceat(np.where(fastest, update, huge), starts)[of - 1]
    fastest &= update == least
    left = np.minimum.reduceat(np.where(fastest, ramp, huge), starts)[of - 1]
    fastest &= ramp == left
    rows = np.flatnonzero(fastest | (update < least) | (ramp < left))
    rows = rows[np.lexsort((update[rows], ramp[rows], time[rows], of[rows]))]
    of = of[rows]
    keep = _falls(update[rows], of) | _falls(ramp[rows], of)
    return rows[keep]


def _falls(values: Ints, of: Ints) -> NDArray[np.bool_]:
    """Mask of values that are below all before them in their group."""
    # Groups are set so far apart that the least so far is always of one's own.
    apart = values - of * (int(values.max()) - int(values.min()) + 1)
    least = np.minimum.accumulate(apart)
    falls = np.ones(len(values), bool)
    falls[1:] = (of[1:] != of[:-1]) | (apart[1:] < least[:-1])
    return falls
