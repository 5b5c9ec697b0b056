"""Asking: the block programs of candidates, and what their figures weigh in the step time."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from millrace.planner.schedules import PLAIN
from millrace.planner.search.blocks.block_milp import FigurePrices
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.placement_groups import everywhere, room, usable_bytes
from millrace.planner.search.programs import Ask, Programs, Shape
from millrace.planner.search.rank_groups import PlacementGroup, core_share
from millrace.planner.search.request import SearchRequest
from millrace.planner.search.stages import Pipeline, inflight_counts

# The price of all the memory there is, as a share of the step time without memory, at which it
# only decides between what takes equally long.
TIE_BREAKER = 0.002


def prices(pipeline: Pipeline) -> FigurePrices:
    """Prices at which a block program's optimum, over the stages, bounds the step time.

    A stage's time counts for every microbatch and for the ramp: `stages.divide`'s objective, with
    all stages in balance. Where weight gradients fill the ramp they count as much less.
    """
    ramp = (pipeline.stages - 1) / pipeline.interleave
    weight = pipeline.microbatches + ramp
    if not pipeline.defers_weight_gradients:
        return FigurePrices(microbatch=weight)
    return FigurePrices(microbatch=weight, deferrable=max(weight - 2 * ramp, 0.0))


def shared_prices(pipeline: Pipeline) -> FigurePrices:
    """Prices at which the program is solved: one solution serves however many chunks."""
    return prices(replace(pipeline, interleave=1))


def priced(pipeline: Pipeline, price: float, average: bool) -> FigurePrices:
    """Shared prices with a price per byte, for the average or the fewest microbatches in flight."""
    plain = replace(pipeline, schedule=PLAIN, interleave=1)
    counts = inflight_counts(plain)
    inflight = sum(counts) / len(counts) if average else min(counts)
    shared = shared_prices(plain if average else pipeline)
    return replace(shared, persistent_byte=price, inflight_byte=price * inflight)


class Asker:
    """Block programs that candidates ask for, with their prices.

    Parameters
    ----------
    request : SearchRequest
    programs : Programs
    mode : str
        Mode of recomputation in which memory is weighed against time.
    """

    def __init__(self, request: SearchRequest, programs: Programs, mode: str) -> None:
        self.request = request
        self.programs = programs
        self.mode = mode
        self._everywhere: dict[int, PlacementGroup] = {}
        self._cheapest: dict[tuple[Shape, tuple[float, ...]], float] = {}

    def shape(self, candidate: Candidate) -> Shape:
        """Shape of a candidate, which its tables depend on."""
        pipeline = candidate.pipeline
        ramp = Fraction(pipeline.stages - 1, pipeline.interleave)
        if pipeline.defers_weight_gradients:
            ramp /= 3  # forward, input and weight gradients taken as equally long
        busy = pipeline.microbatches / (pipeline.microbatches + ramp)
        cluster = self.request.cluster
        sites = self._sites(candidate)
        return Shape(
            axes=candidate.axes,
            batch=candidate.batch,
            chunked=pipeline.positions > 1,
            stretch=core_share(cluster, cluster.devices, busy),
            sites=sites,
            # Only how many stages lie on each site counts, not in which order.
            pipeline=replace(pipeline, kind_of_stage=tuple(sorted(pipeline.kinds)))
            if len(sites) > 1
            else None,
        )

    def _sites(self, candidate: Candidate) -> tuple[PlacementGroup, ...]:
        if candidate.placing is not None:
            return candidate.placing.sites
        devices = prod(candidate.sizes)
        if devices not in self._everywhere:
            self._everywhere[devices] = everywhere(self.request.cluster, devices)
        return (self._everywhere[devices],)

    def asks(
        self,
        candidates: Sequence[Candidate],
        mode: str,
        share: float,
        cutoffs: Sequence[float],
    ) -> list[Ask]:
        """Programs of candidates where all memory together costs a share of their time."""
        shapes = [self.shape(candidate) for candidate in candidates]
        vectors = [shared_prices(candidate.pipeline).vector.tolist() for candidate in candidates]
        keys = [(shape, tuple(vector)) for shape, vector in zip(shapes, vectors, strict=True)]
        new = [key for key in dict.fromkeys(keys) if key not in self._cheapest]
        new_costs = self.programs.cheapest(
            [shape for shape, _ in new], self.mode, [vector for _, vector in new]
        )
        self._cheapest.update(zip(new, new_costs.tolist(), strict=True))
        costs = [self._cheapest[key] for key in keys]
        asks = []
        for candidate, shape, cost, cutoff in zip(candidates, shapes, costs, cutoffs, strict=True):
            # The price is by what devices have, whatever limits are in force: all share solutions.
            price = share * cost / room(candidate, usable_bytes(self.request, candidate))
            vector = priced(candidate.pipeline, price, share > TIE_BREAKER).vector
            asks.append(Ask(shape=shape, mode=mode, prices=tuple(vector.tolist()), cutoff=cutoff))
        return asks
