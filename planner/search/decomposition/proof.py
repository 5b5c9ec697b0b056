"""Proof: how far a plan can be from the best, by bounds of all candidates, raised side by side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace.models.graph import Graph
from millrace.planner.search.asking import Asker
from millrace.planner.search.blocks.beside import beside
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.block_oracle import BlockOracle
from millrace.planner.search.decomposition.loop import Loop
from millrace.planner.search.programs import Programs, Shape
from millrace.planner.search.sites import Sends

# Block programs of either half of the candidates, times the gap that is asked for, after which no
# more are asked: a tighter gap is given more work.
WORK = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Bounds of candidates, and what it took to prove them.

    Attributes
    ----------
    bounds_ns : dict
        Of every candidate that was given.
    block_programs, linear_programs : int
        Solved by dual ascent, and by GLOP.
    """

    bounds_ns: dict[Candidate, float]
    block_programs: int
    linear_programs: int


class Prover:
    """Raises bounds of one request's candidates.

    Parameters
    ----------
    programs : Programs
    graph : Graph
    modes : tuple of str
        Modes of recomputation that blocks may run in.
    asker : Asker
    sends : Sends
    """

    def __init__(
        self,
        programs: Programs,
        graph: Graph,
        modes: tuple[str, ...],
        asker: Asker,
        sends: Sends,
    ) -> None:
        self.programs = programs
        self.graph = graph
        self.modes = modes
        self.asker = asker
        self.sends = sends

    def proof(
        self,
        bounds_ns: Mapping[Candidate, float],
        best_ns: float,
        max_gap: float,
        tell: Callable[[str], None] = lambda line: None,
    ) -> Proof:
        """Raise the bounds of candidates on one kind of device that are below a plan's step.

        Parameters
        ----------
        bounds_ns : mapping
            What is proven of every candidate.
        best_ns : float
            Step of the plan.
        max_gap : float
            Within which no bound has to rise.
        tell : callable, optional
            Told a line of text now and then.
        """
        low = sorted(
            (
                (bound, number, candidate)
                for number, (candidate, bound) in enumerate(bounds_ns.items())
                if bound * (1 + max_gap) < best_ns and len(self.asker.shape(candidate).sites) == 1
            ),
            key=lambda one: one[:2],
        )
        # Candidates of one shape share their cuts, so that they stay together.
        shapes: dict[Shape, int] = {}
        for *_, candidate in low:
            shapes.setdefault(self.asker.shape(candidate), len(shapes))
        halves: list[list[tuple[Candidate, float]]] = [[], []]
        for bound, _, candidate in low:
            half = shapes[self.asker.shape(candidate)] % 2
            halves[half].append((candidate, bound))

        def raised(number: int) -> Proof:
            return self._raised(halves[number], best_ns, max_gap, tell)

        one, other = beside(lambda: raised(0), lambda: raised(1)) if low else (raised(0), raised(1))
        return Proof(
            bounds_ns={**bounds_ns, **one.bounds_ns, **other.bounds_ns},
            block_programs=one.block_programs + other.block_programs,
            linear_programs=one.linear_programs + other.linear_programs,
        )

    def _raised(
        self,
        candidates: list[tuple[Candidate, float]],
        best_ns: float,
        max_gap: float,
        tell: Callable[[str], None],
    ) -> Proof:
        """Bounds of some of the candidates, raised."""
        oracle = BlockOracle(self.programs, self.modes)
        loop = Loop(oracle, self.graph, self.asker, self.sends)
        found = loop.raised(candidates, best_ns, max_gap, round(WORK / max_gap), tell)
        return Proof(
            bounds_ns={one.candidate: one.bound_ns for one in found},
            block_programs=oracle.solved,
            linear_programs=loop.solved,
        )
