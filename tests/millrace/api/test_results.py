"""Each verb once on a small model, what its result shows, and how it says what is wrong."""

import sys
from dataclasses import FrozenInstanceError

import pytest

import millrace
from millrace.api import views
from millrace.api.data_frames import MissingPandasError
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.clusters.doubts import profile_doubt
from tests.extras import optional


@pytest.fixture(scope="module")
def planned():
    cluster = millrace.cluster("local:2", measured=False)
    return millrace.plan("gpt-demo", cluster, global_batch=8, pins=millrace.Pins(tp=2))


@pytest.fixture(scope="module")
def measured(planned):
    return millrace.run(planned, steps=7)


@pytest.fixture(scope="module")
def swept():
    pins = millrace.Pins(tp=1, pp=1)
    clusters = ["a100:2", millrace.cluster("h100:2x1", framework="any")]
    return millrace.scale("mlp", clusters, nodes=[1, 2], global_batches=[8], pins=pins)


@pytest.fixture(scope="module")
def recommended():
    options = {"nodes": [1, 2], "global_batches": [8], "pins": millrace.Pins(tp=1, pp=1)}
    return millrace.recommend("mlp", ["a100:2"], tokens=1e9, within_s=1e9, **options)


def test_a_plan_has_choices_figures_and_evidence_of_its_own_units(planned):
    prediction = planned.prediction
    assert (planned.choices.tp, planned.choices.dp, planned.choices.pp) == (2, 1, 1)
    assert prediction.step_time_s == planned.plan.figures["step_time_s"]
    assert isinstance(prediction.memory_bytes_max, int)
    assert prediction.tokens_per_s == pytest.approx(
        8 * planned.plan.model.seq_len / prediction.step_time_s
    )
    assert planned.evidence.bound_s <= planned.evidence.objective_s
    assert planned.graph.parameter_count == millrace.build("gpt-demo").parameter_count
    assert planned.compile().ranks == 2
    with pytest.raises(FrozenInstanceError):
        planned.plan = None


def test_a_plan_of_a_file_is_the_plan_and_is_explained_alike(planned, tmp_path):
    planned.save(tmp_path / "plan.json")
    loaded = millrace.load(tmp_path / "plan.json")
    assert loaded == planned
    assert (loaded.prediction, loaded.choices) == (planned.prediction, planned.choices)
    explained = loaded.explain()
    assert explained == planned.explain()
    assert "  tp = 2: pinned" in repr(explained).splitlines()
    assert [reason["choice"] for reason in explained.document][:2] == ["dp", "tp"]
    assert "<td>pinned</td>" in explained._repr_html_()


def test_a_plan_shows_what_the_command_prints(planned):
    lines = repr(planned).splitlines()
    assert lines[0].startswith("gpt-demo on local:2: mesh tp 2, 1 stage")
    assert [line.split("  ")[1] for line in lines[1:]] == [
        *("question", "predicted step time", "range of step time", "speed", "memory", "gap")
    ]
    page = planned._repr_html_()
    assert page.count("<table>") == 2
    assert "predicted step time" in page
    assert 'class="bar"' in page


def test_a_simulation_of_slow_ranks_is_slower_than_its_plan(planned):
    plain = millrace.simulate(planned, detailed=True)
    slow = millrace.simulate(planned.plan, stragglers={1: 3.0})
    assert plain.step_time_s == pytest.approx(planned.prediction.step_time_s, rel=1e-6)
    assert slow.step_time_s > plain.step_time_s
    assert plain.account.stages
    assert slow.account is None
    assert "bubble" in repr(slow)
    assert "exposed communication" in slow._repr_html_()


def test_a_plan_is_tried_elsewhere_with_its_choices():
    planned = millrace.plan("mlp", "a100:2x1", global_batch=8, pins=millrace.Pins(dp=2))
    tried = millrace.simulate(planned, cluster="h200:2x1", precision="fp32", framework="any")
    assert tried.planned is planned.plan
    assert tried.plan.cluster.name.startswith("h200")
    assert (tried.plan.model.precision, tried.plan.cluster.software.name) == ("fp32", "any")
    assert tried.planned_step_time_s == planned.prediction.step_time_s
    assert "step time as planned" in repr(tried)


def test_a_run_is_compared_with_its_plan(planned, measured, tmp_path):
    assert len(measured.loss) == 7
    assert measured.tokens_per_s == pytest.approx(
        8 * planned.plan.model.seq_len / measured.step_time_s
    )
    assert "7" in repr(measured).splitlines()[-1]
    assert "trained on" in measured._repr_html_()
    compared = millrace.compare(planned, measured)
    assert compared.measured_step_time_s > 0
    assert compared.step_time_error == pytest.approx(
        compared.predicted_step_time_s / compared.measured_step_time_s - 1
    )
    assert sum(cause.seconds for cause in compared.error_causes) == pytest.approx(
        compared.measured_step_time_s - compared.predicted_step_time_s
    )
    assert "error" in repr(compared)
    assert compared._repr_html_().count("<table>") == 3
    compared.save_html(tmp_path / "page.html")
    measured.save_trace(tmp_path / "run.json")
    assert millrace.compare(planned, tmp_path / "run.json").comparison == compared.comparison


def test_a_sweep_has_a_row_for_every_point(swept):
    assert [(row.cluster, row.devices) for row in swept] == [
        *(("a100:2", 2), ("a100:2", 4)),
        *(("h100-sxm-80gb:2x1", 2), ("h100-sxm-80gb:2x1", 4)),
    ]
    assert [row.framework for row in swept][1:3] == ["any", "any"]
    assert all(row.tokens_per_s > 0 and row.reason is None for row in swept)
    assert repr(swept).startswith("sweep of mlp: 4 points\n")
    assert swept._repr_html_().count("<table>") == 2


