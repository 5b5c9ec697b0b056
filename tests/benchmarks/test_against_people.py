"""Published plans against searched ones; plans become the words of pins again."""

from pathlib import Path

from benchmarks.planner.against_people import (
    FreePlans,
    RowComparison,
    changes,
    lines,
    report,
    sample,
    summary,
    verdict,
    wrong_kind,
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


def test_an_absent_table_is_said_and_skipped():
    told: list[str] = []
    assert report(Path("nowhere.csv"), say=told.append) == []
    assert "no table `nowhere.csv`" in told[0]


def test_what_came_of_a_row_says_what_explains_it():
    beaten = RowComparison(
        line=7, source="a paper", asked="a model", status="beaten", pinned_s=1.0, free_s=1.1,
        gain=1 / 1.1 - 1, pinned_plan="this", free_plan="that",
    )  # fmt: skip
    assert lines(beaten)[1:] == ["    faster: this", "    searched: that"]
    beaten.status, beaten.change_plan = verdict(0.1, 0.12), "this"
    assert lines(beaten)[1:] == ["    faster: this", "    searched: that"]
    assert [verdict(-0.1, 0.0), verdict(0.1, 0.1), verdict(0.0, None)] == [
        "beaten",
        "compared",
        "compared",
    ]
    beaten.status = "beaten"
    large = RowComparison(
        line=8, source="a paper", asked="a model", status="infeasible", limit_bytes=10**10,
        memory={"gradient": 9 * 10**9, "parameter": 2 * 10**9},
    )  # fmt: skip
    large.wrong = wrong_kind(large.memory, large.limit_bytes)
    told = "+1.0 GB of 10, half of gradient would do: gradient 9.0, parameter 2.0 GB"
    assert told in lines(large)[1]
    assert wrong_kind({"gradient": 6, "parameter": 6}, 6) == "several"
    assert summary([beaten, large])[0] == "2 rows, 2 expressed: 1 beaten, 1 infeasible"


def test_a_plan_that_does_not_fit_says_the_kinds_of_its_memory():
    small = row(
        layers="2", hidden="8192", heads="64", ffn_hidden="32768", gpu="v100-sxm-16gb",
        precision="fp16", dp="8", tp="1", sequence_parallel="", zero="0", micro_batch="8",
    )  # fmt: skip
    outcome = FreePlans(None, 600.0, freely=False).compare(small)
    assert outcome.status == "infeasible"
    assert sum(outcome.memory.values()) > outcome.limit_bytes
    assert outcome.memory["optimizer"] > outcome.memory["parameter"] > 0
