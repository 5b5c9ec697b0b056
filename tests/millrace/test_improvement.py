"""Improvement: a job as it runs, its single changes, and what a measured step does to them."""

import json

import pytest

import millrace
from millrace.improvement.single_changes import single_changes
from millrace.planner.errors import PlanError
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.trainers.catalogue import trainer_of
from millrace.trainers.sources import source_of
from millrace.trainers.trainer import SettingsError

COMMAND = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 768 "
    "--num-attention-heads 12 --seq-length 256 --max-position-embeddings 256 --vocab-size 50304 "
    "--micro-batch-size 1 --global-batch-size 8 --bf16 --tensor-model-parallel-size 2 "
    "--use-distributed-optimizer --recompute-granularity full --recompute-method uniform"
)


@pytest.fixture(scope="module")
def improved():
    return millrace.improve(COMMAND, "a100", measured_s=0.5)


def test_changes_are_ranked_by_what_they_gain_and_scaled_to_the_measured_step(improved):
    gains = [change.gain for change in improved.changes]
    assert gains == sorted(gains, reverse=True)
    correction = 0.5 / improved.improvement.predicted_s
    without = next(c for c in improved.changes if c.change.text == "recompute full → none")
    assert without.gain > 0
    assert without.step_time_s == pytest.approx((1 - without.gain) * 0.5)
    assert improved.improvement.correction == pytest.approx(correction)
    assert without.speed_gain == pytest.approx(1 / (1 - without.gain) - 1)
    assert without.settings[0].document == {
        "name": "--recompute-granularity",
        "from": "full",
        "to": None,
    }


def test_the_best_plan_is_at_least_as_fast_as_every_change_that_fits(improved):
    assert improved.improvement.free_gain >= max(c.gain for c in improved.changes) - 0.02
    assert improved.best is not None
    assert improved.best.choices.recompute == "none"
    words = [change.text for change in improved.improvement.free_settings]
    assert "without --recompute-granularity" in words
    assert all(f"\n    {word}" in repr(improved) for word in words)


def test_it_shows_itself_and_becomes_a_data_frame(improved):
    assert "single changes" in repr(improved)
    assert "<table" in improved._repr_html_()
    frame = improved.to_pandas()
    assert len(frame) == len(improved.changes)
    json.dumps(improved.document)


def test_each_change_makes_one_choice_otherwise():
    source = source_of([COMMAND], {})
    job = trainer_of(source).read(source).job
    changes = single_changes(job, capabilities(job.framework))
    texts = [change.text for change in changes]
    assert len(set(texts)) == len(texts)
    assert "micro_batch 1 → 2" in texts
    assert "tp (with dp) 2 (4) → 1 (8)" in texts
    for change in changes:
        pins = change.job.pins
        assert pins.dp * pins.tp * pins.pp * pins.cp == 8
        pins.check()


def test_a_job_without_its_devices_asks_for_them():
    with pytest.raises(SettingsError, match="--cluster h100"):
        millrace.improve(COMMAND)


def test_a_measured_step_is_a_number_of_seconds():
    with pytest.raises(PlanError, match="--measured 0"):
        millrace.improve(COMMAND, "a100", measured_s=0.0)
