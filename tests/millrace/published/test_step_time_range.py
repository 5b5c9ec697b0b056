"""The range of a step time is that of the published runs most like it, and none where none are."""

import pytest
from msgspec.structs import replace

from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.clusters import device, parse_cluster
from millrace.published import step_time_range as ranges
from millrace.published.step_time_range import (
    UNMEASURED,
    ErrorGroup,
    ErrorTable,
    ModelKind,
    device_class,
    error_group,
    error_table,
    model_kind,
    plan_range,
    range_document,
    step_time_range,
    unmeasured_text,
)
from tests.millrace.plans import drawn_plan


def group(
    framework: str, device: str, runs: int, sources: int, spread: float = 1.0, **changed: object
) -> ErrorGroup:
    return ErrorGroup(
        framework=framework,
        device=device,
        kind=changed.get("kind", ModelKind.DENSE),
        runs=runs,
        sources=sources,
        least=-0.3 * spread,
        tenth=-0.1 * spread,
        median=0.01,
        ninetieth=0.2 * spread,
        greatest=0.5 * spread,
    )


GROUPS = (
    group("", "", 40, 7),
    group("", "a100", 12, 3),
    group("megatron-core", "", 20, 4),
    group("megatron-core", "a100", 6, 2),
    group("megatron-core", "h100", 4, 2),
    group("nanotron", "", 9, 1),
    group("", "", 30, 1, kind=ModelKind.CONVOLUTION),
    group("", UNMEASURED, 60, 9, spread=2.0),
)


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ErrorTable(command="", date="", rows=40, groups=GROUPS)
    monkeypatch.setattr(ranges, "error_table", lambda: table)


@pytest.mark.parametrize(
    ("framework", "device", "chosen"),
    [
        ("megatron-core", "a100-sxm-80gb", 3),
        ("megatron-core", "h100-sxm-80gb", 2),  # four runs on H100 are too few
        ("nanotron", "a100-sxm-40gb", 1),  # its runs are of one source
        ("nanotron", "h100-sxm-80gb", 0),
        ("alpa", "a100-sxm-80gb", 1),
    ],
)
def test_the_most_specific_group_with_runs_of_several_sources_is_taken(framework, device, chosen):
    assert error_group(framework, [device], ModelKind.DENSE, GROUPS) is GROUPS[chosen]


def test_a_group_of_one_source_speaks_where_there_is_no_other():
    chosen = error_group("megatron-core", ["a100-sxm-80gb"], ModelKind.CONVOLUTION, GROUPS)
    assert chosen is GROUPS[6]


@pytest.mark.parametrize(
    ("framework", "devices"),
    [
        ("millrace", ["a100-sxm-80gb"]),  # published runs are of other software
        ("alpa", ["mi300x"]),
    ],
)
def test_nothing_is_like_what_was_never_compared(framework, devices):
    assert error_group(framework, devices, ModelKind.DENSE, GROUPS) is None
    assert error_group("megatron-core", ["a100"], ModelKind.OTHER, GROUPS) is None


def test_devices_of_two_classes_are_like_the_runs_of_their_framework():
    devices = ["a100-sxm-80gb", "h100-sxm-80gb"]
    assert error_group("megatron-core", devices, ModelKind.DENSE, GROUPS) is GROUPS[2]


@pytest.mark.usefixtures("shipped")
def test_eight_in_ten_of_many_runs_and_all_of_few_bound_a_step_time():
    many = step_time_range("megatron-core", ["h100-sxm-80gb"], ModelKind.DENSE, 10.0)
    assert (many.low_s, many.high_s) == pytest.approx((9.0, 12.0))
    assert many.text == (
        "9.00 to 12.0 s: 8 in 10 of 20 published runs of dense models with megatron-core on any "
        "device (4 sources) fell so around their predictions"
    )
    few = step_time_range("megatron-core", ["a100-sxm-80gb"], ModelKind.DENSE, 0.8)
    assert (few.low_s, few.high_s) == pytest.approx((0.56, 1.2))
    assert few.text.startswith("560 ms to 1.20 s: all 6 published runs of dense models with")


@pytest.mark.usefixtures("shipped")
def test_a_plan_for_data_sheets_has_a_range_and_one_for_this_machine_has_none():
    plan = drawn_plan()
    assert range_document(plan, 2.0) == {
        "step_time_range_s": None,
        "step_time_compared_with": plan_range(plan, 2.0)[1],
        "device_doubt": "",
    }
    assert "a profile of the machine" in plan_range(plan, 2.0)[1]
    on_gpus = replace(plan, cluster=parse_cluster("a100-sxm-80gb:4x1"))
    assert range_document(on_gpus, 2.0)["step_time_range_s"] == pytest.approx([1.8, 2.4])
    assert range_document(on_gpus, 2.0)["device_doubt"] == ""
    assert set(range_document(plan, None).values()) == {None}


@pytest.mark.usefixtures("shipped")
def test_a_device_that_no_run_was_fitted_on_has_the_range_of_such_devices():
    doubt = "not calibrated: no published run on mi300x was fitted"
    plan = replace(drawn_plan(), cluster=parse_cluster("mi300x:4x1"))
    document = range_document(plan, 2.0)
    assert document["device_doubt"] == doubt
    assert document["step_time_range_s"] == pytest.approx([1.6, 2.8])
    assert document["step_time_compared_with"] == (
        f"1.60 to 2.80 s: {doubt}; 8 in 10 of 60 published runs of dense models, as if on "
        "unmeasured devices (9 sources) fell so around their predictions"
    )
    several = [device(name) for name in ("mi300x", "tpu-v5p", "mi300x", "h100", "tpu-v6e")]
    assert unmeasured_text(several) == (
        f"{doubt}, assumed of tpu-v5p: efficiency of attention and memory, "
        "all runs on tpu-v6e that were compared were fitted"
    )


def test_the_range_of_devices_that_no_run_was_fitted_on_is_wider_than_any_measured():
    groups = [group for group in error_table().groups if not group.framework]
    for kind in (ModelKind.DENSE, ModelKind.EXPERTS):
        widths = {
            group.device: group.bounds[1] - group.bounds[0]
            for group in groups
            if group.kind is kind
        }
        assert widths[UNMEASURED] > widths[""]


def test_kinds_are_told_by_family_configuration_or_ops():
    kinds = {
        "llama3-8b": ModelKind.DENSE,
        "mixtral-demo": ModelKind.EXPERTS,
        "resnet50": ModelKind.CONVOLUTION,
        "mlp": ModelKind.OTHER,
    }
    assert {name: model_kind(model_spec(name)) for name in kinds} == kinds
    for name in ("gpt-demo", "mixtral-demo", "mlp"):
        spec = model_spec(name)
        function = replace(spec, family="function", config={})
        assert model_kind(function, build_training(spec, TrainingSpec(), 1)) is model_kind(spec)


def test_devices_of_one_class_differ_in_form_and_memory():
    names = ("h100-sxm-96gb-hbm2e-500w", "h100-pcie-80gb", "tpu-v5p", "cpu-core", "MI300X")
    assert [*map(device_class, names)] == ["h100", "h100", "tpu-v5p", "cpu-core", "mi300x"]


def test_the_package_ships_groups_in_order_of_their_figures():
    for shipped_group in error_table().groups:
        figures = [
            *(shipped_group.least, shipped_group.tenth, shipped_group.median),
            *(shipped_group.ninetieth, shipped_group.greatest),
        ]
        assert figures == sorted(figures)
        assert 0 < shipped_group.sources <= shipped_group.runs <= error_table().rows
