"""Published rows are predicted in their order; what cannot be said has a reason or a note."""

import json
from dataclasses import replace as replace_planned
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millrace import cli
from millrace.calibration.leave_one_out import left_out
from millrace.planner.clusters import framework
from millrace.planner.search import Pins
from millrace.published import dlperf, language
from millrace.published.notes import with_columns
from millrace.published.prediction import Predicted, planned, predicted
from millrace.published.reading import TableFormat, read_table
from millrace.published.single_setting_pairs import differences, pairs
from millrace.published.summary import document, figures, fits_device, groups, reserve_fraction
from millrace.published.validation import RowOutcome, RowQuestion, ask, validate
from tests.millrace.published.rows import DLPERF, PLAIN, written

ROW = PLAIN | {"line": "2"}


def outcome(measured_s: float, predicted_s: float, **changed: str) -> RowOutcome:
    """A row as if it had been predicted."""
    predicted = Predicted(
        step_time_s=predicted_s,
        peak_bytes=10**9,
        account_bytes=10**9,
        device_bytes=2 * 10**9,
        bubble_fraction=0.0,
        exposed_communication_s=0.0,
        fidelity="op",
    )
    return RowOutcome(
        row_question=RowQuestion(row=with_columns(ROW | changed), measured_s=measured_s),
        predicted=predicted,
    )


def test_rows_are_predicted_in_order_and_bad_ones_have_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(
        tmp_path / "a.csv",
        {"peak_mem_gb": "1.0"},
        {"layers": "four"},
        {"gpus": "3"},
        {"model": "gpt-other-name"},
        {"tier": "B", "micro_batch": "", "recompute": ""},
        {"iteration_time_s": ""},
        {"gpu": "b200", "precision": "fp4", "notes": "uneven layer split"},
        {"peak_mem_gb": "much"},
    )
    plot = tmp_path / "plot.svg"
    arguments = ["validate", str(path), "--json", "--processes", "1", "--plot", str(plot)]
    assert cli.run(arguments) == 0
    told = capsys.readouterr()
    document: dict[str, Any] = json.loads(told.out)
    rows = document["rows"]
    assert [row["line"] for row in rows] == list(range(2, 10))
    assert rows[0]["predicted_s"] > 0
    assert rows[0]["error"] == pytest.approx(rows[0]["predicted_s"] / 0.01 - 1)
    assert rows[0]["predicted_peak_gb"] > 0
    assert "line 3: layers is `four`" in rows[1]["reason"]
    assert rows[1]["error"] is rows[1]["predicted_s"] is None
    assert "line 4" in rows[2]["reason"]
    assert rows[3]["predicted_s"] == rows[0]["predicted_s"]
    assert rows[4]["error"] is not None
    assert "iteration_time_s" in rows[5]["reason"]
    assert "peak_mem_gb is `much`" in rows[7]["reason"]
    assert "fp4" in rows[6]["note"]
    assert (document["count"], document["expressed"]) == (7, 3)
    assert document["tier_b"]["expressed"] == 1
    assert document["memory"]["rows"] == 1
    assert document["memory_account"]["rows"] == 1
    assert document["memory_account"]["beyond_device"] == 0
    assert rows[0]["fits_device"] is True
    assert rows[0]["account_error"] == pytest.approx(rows[0]["account_peak_gb"] / 1.0 - 1)
    assert {"mape", "median_error", "within_10_percent"} <= set(document)
    assert plot.read_text().startswith("<?xml")
    assert "line 3: layers" in told.err


def test_rows_that_figures_were_fitted_to_are_told_from_those_they_were_not():
    rows = [outcome(1.0, 1.1, fitted="1"), outcome(1.0, 1.3, fitted="0"), outcome(1.0, 0.8)]
    fit = groups(rows, TableFormat.LANGUAGE)["fit"]
    assert list(fit) == ["fitted to", "never fitted to", "not told"]
    assert [round(group["bias"], 6) for group in fit.values()] == [0.1, 0.3, -0.2]
    assert "fit" not in groups([outcome(1.0, 1.1)], TableFormat.LANGUAGE)


def test_a_column_that_is_not_read_changes_nothing(tmp_path: Path):
    plain = PLAIN | {"experts": "", "routing": ""}
    path = written(tmp_path / "a.csv", {"routing": "natural"}, {"routing": "?"}, plain=plain)
    table = read_table(path)
    first, second = (ask(row, table.layout) for row in table.rows)
    assert first.question == second.question is not None


def test_the_answer_is_the_same_from_several_processes(tmp_path: Path):
    table = read_table(written(tmp_path / "a.csv", {}, {"micro_batch": "4"}, {"hidden": "x"}))
    first = document(validate(table), table.layout)
    assert document(validate(table, processes=2), table.layout) == first


