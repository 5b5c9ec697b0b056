"""Command buffers as text, compared with what was written down.

`MILLRACE_UPDATE_GOLDEN=1 pytest tests/executor/streams/test_listing.py` writes them down anew.
"""

import os
from pathlib import Path

import pytest

from executor.streams import command_buffer, listing
from models.spec import ModelSpec, TrainingSpec
from planner.clusters import local_cluster
from planner.compile import compile_plan
from planner.search import Pins, SearchRequest, search
from tests.executor.streams.buffers import one_producer

GOLDEN = Path(__file__).parent / "golden"
MODEL = ModelSpec(
    name="small-mlp",
    family="mlp",
    config={"inputs": 16, "columns": 4, "hidden": 32, "layers": 2, "classes": 8},
)
PLANS: dict[str, tuple[tuple[int, ...], dict[str, object]]] = {
    # Rank 0 of dp 2 x tp 2: weights are gathered before they are wanted.
    "prefetched": ((0,), {"dp": 2, "tp": 2, "pp": 1, "zero": 3, "micro_batch": 2}),
    # Both ranks of a pipeline.
    "1f1b": ((0, 1), {"dp": 1, "tp": 1, "pp": 2, "schedule": "1f1b", "micro_batch": 2}),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_listed_as_written_down(name: str) -> None:
    ranks, pins = PLANS[name]
    degrees = [value for key, value in pins.items() if key in ("dp", "tp", "pp")]
    request = SearchRequest(
        model=MODEL,
        training=TrainingSpec(),
        cluster=local_cluster(4 if degrees == [2, 2, 1] else 2, cores=2, memory_bytes=8 * 2**30),
        global_batch=8,
        pins=Pins(**pins),  # type: ignore[arg-type]
    )
    graph = compile_plan(search(request))
    found, path = listing(graph, command_buffer(graph, ranks)), GOLDEN / f"{name}.txt"
    if os.environ.get("MILLRACE_UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


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
