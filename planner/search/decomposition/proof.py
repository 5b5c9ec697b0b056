"""Proof: how far a plan can be from the best, by bounds of all candidates, raised side by side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace.planner.search.blocks.fork_join import run_both
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.loop import BoundLoop

# Block programs of either half of the candidates, times the gap that is asked for, after which no
# more are asked: a tighter gap is given more work, down to the ascent's own of half a percent.
WORK, TIGHTEST_GAP = 20, 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Bounds of candidates, and what it took to prove them.

    Attributes
    ----------
    bounds_ns : dict
        Least step time of every candidate that was given.
    mixed_ns : dict
        Step time of the columns, mixed in any shares, of candidates that were looked at.
    block_programs, linear_programs : int
        Solved by dual ascent, and by GLOP.
    """

    bounds_ns: dict[Candidate, float]
    mixed_ns: dict[Candidate, float]
    block_programs: int
    linear_programs: int


def prove(
    loops: Callable[[], BoundLoop],
    bounds_ns: Mapping[Candidate, float],
    best_ns: float,
    max_gap: float,
    tell: Callable[[str], None] = lambda line: None,
) -> Proof:
    """Raise the bounds of candidates on one kind of device that are below a plan's step.

    Parameters
    ----------
    loops : callable
        Makes a loop that knows no cuts yet.
    bounds_ns : mapping
        Least step time proven of every candidate.
    best_ns : float
        Step of the plan.
    max_gap : float
        Within which no bound has to rise.
    tell : callable, optional
        Told a line of text now and then.
    """
    shape_of = loops().asker.shape
    low = [
        (candidate, bound)
        for candidate, bound in bounds_ns.items()
        if bound * (1 + max_gap) < best_ns and len(shape_of(candidate).sites) == 1
    ]
    low.sort(key=lambda pair: pair[1])
    # Candidates of one shape share their cuts, so that they stay together.
    shapes = dict.fromkeys(shape_of(candidate) for candidate, _ in low)
    number = {shape: position for position, shape in enumerate(shapes)}
    first_half, second_half = (
        [pair for pair in low if number[shape_of(pair[0])] % 2 == half] for half in (0, 1)
    )

    def raised(candidates: list[tuple[Candidate, float]]) -> Proof:
        loop = loops()
        opened = loop.raised(
            candidates, best_ns, max_gap, round(WORK / max(max_gap, TIGHTEST_GAP)), tell
        )
        return Proof(
            bounds_ns={
                open_candidate.candidate: open_candidate.bound_ns for open_candidate in opened
            },
            mixed_ns={
                open_candidate.candidate: open_candidate.mixed_ns
                for open_candidate in opened
                if open_candidate.mixed_ns < float("inf")
            },
            block_programs=loop.oracle.solved,
            linear_programs=loop.solved,
        )

    proofs = (
        run_both(lambda: raised(first_half), lambda: raised(second_half))
        if second_half
        else (raised(first_half),)
    )
    return Proof(
        bounds_ns=dict(bounds_ns)
        | {key: b for proof in proofs for key, b in proof.bounds_ns.items()},
        mixed_ns={key: ns for proof in proofs for key, ns in proof.mixed_ns.items()},
        block_programs=sum(proof.block_programs for proof in proofs),
        linear_programs=sum(proof.linear_programs for proof in proofs),
    )