def test_what_is_no_table_is_not_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    assert cli.run(["validate", str(tmp_path / "a.csv")]) == 2
    assert "header lacks" in capsys.readouterr().err
    assert cli.run(["validate", str(tmp_path / "none.csv")]) == 2
    path = written(tmp_path / "b.csv", {})
    assert cli.run(["validate", str(path), "--plot", str(tmp_path / "plot.odd")]) == 2


def test_a_table_is_predicted_at_another_fidelity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path / "a.csv", {})
    steps_s = []
    for fidelity in ("op", "stage"):
        arguments = ["validate", str(path), "--processes", "1", "--json", "--fidelity", fidelity]
        assert cli.run(arguments) == 0
        steps_s.append(json.loads(capsys.readouterr().out)["rows"][0]["predicted_s"])
    assert steps_s[1] == pytest.approx(steps_s[0], rel=0.01)
    assert cli.run(["validate", str(path), "--fidelity", "block"]) == 2
    assert "op or stage" in capsys.readouterr().err


def test_a_text_answer_shows_groups_and_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path / "a.csv", {}, plain=DLPERF)
    assert cli.run(["validate", str(path), "--processes", "1", "--leave-one-source-out"]) == 0
    shown = capsys.readouterr().out
    assert "OneFlow" in shown
    assert "1 rows, 1 expressed" in shown


def test_a_run_that_our_memory_model_would_refuse_is_predicted_all_the_same():
    asked, pins = language.question(ROW)
    small = replace(asked.cluster, device=replace(asked.cluster.device, memory_bytes=10**6))
    planned_row = planned(language.Question(asked.model, small, asked.global_batch), pins)
    assert planned_row.plan.cluster == small


def test_a_blank_microbatch_is_the_best_that_divides_and_fits():
    asked, pins = language.question(ROW | {"micro_batch": "", "recompute": ""})
    assert (pins.micro_batch, pins.recompute) == (None, None)
    planned_row = planned(asked, pins)
    assert planned_row.plan.batch == 2 * 8  # of two replicas: fewest, largest microbatches
    assert {variant.recompute for variant in planned_row.plan.variants} == {"none"}


def test_selective_recomputation_lies_between_none_and_all():
    times = {}
    for mode in ("none", "selective", "full"):
        asked, pins = language.question(ROW | {"framework": "pytorch-fsdp", "recompute": mode})
        (prediction,) = predicted(planned(asked, pins), (asked.cluster,))
        times[mode] = prediction.step_time_s
    assert times["none"] < times["selective"] < times["full"]


def test_storage_that_cannot_be_split_is_left_to_the_search_with_a_note():
    six_ranks = {"gpus": "6", "gpus_per_node": "6", "dp": "6", "peak_mem_gb": "1"}
    row = ROW | {"framework": "jax-xla"} | six_ranks | SIX  # which does not pad shards
    asked, pins = language.question(row)
    planned_row = planned(asked, pins)
    assert any("zero 0 for 1" in note for note in planned_row.notes)
    (split,) = predicted(planned_row, (asked.cluster,))
    (unsplit,) = predicted(replace_planned(planned_row, keeping=None), (asked.cluster,))
    assert split.peak_bytes < unsplit.peak_bytes


SIX = {"global_batch": "12", "hidden": "256", "vocab": "1024", "micro_batch": "1"}


@pytest.mark.parametrize(
    ("changed", "family", "pins"),
    [
        ({}, "resnet", Pins(dp=1, tp=1, pp=1, micro_batch=32, recompute="none")),
        (
            {"model": "bert-base", "gpus_per_node": "8", "dtype": "fp32"},
            "bert",
            Pins(dp=8, tp=1, pp=1, micro_batch=32, recompute="none", zero=0),
        ),
        (
            {"model": "wide-deep", "gpus_per_node": "4", "variant": "vocab=99;emb=16;fc_layers=7"},
            "wide_deep",
            Pins(pp=1, recompute="none"),
        ),
        (
            {
                "model": "gpt-h1536-l16-a16-s2048",
                "nodes": "4",
                "gpus_per_node": "8",
                "variant": "dp=8;mp=1;pp=4;micro_bs=2;acc_steps=32;gbs=512;ckpt_act=1",
            },
            "gpt",
            Pins(dp=8, tp=1, pp=4, micro_batch=2, schedule="1f1b", recompute="full", zero=0),
        ),
        (
            {
                "model": "insightface-r100-glint360k",
                "gpus_per_node": "8",
                "variant": "fc_parallel=partial_fc_0.1",
            },
            "face",
            Pins(pp=1, recompute="none"),
        ),
    ],
)
def test_rows_of_dlperf_are_models_of_the_zoo(changed: dict[str, str], family: str, pins: Pins):
    asked, pinned = dlperf.question(DLPERF | {"line": "2", "tier": "A"} | changed)
    assert asked.model.family == family
    assert pinned == pins


