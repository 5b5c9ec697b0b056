"""Layout: which make-ups every stage may hold, so that together they are the model.

With one chunk a stage, stage s holds the blocks from one cut to the next; a state is the number of
blocks before a cut. With several, the runs before and after the longest one lie at the first and
last positions in one of a few ways, and what is left to divide are the equal blocks of the longest
run: only how many a stage holds matters, and a state is how many the stages so far hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from typing import Protocol

import numpy as np

from millrace.models.arrays import Ints
from millrace.planner.search.stages.holdings import (
    KEEPS,
    Holdings,
    Palette,
    StageRoom,
    figure_table,
    joined,
    rows_of,
)
from millrace.planner.search.stages.shape import (
    BlockRun,
    Lifetimes,
    Pipeline,
    beyond,
    fewest,
    lifetime_counts,
)

ROWS_MAX = 1_500_000  # rows over all stages beyond which nothing is enumerated
ENDS_MAX = 6  # blocks before, and after, the longest run that are laid out in every way

Chunks = tuple[tuple[tuple[str, int], ...], ...]
# A palette, microbatches in flight, and how many such blocks every make-up has.
Piece = tuple[Palette, Lifetimes, Ints]


NOTHING = rows_of((), 0, 0, 0, StageRoom(time_ns=0, memory_bytes=-1, inflight=()))


class TooManyError(Exception):
    """There is too much to enumerate."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StagePlace:
    """Holdings that one stage may have, in one layout.

    Attributes
    ----------
    holdings : Holdings
    makeup_at : array [window, states]
        Make-up that takes `window` units to reach a state; -1 where there is none.
    inflight : tuple of int
        Number of times that each of the holdings' `keeps` counts, lifetime by lifetime.
    """

    holdings: Holdings
    makeup_at: Ints
    inflight: tuple[int, ...]


