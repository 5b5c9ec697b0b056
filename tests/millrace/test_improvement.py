"""Improvement: a job as it runs, its single changes, and what a measured step does to them."""

import json
from dataclasses import replace

import pytest

import millrace
from millrace.improvement.setting_changes import plan_changes
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


def as_measured(result, step_s):
    """Improvement, had another step been measured."""
    return replace(result, improvement=replace(result.improvement, measured_s=step_s))


def test_changes_are_ranked_by_what_they_gain(improved):
    gains = [change.gain for change in improved.changes]
    assert gains == sorted(gains, reverse=True)
    without = next(c for c in improved.changes if c.change.text == "recompute full → none")
    assert without.gain > 0
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


def test_a_measured_step_corrects_predictions_in_whose_range_it_lies(improved):
    high_s, predicted_s = improved.improvement.expected.high_s, improved.improvement.predicted_s
    inside = as_measured(improved, high_s)
    assert inside.improvement.correction == pytest.approx(high_s / predicted_s)
    assert "are multiplied by" in repr(inside)
    assert inside.document["measured_within_range"] is True
    assert inside.document["causes"] == []


def test_a_measured_step_outside_of_the_range_names_causes_and_changes_nothing(improved):
    without = next(c for c in improved.changes if c.change.text == "recompute full → none")
    predicted_s = improved.improvement.predicted_s
    assert without.step_time_s == pytest.approx((1 - without.gain) * predicted_s)
    assert improved.document["measured_within_range"] is False
    assert "predictions are left as they are" in repr(improved)
    assert "other programs on the hosts" in repr(improved)
    assert "other settings than these" in repr(as_measured(improved, 1e-4))
    assert improved.improvement.correction == 1


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


def test_a_command_writes_the_best_settings_to_a_file(answer, call, tmp_path):
    command = COMMAND.replace("--nproc-per-node 8", "--nproc-per-node 1")
    command = command.replace("--tensor-model-parallel-size 2 ", "")
    script = f"# mine\n{command} --lr 3e-4\n"
    (tmp_path / "job.sh").write_text(script, "utf-8")
    job, better = tmp_path / "job.sh", tmp_path / "better.sh"
    options = ("improve", job, "--cluster", "a100", "--changes-only")
    code, document = answer(*options, "--write", better)
    assert code == 0
    best = next(x for x in document["changes"] if x["change"] == document["written"]["what"])
    assert best == max(document["changes"], key=lambda change: change["gain"])
    assert best["settings"] == document["written"]["settings"] != []
    assert document["written"]["files"] == [str(better)]
    assert better.read_text("utf-8") != script
    assert better.read_text("utf-8").startswith("# mine\n")
    assert better.read_text("utf-8").endswith(" --lr 3e-4\n")
    assert "this command reads it" in call(*options, "--write", job)[2]


def test_plans_of_a_framework_differ_by_its_settings(improved):
    changes = plan_changes(improved.today.plan, improved.best.plan)
    assert "without --recompute-granularity" in [change.text for change in changes]
    assert plan_changes(improved.best.plan, improved.best.plan) == ()