def fusion(**changed: str) -> float:
    return dlperf.cluster(DLPERF | {"line": "2"} | changed).software.fusion


def test_convolutional_networks_move_what_their_ops_do():
    assert fusion() == dlperf.FUSED_BYTES
    assert fusion(framework="NGC PyTorch") == framework("ngc-pytorch").fusion
    assert fusion(dtype="fp32") == dlperf.PLAIN_BYTES
    face = {"model": "insightface-r100-glint360k", "dtype": "fp32"}
    assert fusion(**face) == dlperf.PLAIN_BYTES


def test_only_berts_norms_are_cast_to_and_fro():
    usual = framework("oneflow").fusion
    assert fusion(model="bert-base") == pytest.approx(dlperf.MIXED_BYTES * usual)
    assert fusion(model="bert-base", dtype="fp32") == usual
    assert fusion(model="gpt-h1536-l16-a16-s2048") == usual


def test_a_model_that_no_family_builds_says_so():
    with pytest.raises(language.InexpressibleError, match="model `vgg16`"):
        dlperf.question(DLPERF | {"line": "2", "model": "vgg16"})


def test_figures_are_of_magnitudes_and_bias_is_signed():
    summary = figures([0.05, -0.25])
    assert (summary.mape, summary.median_error, summary.bias) == (
        pytest.approx(0.15),
        pytest.approx(0.15),
        pytest.approx(-0.1),
    )
    assert summary.within_10_percent == 0.5
    assert figures([]).mape is None


def test_pairs_differ_in_one_setting_and_what_follows_from_it():
    rows = [
        outcome(1.0, 1.0),
        outcome(1.5, 1.2, recompute="full"),
        outcome(2.0, 2.0, micro_batch="4", recompute="full", zero="0"),
        outcome(1.1, 1.0, gpus="4", dp="4", global_batch="32"),
        outcome(9.0, 9.0, recompute="selective", notes="torch.compile"),
    ]
    setting_pairs = pairs(rows)
    assert [(pair.kind, pair.measured) for pair in setting_pairs] == [
        ("recompute", 1.5),
        ("gpus", 1.1),
    ]
    assert setting_pairs[0].error == pytest.approx(1.2 / 1.5 - 1)
    assert differences(setting_pairs)["kinds"]["gpus"]["pairs"] == 1


def test_a_source_left_out_is_predicted_without_what_only_it_has(tmp_path: Path):
    slow = {"source": "another", "framework": "megatron-deepspeed", "iteration_time_s": "9"}
    table = read_table(written(tmp_path / "a.csv", {}, slow, {"source": "third"}))
    asked = [ask(row, table.layout) for row in table.rows]
    tuned = left_out(table)
    clusters = [
        tuned(question.row, question.cluster) for question in asked if question.cluster is not None
    ]
    assert [cluster.software.name for cluster in clusters] == [
        "megatron-core",
        "default",
        "megatron-core",
    ]
    launches = [cluster.software.host_ns for cluster in clusters]
    assert launches[0] == launches[2] != framework("megatron-core").host_ns
    assert clusters[1].device != clusters[0].device or launches[1] != launches[0]


def test_the_published_peak_is_as_printed():
    row = ROW | {"peak_mem_gb": "2.1"}
    assert language.peak_bytes(row) == 2.1e9
    assert language.peak_bytes(row | {"peak_unit": "GiB"}) == 2.1 * 2**30
    assert language.peak_bytes(ROW) is None


def test_a_reserve_leaves_one_peak_of_twenty_above_it():
    asked, _ = language.question(ROW)
    outcomes = []
    for percent in range(20):  # of the device's memory, above the prediction
        row = outcome(1.0, 1.0)
        peak = row.predicted.peak_bytes + percent / 100 * asked.cluster.device.memory_bytes
        question = replace_planned(row.row_question, cluster=asked.cluster, peak_bytes=peak)
        outcomes.append(replace_planned(row, row_question=question))
    assert reserve_fraction(outcomes) == pytest.approx(0.18)
    assert reserve_fraction(outcomes, by_account=True) == pytest.approx(0.18)
    assert reserve_fraction(outcomes[:1]) == 0
    assert reserve_fraction([outcome(1.0, 1.0)]) is None
    assert fits_device(outcomes[0]) is True
    assert fits_device(outcome(1.0, 1.0)) is None
