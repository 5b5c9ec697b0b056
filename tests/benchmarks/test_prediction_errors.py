"""Errors of published runs are grouped by framework, devices and kind, and written as TOML."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.simulator.prediction_errors import (
    RunError,
    as_unmeasured,
    drawn,
    error_groups,
    peak_errors,
    run_errors,
    sampled_questions,
    toml_text,
    unmeasured_groups,
)
from millrace.calibration.leave_one_out import left_out_of
from millrace.planner.clusters import parse_cluster
from millrace.published.reading import read_table
from millrace.published.step_time_range import ErrorTable, ModelKind
from tests.millrace.published.rows import written


def run_error(deviation: float, publisher: str = "a", *frameworks: str) -> RunError:
    return RunError(
        frameworks=frameworks or ("nanotron",),
        device="h100",
        kind=ModelKind.DENSE,
        source=publisher,
        deviation=deviation,
    )


def test_a_run_counts_in_its_group_and_in_those_of_any_framework_and_device():
    errors = [run_error(0.1), run_error(0.3, "b"), run_error(-0.1, "b", "alpa", "default")]
    groups = {(group.framework, group.device): group for group in error_groups(errors)}
    assert {place: group.runs for place, group in groups.items()} == {
        (framework, device): runs
        for framework, runs in {"": 3, "nanotron": 2, "alpa": 1, "default": 1}.items()
        for device in ("", "h100")
    }
    every = groups["", ""]
    assert (every.sources, every.least, every.median, every.greatest) == (2, -0.1, 0.1, 0.3)
    assert every.tenth == pytest.approx(-0.06)


def test_the_file_reads_back_and_is_drawn_a_line_per_group():
    groups = error_groups([run_error(0.1), run_error(0.3)])
    table = ErrorTable(command="a command", date="2026-11-27", rows=2, groups=groups)
    text = toml_text(table)
    assert msgspec.toml.decode(text, type=ErrorTable) == table
    assert max(map(len, drawn(table).splitlines())) <= 120
    assert "dense models with nanotron on H100 " in drawn(table)


def test_a_larger_sample_holds_the_smaller_and_small_groups_are_complete(tmp_path: Path):
    times = [{"iteration_time_s": f"0.{number:03}"} for number in range(1, 12)]
    path = written(
        tmp_path / "runs.csv", *times, {"source": "another paper"}, {"tier": "B"}, {"layers": "?"}
    )
    table = read_table(path)
    small, large = (
        {question_row.row["line"] for question_row in sampled_questions(table, count)}
        for count in (2, 4)
    )
    assert small < large
    assert (len(small), len(large)) == (3, 5)


def test_runs_are_predicted_with_what_is_known_without_their_source(tmp_path: Path):
    path = written(
        tmp_path / "runs.csv",
        {"iteration_time_s": "0.02"},
        {"source": "another paper", "framework": "nanotron"},
    )
    table = read_table(path)
    questions = sampled_questions(table, 1)
    tuned = left_out_of(table, questions)
    first, second = run_errors(table, questions, tuned, 1, lambda done, of: None)
    assert first.frameworks != ("megatron-core",)  # no other source runs it
    assert set(first.frameworks) == {"megatron-core", "default"}
    assert (first.device, first.kind, second.source) == ("a100", ModelKind.DENSE, "another paper")
    assert first.deviation > second.deviation > -1


def test_errors_of_peaks_read_back_with_the_groups():
    peaks = peak_errors([None, *(number / 100 for number in range(-50, 51))], "a command", "today")
    assert (peaks.rows, peaks.quantiles[0], peaks.quantiles[-1]) == (101, -0.5, 0.5)
    assert peaks.share_above(0.25) == pytest.approx(0.25)
    groups = error_groups([run_error(0.1)])
    table = ErrorTable(command="a", date="2026-11-30", rows=1, groups=groups, peaks=peaks)
    assert msgspec.toml.decode(toml_text(table), type=ErrorTable) == table


def test_a_device_taken_as_unmeasured_has_shares_of_other_generations():
    cluster = parse_cluster("h100:8x1")
    guessed = as_unmeasured(lambda row, cluster: cluster)({}, cluster)
    alien = parse_cluster("mi300x:8x1").device
    assert guessed.device.matmul_efficiency == alien.matmul_efficiency
    assert guessed.device.flops_per_s == cluster.device.flops_per_s


def test_runs_on_devices_taken_as_unmeasured_are_one_group_of_a_kind():
    groups = unmeasured_groups([run_error(0.1, "a", "alpa"), run_error(0.4, "b")])
    assert [(group.framework, group.device, group.runs) for group in groups] == [
        ("", "unmeasured", 2)
    ]
