"""Published plans against searched ones; plans become the words of pins again."""

from benchmarks.planner.against_people import (
    FreePlans,
    changes,
    sample,
)
from millrace.models.spec import TrainingSpec
from millrace.planner.search import Pins, SearchRequest, search
from millrace.published.language import question
from tests.millrace.published.rows import row


def test_each_choice_of_the_free_plan_is_tried_alone():
    asked, pinned = question(row(layers="2", gpus="4", dp="2", recompute="full"))
    free = search(
        SearchRequest(
            model=asked.model,
            training=TrainingSpec(),
            cluster=asked.cluster,
            global_batch=asked.global_batch,
            pins=Pins(dp=4, tp=1, pp=1, cp=1, micro_batch=4, recompute="none", zero=1),
        )
    )
    assert [name for name, _ in changes(pinned, free)] == [
        "tp 2 → 1",
        "micro_batch 2 → 4",
        "recompute full → none",
        "sequence_parallel True → False",
    ]


def test_a_sample_goes_round_the_sources_the_same_way_every_time():
    rows = [row(source=name, line=str(n)) for name in "ab" for n in range(5)]
    sampled = sample(rows, 1, 4)
    assert [published["source"] for published in sampled] == ["a", "b", "a", "b"]
    assert sampled == sample(rows, 1, 4)
    assert len(sample(rows, 3, None)) == 4


def test_a_plan_that_does_not_fit_says_the_kinds_of_its_memory():
    small = row(
        layers="2", hidden="8192", heads="64", ffn_hidden="32768", gpu="v100-sxm-16gb",
        precision="fp16", dp="8", tp="1", sequence_parallel="", zero="0", micro_batch="8",
    )  # fmt: skip
    outcome = FreePlans(None, 600.0, freely=False).compare(small)
    assert outcome.status == "infeasible"
    assert sum(outcome.memory.values()) > outcome.limit_bytes
    assert outcome.memory["optimizer"] > outcome.memory["parameter"] > 0
