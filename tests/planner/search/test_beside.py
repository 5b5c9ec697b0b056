"""Two pieces of work at once: the same answers as one after the other, errors included."""

import os

import pytest

from millrace.models.graph import to_json
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.search import Pins, SearchRequest, search
from millrace.planner.search.blocks import beside as module
from millrace.planner.search.blocks.beside import beside

CORES = [True, False]


@pytest.fixture(params=CORES, ids=["two cores", "one core"])
def _cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_can_fork", lambda: request.param)


@pytest.mark.usefixtures("_cores")
def test_both_come_back_however_large() -> None:
    here = os.getpid()
    large = "x" * 1_000_000  # more than a pipe holds
    assert beside(lambda: os.getpid() - here, lambda: large) == (0, large)


@pytest.mark.usefixtures("_cores")
def test_what_goes_wrong_in_the_second_is_raised_here() -> None:
    def fails() -> None:
        raise InfeasibleError("no room")

    with pytest.raises(InfeasibleError, match="no room"):
        beside(lambda: None, fails)


@pytest.mark.usefixtures("_cores")
def test_what_goes_wrong_in_the_first_ends_both() -> None:
    def fails() -> None:
        raise InfeasibleError("no room")

    with pytest.raises(InfeasibleError, match="no room"):
        beside(fails, lambda: 1)


def test_a_process_that_dies_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_can_fork", lambda: True)
    here = os.getpid()

    def dies_elsewhere() -> str:
        if os.getpid() != here:
            os._exit(3)
        return "done"

    assert beside(lambda: 1, dies_elsewhere) == (1, "done")


def test_a_plan_is_the_same_on_one_core_and_on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    request = SearchRequest(
        model=model_spec("gpt3-1.3b", seq_len=2048, precision="fp16"),
        training=TrainingSpec(),
        cluster=parse_cluster("v100-sxm-16gb:8x1"),
        global_batch=64,
        pins=Pins(pp=2),
    )
    forked = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: forked.append(1) or fork())
    found = []
    for cores in CORES:
        monkeypatch.setattr(module, "_can_fork", lambda cores=cores: cores)
        found.append(to_json(search(request, remedies=False)))
    assert forked, "memory is tight, so that modes of recomputation are solved beside each other"
    assert found[0] == found[1]
