"""A schedule under another name is searched, planned and simulated as the original is."""

from dataclasses import replace

import msgspec
import pytest

from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.planner.schedules import SCHEDULES
from millrace.planner.search import Pins
from millrace.planner.search.candidates import Candidate, candidates
from millrace.simulator.prediction import predict
from tests.plan_requests import plan_of
from tests.small_models import small


def copy_of(name: str) -> str:
    return f"{name} copied"


@pytest.fixture(params=SCHEDULES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A schedule of which there is a copy."""
    schedule: str = request.param
    copied = replace(SCHEDULES[schedule], name=copy_of(schedule))
    monkeypatch.setitem(SCHEDULES, copied.name, copied)
    return schedule


def proposed(schedule: str | None = None, **pins: object) -> list[Candidate] | str:
    """Candidates for eight devices of up to four stages, or why there are none."""
    cluster = parse_cluster("a100-sxm-80gb:8x1")
    asked = Pins(schedule=schedule, **pins)  # type: ignore[arg-type]
    try:
        return list(candidates(asked, cluster, 12, 18, sequence=False))
    except InfeasibleError as error:
        return str(error)


def copied(candidate: Candidate) -> Candidate:
    return replace(
        candidate,
        pipeline=replace(candidate.pipeline, schedule=copy_of(candidate.pipeline.schedule)),
    )


def test_a_copy_is_proposed_where_the_original_is(name: str) -> None:
    candidates = proposed()
    assert not isinstance(candidates, str)
    # With one stage there is no order to choose.
    originals = [
        candidate
        for candidate in candidates
        if candidate.pipeline.schedule == name and candidate.pipeline.stages > 1
    ]
    copies = [candidate for candidate in candidates if candidate.pipeline.schedule == copy_of(name)]
    assert copies == [copied(candidate) for candidate in originals]
    assert bool(copies) == SCHEDULES[name].searched


@pytest.mark.parametrize(
    "pins", [{}, {"pp": 4}, {"interleave": 1}, {"interleave": 3}, {"pp": 8, "micro_batch": 12}]
)
def test_a_pinned_copy_leaves_what_the_original_leaves(name: str, pins: dict[str, object]) -> None:
    originals, copies = proposed(name, **pins), proposed(copy_of(name), **pins)
    if isinstance(originals, str):
        assert copies == originals.replace(name, copy_of(name))
    else:
        assert copies == [copied(candidate) for candidate in originals]


def planned(schedule: str) -> Plan:
    return plan_of(
        small("gpt"), "a100-sxm-80gb:2x1", dp=1, tp=1, pp=2, micro_batch=1, schedule=schedule
    )


def test_a_copy_is_planned_and_simulated_like_the_original(name: str) -> None:
    original, copy = planned(name), planned(copy_of(name))
    texts = [msgspec.json.encode(plan).decode() for plan in (original, copy)]
    assert texts[1] == texts[0].replace(name, copy_of(name))
    for fidelity in ("op", "stage"):
        first, second = (predict(plan, fidelity=fidelity, spans=False) for plan in (original, copy))
        assert (first.step_time_ns, first.memory_by_kind) == (
            second.step_time_ns,
            second.memory_by_kind,
        )
