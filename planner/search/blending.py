"""Blending: the block program of a pipeline whose stages lie on unlike sites.

Every block lies on some stage, but on which is not decided yet. With shares α of the sites' stages
(`Σ α = 1` over the stages), the slowest stage takes at least `Σ_s α_s · time[s]`, so that a block
on a site of share α adds to the step time at least::

    ((m - r) · α + r) · time          r: 1 / chunks a stage, m: microbatches

Of every figure the least over the sites is taken, so that a program's bound stays one whatever
stages its blocks come to lie on. Shares in proportion to the sites' speed make it tight.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.search.pricing import Pricing
from planner.search.stages import DEFERRING, Pipeline
from planner.search.states import Ints
from planner.search.tables import DEFERRABLE, FIGURES, MICROBATCH, STEP, Tables

Floats = NDArray[np.float64]


class Blended:
    """Figures of one space on K rows, each the least over several sites.

    Parameters
    ----------
    parts : sequence of Pricing
        One a site; rows and space are equal.
    pipelines : sequence of Pipeline
        Of every row, with `kind_of_stage` counting the sites.
    """

    def __init__(self, parts: Sequence[Pricing], pipelines: Sequence[Pipeline]) -> None:
        self.parts = tuple(parts)
        self.pipelines = tuple(pipelines)
        first = self.parts[0]
        self.space, self.tensors, self.legal = first.space, first.tensors, first.legal
        self.scales = _scales(self.parts, self.pipelines)
        self.figures = [
            _least([_scaled(part.figures[at], s) for part, s in self._pairs()])
            for at in range(len(self.space.choices))
        ]

    def _pairs(self) -> list[tuple[Pricing, Floats]]:
        return list(zip(self.parts, self.scales, strict=True))

    def take(self, rows: Ints) -> "Blended":
        """The same for some of the rows."""
        taken = [part.take(rows) for part in self.parts]
        return Blended(taken, [self.pipelines[row] for row in rows])

    def tables(self) -> tuple[Tables, list[Tables]]:
        """Choices and nets of all rows, and those of each site."""
        own = [part.tables() for part in self.parts]
        choices = tuple(
            replace(choice, figures=figures)
            for choice, figures in zip(own[0].choices, self.figures, strict=True)
        )
        nets = tuple(
            replace(
                together[0],
                duration_ns=_least(
                    [
                        np.floor(net.duration_ns * scale[STEP if net.step else MICROBATCH])
                        for net, scale in zip(together, self.scales, strict=True)
                    ]
                ),
            )
            for together in zip(*(one.nets for one in own), strict=True)
        )
        return Tables(choices=choices, nets=nets), own


def _scaled(figures: Ints, scale: Floats) -> Floats:
    """Figures [F, O, K] times a scale [F, K]."""
    found: Floats = np.floor(figures * scale[:, None, :])
    return found


def _least(found: Sequence[Floats]) -> Ints:
    least: Ints = np.minimum.reduce(found).astype(np.int64)
    return least


def _scales(parts: Sequence[Pricing], pipelines: Sequence[Pipeline]) -> list[Floats]:
    """What a figure of each site counts as in a program of equal stages: [F, K]."""
    sites = range(len(parts))
    stages = np.array([one.stages for one in pipelines], np.float64)
    on = np.array([[one.kinds.count(site) for one in pipelines] for site in sites], np.float64)
    m = np.array([one.microbatches for one in pipelines], np.float64)
    r = np.array([one.ramp for one in pipelines])
    whole = m - r + r * stages  # the weight of a time where all stages are alike
    ramp = r * (stages - 1)
    deferring = np.array([one.schedule in DEFERRING for one in pipelines])
    deferred = np.where(deferring, np.maximum(whole - 2 * ramp, 0.0), whole)
    paces = _shares(parts, (MICROBATCH, DEFERRABLE), on) * stages
    updates = _shares(parts, (STEP,), on) * stages
    found = []
    for pace, update in zip(paces, updates, strict=True):
        scale = np.ones((len(FIGURES), len(pipelines)))
        scale[MICROBATCH] = ((m - r) * pace + r * stages) / whole
        left = np.where(deferring, scale[MICROBATCH] * whole - 2 * ramp, scale[MICROBATCH] * whole)
        scale[DEFERRABLE] = np.maximum(left, 0.0) / np.maximum(deferred, 1e-9)
        scale[STEP] = update
        found.append(scale)
    return found


def _shares(parts: Sequence[Pricing], columns: tuple[int, ...], on: Floats) -> Floats:
    """What a stage of each site does of the work, in proportion to its speed: [sites, K]."""
    times = []
    for part in parts:
        total = np.zeros(part.rows)
        for choice, figures, legal in zip(
            part.space.choices, part.figures, part.legal, strict=True
        ):
            cost = figures[list(columns)].sum(axis=0)
            least = np.where(legal, cost, np.iinfo(np.int64).max).min(axis=0)
            total += choice.count * np.where(legal.any(axis=0), least, 0)
        times.append(np.maximum(total, 1.0))
    speed = 1.0 / np.array(times)
    shares: Floats = speed / (on * speed).sum(axis=0)
    return shares