def test_a_point_without_a_plan_is_a_row_with_its_reason():
    pins = millrace.Pins(tp=2)
    swept = millrace.scale("mlp", ["a100:1"], nodes=[1], global_batches=[8], pins=pins)
    assert swept.rows[0].step_time_s is None
    assert swept.rows[0].reason in repr(swept)


def test_a_recommendation_names_the_cheapest_of_those_that_make_it(recommended):
    assert all(recommended.makes_it)
    assert any(recommended.on_frontier)
    assert recommended.cheapest in recommended.rows
    assert recommended.cheapest.cost_usd == min(row.cost_usd for row in recommended.rows)
    assert recommended.nearest is None
    assert "cheapest" in repr(recommended)
    assert "cheapest" in recommended._repr_html_()
    assert recommended.document["choice"]["nearest"] is None


def test_rows_and_firings_become_data_frames(planned, measured, swept, recommended, tmp_path):
    pandas = optional("pandas", extra="notebook")
    frame = swept.to_pandas()
    assert list(frame["devices"]) == [2, 4, 2, 4]
    swept.save_csv(tmp_path / "rows.csv")
    assert list(pandas.read_csv(tmp_path / "rows.csv").columns) == list(frame.columns)
    assert list(recommended.to_pandas()["makes_it"]) == list(recommended.makes_it)
    assert list(measured.to_pandas()["loss"]) == list(measured.loss)
    firings = measured.firings_to_pandas()
    assert len(firings) == len(measured.trace.spans)
    assert firings.step.max() == 6
    simulated = millrace.simulate(planned)
    assert simulated.to_pandas().duration_s.min() >= 0
    assert set(millrace.compare(planned, measured).to_pandas().columns) > {"predicted_s"}


def test_results_become_pictures(planned, measured, swept, recommended):
    optional("matplotlib", extra="plot")
    comparison = millrace.compare(planned, measured)
    for result in (measured, comparison, swept, recommended):
        assert result.picture()._repr_svg_().startswith("<?xml")
    assert "gpt-demo" in repr(planned.picture("plan"))
    with pytest.raises(millrace.PlanError, match="no picture of `stages`"):
        planned.picture("stages")


def test_without_matplotlib_a_picture_says_what_to_install(swept, monkeypatch):
    monkeypatch.setattr(views, "find_spec", lambda name: None)
    with pytest.raises(views.MissingMatplotlibError, match=r"pip install 'millrace\[plot\]'"):
        swept.picture()


def test_without_pandas_a_data_frame_says_what_to_install(swept, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPandasError, match=r"pip install 'millrace\[notebook\]'"):
        swept.to_pandas()


def test_a_profile_has_the_rates_of_the_machine_and_plans_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    profiled = millrace.profile(ranks=1, seconds=1, progress=said.append)
    assert profiled.flops_per_s["fp32"] > 1e9
    assert profiled.memory_bandwidth_bytes_per_s > 1e9
    assert said[0] == "measuring this machine with 1 ranks"
    assert "memory bandwidth" in repr(profiled)
    assert "memory bandwidth" in profiled._repr_html_()
    assert profiled.notes == tuple(filter(None, [profile_doubt(profiled.device)]))
    profiled.save(tmp_path / "device.json")
    cluster = millrace.cluster("local:1", profile=tmp_path / "device.json")
    assert cluster.device.flops_per_s == profiled.flops_per_s


@pytest.mark.parametrize(
    ("error", "sentence", "changed"),
    [
        (millrace.ModelError, "gpt2-smal", {"model": "gpt2-smal"}),
        (millrace.ClusterError, "h1000", {"cluster": "h1000:8x1"}),
        (millrace.ClusterError, "--framework megatron", {"framework": "megatron"}),
        (millrace.PlanError, "millrace.Pins, such as Pins", {"pins": {"tp": 2}}),
        (millrace.PlanError, "pin `tp` is '2': expected", {"pins": millrace.Pins(tp="2")}),
        (millrace.PlanError, "--tp is 0", {"pins": millrace.Pins(tp=0)}),
        (millrace.PlanError, "spede", {"optimize_for": "spede"}),
        (millrace.InfeasibleError, "16", {"pins": millrace.Pins(tp=16)}),
        (
            millrace.PlanError,
            "seq_len is 7, but the model `gpt2-small` was opened with 1024",
            {"model": model_spec("gpt2-small"), "seq_len": 7},
        ),
    ],
)
def test_what_cannot_be_planned_is_told_in_a_sentence(error, sentence, changed):
    question = {"model": "gpt2-small", "cluster": "a100:8x1", "global_batch": 64} | changed
    with pytest.raises(error, match=sentence):
        millrace.plan(question.pop("model"), question.pop("cluster"), **question)


def test_a_text_in_place_of_a_list_of_clusters_is_told():
    for verb, question in (
        (millrace.scale, {"nodes": [1], "global_batches": [8]}),
        (millrace.recommend, {"tokens": 1e9}),
    ):
        with pytest.raises(millrace.ClusterError, match=r"expected a list, \['a100:2'\]"):
            verb("mlp", "a100:2", **question)


def test_options_of_a_run_that_need_each_other_are_told(planned):
    for options in ({"resume": True}, {"checkpoint_every": 2}, {"learning_rate": -1.0}):
        with pytest.raises(millrace.PlanError):
            millrace.run(planned, **options)