class Model:
    """Blocks of a model and the palettes of their templates, over one pipeline.

    Parameters
    ----------
    runs : tuple of BlockRun
    pipeline : Pipeline
    mixed : int
        Variants of one template that a stage may mix.
    inflight : tuple, optional
        Microbatches alive at each position by lifetime, where not by the pipeline's schedule.
    """

    def __init__(
        self,
        runs: tuple[BlockRun, ...],
        pipeline: Pipeline,
        mixed: int,
        inflight: tuple[Lifetimes, ...] | None = None,
    ) -> None:
        self.runs = runs
        self.pipeline = pipeline
        counts = inflight or lifetime_counts(pipeline)
        self.inflight = tuple(position_counts[: pipeline.lifetimes] for position_counts in counts)
        self.stages: list[list[int]] = [[] for _ in range(pipeline.stages)]
        for position in range(pipeline.positions):
            self.stages[pipeline.stage_of(position)].append(position)
        self.device_kinds = sorted(set(pipeline.kinds))
        self._levels: dict[int, Ints] = {}
        palette_numbers: dict[object, int] = {}
        self.palettes: list[Palette] = []
        self.palette_of: list[int] = []
        for run in runs:
            figures = tuple(run.on(kind) for kind in range(max(self.device_kinds) + 1))
            if figures not in palette_numbers:
                palette_numbers[figures] = len(self.palettes)
                tables = tuple(figure_table(variants, pipeline) for variants in figures)
                self.palettes.append(
                    Palette(tables, pipeline.stages, pipeline.interleave == 1, mixed)
                )
            self.palette_of.append(palette_numbers[figures])
        self.blocks = [
            palette for palette, run in zip(self.palette_of, runs, strict=True) for _ in run.blocks
        ]

    def transient_levels(self, kind: int) -> Ints:
        """Sizes that the largest section of a stage may have."""
        if kind not in self._levels:
            sections = [palette.kinds[kind][1][list(palette.numbers)] for palette in self.palettes]
            self._levels[kind] = np.unique(np.concatenate(sections))
        return self._levels[kind]

    def layouts(self, window: int) -> Iterator["RunLayout"]:
        """Every way to lay the runs out, stages holding at most `window` blocks of a kind.

        Raises
        ------
        TooManyError
            There are too many ways, or rows.
        """
        if self.pipeline.interleave == 1:
            yield Cuts(self, window)
            return
        for ends in end_layouts(self.runs, self.pipeline.positions):
            yield Counts(self, window, ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Places of the blocks before and after the longest run, and the chunks between which it lies.

    `places` are runs with positions, a pair for every block; `main` is the longest run.
    """

    main: int
    places: tuple[tuple[int, int], ...]
    low: int
    high: int


def end_layouts(runs: tuple[BlockRun, ...], positions: int) -> Iterator[Ends]:
    """Every way to lay out the ends, each block on the chunk of the one before or on the next.

    Raises
    ------
    TooManyError
        There are too many ways.
    """
    main = max(range(len(runs)), key=lambda r: len(runs[r].blocks))
    before = [r for r in range(main) for _ in runs[r].blocks]
    after = [r for r in range(main + 1, len(runs)) for _ in runs[r].blocks]
    if max(len(before), len(after)) > ENDS_MAX:
        raise TooManyError
    last = positions - 1
    for steps in product((0, 1), repeat=max(len(before) - 1, 0)):
        first = np.cumsum((0, *steps)).tolist()[: len(before)]
        for back in product((0, 1), repeat=max(len(after) - 1, 0)):
            ends = [last - p for p in np.cumsum((0, *back)).tolist()[: len(after)][::-1]]
            low, high = max(first, default=0), min(ends, default=last)
            if low <= high:
                pairs = [*zip(before, first, strict=True), *zip(after, ends, strict=True)]
                yield Ends(main=main, places=tuple(pairs), low=low, high=high)


class RunLayout(Protocol):
    """One way to lay the runs out: what every stage may hold, and the chunks of what it does."""

    states: int

    def makeup_at(self, stage: int) -> Ints:
        """Make-up with which a stage reaches a state [window, states]; -1 where there is none."""

    def pieces(self, stage: int) -> list[Piece]:
        """Pieces that the make-ups of a stage consist of."""

    def places(self, longest: int, limits: tuple[int, ...]) -> list[StagePlace]:
        """Holdings of every stage within a time and its bytes; raises TooManyError."""

    def chunks(self, places: list[StagePlace], taken: Sequence[int]) -> Chunks:
        """Blocks and variants per position, where each stage holds one row."""


class Cuts:
    """One chunk a stage: every piece between two cuts of the model."""

    def __init__(self, model: Model, window: int) -> None:
        self.model = model
        blocks, stages = len(model.blocks), model.pipeline.stages
        self.window = min(window, blocks - stages + 1)
        self.states = blocks
        counts = np.zeros((blocks + 1, len(model.palettes)), np.int64)
        for block, palette in enumerate(model.blocks):
            counts[block + 1] = counts[block]
            counts[block + 1, palette] += 1
        sizes, ends = np.ogrid[: self.window + 1, : blocks + 1]
        begins = ends - sizes
        pieces = counts[ends] - counts[np.maximum(begins, 0)]
        key = np.zeros(begins.shape, object if len(model.palettes) > 8 else np.int64)
        for palette in range(len(model.palettes)):
            key = key * (blocks + 1) + pieces[..., palette]
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        self.makeups = pieces.reshape(-1, len(model.palettes))[first]
        self.number = np.where((begins >= 0) & (sizes > 0), number.reshape(begins.shape), -1)
        self.begins, self.ends = begins, ends

    def makeup_at(self, stage: int) -> Ints:
        """Make-up with which a stage reaches a state [window, states]; -1 where there is none."""
        return self.number

    def _reached(self, stage: int) -> Ints:
        """Make-ups, but none where stages before or after are left too few or many blocks."""
        behind = self.model.pipeline.stages - 1 - stage
        left = self.states - self.ends
        ends = (left >= behind) & (left <= behind * self.window)
        begins = (self.begins >= stage) & (self.begins <= stage * self.window)
        return np.where(ends & begins, self.number, -1)

    def pieces(self, stage: int) -> list[Piece]:
        """Pieces that the make-ups of a stage consist of."""
        inflight = self.model.inflight[stage]
        counts = self.makeups.T
        return [(p, inflight, n) for p, n in zip(self.model.palettes, counts, strict=True)]

    def places(self, longest: int, limits: tuple[int, ...]) -> list[StagePlace]:
        """Holdings of every stage within a time and its bytes; raises TooManyError."""
        model = self.model
        ways = [
            prod(p.count(n) for p, n in zip(model.palettes, counts, strict=True))
            for counts in self.makeups.tolist()
        ]
        stages = range(model.pipeline.stages)
        makeups = [self._reached(stage) for stage in stages]
        keys = []
        total = 0
        for stage in stages:
            used = tuple(np.flatnonzero(np.bincount(makeups[stage].ravel() + 1)[1:]).tolist())
            total += sum(ways[makeup] for makeup in used)
            if total > ROWS_MAX:
                raise TooManyError
            keys.append((model.pipeline.kinds[stage], used))
        holdings = {}
        for key in dict.fromkeys(keys):
            alike = [stage for stage in stages if keys[stage] == key]
            inflight = fewest(model.inflight[stage] for stage in alike)
            holdings[key] = self._holdings(
                *key, longest, max(limits[stage] for stage in alike), inflight
            )
        return [
            StagePlace(
                holdings=holdings[keys[stage]],
                makeup_at=makeups[stage],
                inflight=model.inflight[stage] * holdings[keys[stage]].picks.shape[1],
            )
            for stage in stages
        ]

    def _holdings(
        self, kind: int, used: tuple[int, ...], longest: int, limit: int, inflight: Lifetimes
    ) -> Holdings:
        pieces = []
        for makeup in used:
            parts = self._parts(makeup)
            room = StageRoom(time_ns=longest, memory_bytes=limit, inflight=(inflight,) * len(parts))
            pieces.append(rows_of(parts, kind, self.window, makeup, room))
        return joined(pieces) if pieces else NOTHING

    def _parts(self, makeup: int) -> list[tuple[Palette, int]]:
        counts = self.makeups[makeup].tolist()
        return [(p, n) for p, n in zip(self.model.palettes, counts, strict=True) if n]

    def chunks(self, places: list[StagePlace], taken: Sequence[int]) -> Chunks:
        """Blocks and variants per position, where each stage holds one row."""
        names = [name for run in self.model.runs for name in run.blocks]
        chunks = []
        begin = 0
        for place, row in zip(places, taken, strict=True):
            makeup = int(place.holdings.makeup[row])
            parts = self._parts(makeup)
            left = {
                id(palette): picked(palette, self.window, int(pick))
                for (palette, count), pick in zip(parts, place.holdings.picks[row], strict=False)
            }
            size = sum(count for _, count in parts)
            chunks.append(
                tuple(
                    (names[b], left[id(self.model.palettes[self.model.blocks[b]])].pop(0))
                    for b in range(begin, begin + size)
                )
            )
            begin += size
        return tuple(chunks)


class Counts:
    """Several chunks a stage: the ends have their positions, the longest run only has counts."""

    def __init__(self, model: Model, window: int, ends: Ends) -> None:
        self.model = model
        self.main = main = ends.main
        self.ends = ends.places  # (run, position) of every block before and after the longest run
        self.states = len(model.runs[main].blocks)
        self.window = min(window, self.states)
        taken = {position for _, position in ends.places}
        # The longest run may lie on `open` chunks of a stage and must on `due` ones: none is empty.
        self.open = [[k for k in on if ends.low <= k <= ends.high] for on in model.stages]
        self.due = [[k for k in on if k not in taken] for on in model.stages]
        self.palette = model.palettes[model.palette_of[main]]
        self._reached: dict[tuple[int, int], Ints] = {}

    def makeup_at(self, stage: int) -> Ints:
        """Make-up with which a stage reaches a state [window, states]; -1 where there is none."""
        least, most = len(self.due[stage]), self.window if self.open[stage] else 0
        if (least, most) not in self._reached:
            counts, states = np.ogrid[: self.window + 1, : self.states + 1]
            reached = (counts >= least) & (counts <= most) & (counts <= states)
            self._reached[least, most] = np.where(reached, counts, -1)
        return self._reached[least, most]

    def pieces(self, stage: int) -> list[Piece]:
        """Pieces that the make-ups of a stage consist of."""
        model, main = self.model, self.palette
        counts = np.arange(self.window + 1)
        pieces: list[Piece] = [
            (model.palettes[model.palette_of[run]], model.inflight[position], np.ones_like(counts))
            for run, position in self.ends
            if position in model.stages[stage]
        ]
        for position in self.due[stage]:
            pieces.append((main, model.inflight[position], np.ones_like(counts)))
        least, _ = self._due_extra(stage)
        return [*pieces, (main, least, np.maximum(counts - len(self.due[stage]), 0))]

    def places(self, longest: int, limits: tuple[int, ...]) -> list[StagePlace]:
        """Holdings of every stage within a time and its bytes; raises TooManyError."""
        model = self.model
        self.limits = limits
        stages = range(model.pipeline.stages)
        ways = sum(self.palette.count(n) for n in range(self.window + 1))
        of = model.palette_of
        for stage in stages:
            on = [run for run, position in self.ends if position in model.stages[stage]]
            total = ways * prod(model.palettes[of[run]].size for run in on)
            if total * (1 if on else len(stages)) > ROWS_MAX:
                raise TooManyError
        places = []
        cache: dict[object, Holdings] = {}
        for stage in stages:
            makeups = self.makeup_at(stage)
            counts = tuple(np.unique(makeups[makeups >= 0]).tolist())
            ends = tuple(end for end in self.ends if end[1] in model.stages[stage])
            least, extra = self._due_extra(stage)
            inflight = (*(model.inflight[position] for _, position in ends), least, *extra)
            # Stages without ends hold the same, those with them are few.
            key = (model.pipeline.kinds[stage], counts, len(extra)) if not ends else stage
            if key not in cache:
                room = StageRoom(
                    time_ns=longest,
                    memory_bytes=limits[stage] if ends else max(limits),
                    inflight=inflight[: len(ends) + 1] if ends else (fewest(model.inflight),),
                )
                cache[key] = self._holdings(stage, counts, len(extra), room)
            alive = tuple(chain.from_iterable(inflight))
            places.append(StagePlace(holdings=cache[key], makeup_at=makeups, inflight=alive))
        return places

    def _holdings(self, stage: int, counts: tuple[int, ...], due: int, room: StageRoom) -> Holdings:
        kind = self.model.pipeline.kinds[stage]
        if not counts:  # no layout has this stage's ends here: no rows, of the same columns
            width = (len(self._parts(stage, 0)) + due) * self.model.pipeline.lifetimes
            return replace(NOTHING, keeps=np.zeros((0, width), np.int64))
        holdings = joined(
            [rows_of(self._parts(stage, n), kind, self.window, n, room) for n in counts]
        )
        return replace(
            holdings, keeps=np.column_stack([holdings.keeps, self._lightest(holdings, kind, due)])
        )

    def _parts(self, stage: int, count: int) -> list[tuple[Palette, int]]:
        on = set(self.model.stages[stage])
        palettes, of = self.model.palettes, self.model.palette_of
        fixed = [(palettes[of[run]], 1) for run, position in self.ends if position in on]
        return [*fixed, (palettes[of[self.main]], count)]

    def _due_extra(self, stage: int) -> tuple[Lifetimes, list[Lifetimes]]:
        """Fewest alive where blocks may lie, and how many more where one has to, descending."""
        inflight = self.model.inflight
        least = self._fewest(self.open[stage])
        extra = [beyond(inflight[k], least) for k in self.due[stage]]
        return least, sorted(extra, key=sum, reverse=True)

    def _fewest(self, positions: Sequence[int]) -> Lifetimes:
        """Fewest alive at these positions; none where there are none."""
        model = self.model
        none = (0,) * model.pipeline.lifetimes
        return fewest(model.inflight[k] for k in positions) if positions else none

    def _lightest(self, holdings: Holdings, kind: int, due: int) -> Ints:
        """Bytes kept of the lightest blocks: these lie where most is in flight."""
        palette = self.palette
        counts = palette.table(self.window)[0][holdings.picks[:, -1]]
        keeps = palette.kinds[kind][0][list(palette.numbers), KEEPS]
        order = np.argsort(keeps.sum(axis=1), kind="stable")
        running = np.cumsum(counts[:, order].T, axis=0)
        lightest = [
            keeps[order][np.minimum((running <= number).sum(axis=0), len(keeps) - 1)]
            for number in range(due)
        ]
        return np.column_stack(lightest) if due else np.zeros((len(counts), 0), np.int64)

    def chunks(self, places: list[StagePlace], taken: Sequence[int]) -> Chunks:
        """Blocks and variants per position, where each stage holds one row."""
        pipeline, runs = self.model.pipeline, self.model.runs
        chunks: list[list[tuple[int, int]]] = [[] for _ in range(pipeline.positions)]
        for stage, row in enumerate(taken):
            self._fill(chunks, stage, places[stage], row)
        left = [list(run.blocks) for run in runs]
        return tuple(
            tuple((left[run].pop(0), variant) for run, variant in sorted(chunk)) for chunk in chunks
        )

    def _fill(
        self, chunks: list[list[tuple[int, int]]], stage: int, place: StagePlace, row: int
    ) -> None:
        """Lay what a stage holds at its positions, as (run, variant).

        Chunks are as even as memory allows: a microbatch waits for the longest.
        """
        holdings = place.holdings
        parts = self._parts(stage, int(holdings.makeup[row]))
        picks = holdings.picks[row].tolist()
        on = set(self.model.stages[stage])
        ends = [end for end in self.ends if end[1] in on]
        for (run, position), (palette, _), pick in zip(ends, parts, picks, strict=False):
            (variant,) = picked(palette, self.window, pick)
            chunks[position].append((run, variant))
        palette = parts[-1][0]
        kind = self.model.pipeline.kinds[stage]
        figures = palette.kinds[kind][0]
        variants = picked(palette, self.window, picks[-1])
        variants.sort(key=lambda v: (int(figures[v, KEEPS].sum()), v))
        inflight = self.model.inflight
        for position in sorted(self.due[stage], key=lambda k: (-sum(inflight[k]), k)):
            chunks[position].append((self.main, variants.pop(0)))
        used = int(holdings.base[row] + holdings.keeps[row] @ np.array(place.inflight, np.int64))
        spare = self.limits[stage] - used
        open_ones = sorted(self.open[stage], key=lambda k: (sum(inflight[k]), k))
        least = self._fewest(open_ones)
        more = {k: np.array(beyond(inflight[k], least)) for k in open_ones}
        sizes = {k: len(chunks[k]) for k in open_ones}
        for variant in variants:
            keeps = figures[variant, KEEPS]
            fits = [k for k in open_ones if keeps @ more[k] <= spare]
            position = min(fits, key=sizes.__getitem__)
            spare -= int(keeps @ more[position])
            sizes[position] += 1
            chunks[position].append((self.main, variant))


def picked(palette: Palette, most: int, row: int) -> list[int]:
    """Variants of one row of a palette's table."""
    table, _ = palette.table(most)
    counts = table[row].astype(np.int64).tolist()
    return [v for v, n in zip(palette.numbers, counts, strict=True) for _ in range(n)]
