"""Every kind of collective has a price, and an implementation on every transport."""

import pytest

from millrace.executor.gpu.nccl import CALLS as NCCL_CALLS
from millrace.executor.transport.communicator import RECEIVED
from millrace.planner.boxing import BoxingStep, step_bytes
from millrace.planner.collectives import BOXING, COLLECTIVES
from millrace.planner.costs.collective_costs import ALGORITHMS, LIBRARY_ALGORITHMS
from millrace.planner.sbp import parse_nd_sbp

# Before and after, of 1,200 elements on four ranks, and the elements that each receives on a ring.
BOXED = {
    "all_reduce": ("P(sum)", "B", 1_800),
    "all_gather": ("S(0)", "B", 900),
    "reduce_scatter": ("P(sum)", "S(0)", 900),
    "all_to_all": ("S(0)", "S(1)", 225),
}


def test_a_kind_is_priced_and_implemented_everywhere() -> None:
    for table in (ALGORITHMS, RECEIVED, NCCL_CALLS):
        assert set(table) == set(COLLECTIVES)
    assert set(LIBRARY_ALGORITHMS) <= set(COLLECTIVES)


@pytest.mark.parametrize("kind", BOXING)
def test_bytes_that_arrive_are_those_of_a_ring(kind: str) -> None:
    before, after, received = BOXED[kind]
    step = BoxingStep(kind, (0,), parse_nd_sbp(before), parse_nd_sbp(after))
    assert step_bytes(step, (100, 12), 1, (4,)) == received


def test_a_kind_that_gathers_parts_is_sent_parts() -> None:
    for kind in BOXING:
        before, after, _ = BOXED[kind]
        record = COLLECTIVES[kind]
        assert record.reduces == before.startswith("P")
        assert record.gathers == before.startswith("S")
        assert record.scatters == after.startswith("S")
