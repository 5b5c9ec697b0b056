"""Command buffers as text, compared with what was written down.

`MILLRACE_UPDATE_GOLDEN=1 pytest tests/executor/streams/test_listing.py` writes them down anew.
"""

from pathlib import Path

import pytest

from millrace.executor.streams import command_buffer, listing
from millrace.planner.compile import compile_plan
from tests.executor.golden import assert_golden
from tests.executor.plans.reading import stored_plan
from tests.executor.streams.buffers import one_producer

GOLDEN = Path(__file__).parent / "golden"
RANKS = {
    "prefetched": (0,),  # of dp 2 x tp 2 with ZeRO 3: weights are gathered before they are wanted
    "1f1b": (0, 1),  # of a pipeline, both
}


@pytest.mark.parametrize("name", RANKS)
def test_a_plan_is_listed_as_written_down(name: str) -> None:
    graph = compile_plan(stored_plan(name))
    assert_golden(listing(graph, command_buffer(graph, RANKS[name])), GOLDEN / f"{name}.txt")


def test_a_line_tells_who_does_what_with_which_slots_after_whom() -> None:
    graph = one_producer(slots=2, firings=1, initial=1)
    assert listing(graph, command_buffer(graph, (0,))).splitlines() == [
        "by hand: 1 rank, 2 commands a step, slots repeat after 2 steps",
        "",
        "step 0",
        "    0 rank 0 compute: make; writes x[1]",
        "    1 rank 0 copy: take; reads x[0]",
        "",
        "step 1",
        "    0 rank 0 compute: make; writes x[0]",
        "    1 rank 0 copy: take; reads x[1]",
    ]
