"""Two pieces of work at once: the same answers as one after the other, errors included."""

import os

import pytest

from millrace.models.graph import to_json
from millrace.planner.errors import InfeasibleError
from millrace.planner.search import search
from millrace.planner.search.blocks import fork_join as module
from millrace.planner.search.blocks.fork_join import run_both
from tests.planner.search.test_exact import question

CORES = [True, False]


@pytest.fixture(params=CORES, ids=["two cores", "one core"])
def _cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_fork", lambda: request.param)


@pytest.mark.usefixtures("_cores")
def test_both_come_back_however_large() -> None:
    here = os.getpid()
    large = "x" * 1_000_000  # more than a pipe holds
    assert run_both(lambda: os.getpid() - here, lambda: large) == (0, large)


@pytest.mark.usefixtures("_cores")
def test_what_goes_wrong_in_the_second_is_raised_here() -> None:
    def fails() -> None:
        raise InfeasibleError("no room")

    with pytest.raises(InfeasibleError, match="no room"):
        run_both(lambda: None, fails)


@pytest.mark.usefixtures("_cores")
def test_what_goes_wrong_in_the_first_ends_both() -> None:
    def fails() -> None:
        raise InfeasibleError("no room")

    with pytest.raises(InfeasibleError, match="no room"):
        run_both(fails, lambda: 1)


def test_a_process_that_dies_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_fork", lambda: True)
    here = os.getpid()

    def dies_elsewhere() -> str:
        if os.getpid() != here:
            os._exit(3)
        return "done"

    assert run_both(lambda: 1, dies_elsewhere) == (1, "done")


@pytest.mark.parametrize("seed", [10, 63])
def test_a_plan_is_the_same_on_one_core_and_on_two(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages or blocks that recompute: memory is tight, so that modes are solved at once."""
    asked = question(seed)
    assert asked.memory_limit_bytes is not None
    forked = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: forked.append(1) or fork())
    plans = []
    for cores in CORES:
        monkeypatch.setattr(module, "can_fork", lambda cores=cores: cores)
        plans.append(search(asked, remedies=False))
    assert forked
    assert to_json(plans[0]) == to_json(plans[1])
