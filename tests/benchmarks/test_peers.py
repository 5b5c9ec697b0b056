"""The table of peers: a constant's arithmetic, lines that share rows, and a peer without words."""

from pathlib import Path

import pytest

from benchmarks.simulator import peers
from millrace.published.question import InexpressibleError
from millrace.published.reading import read_table
from millrace.published.validation import RowQuestion
from tests.millrace.published.rows import written


class Doubling:
    """A peer that knows what was measured, doubles it, and has no words for `llama`."""

    name = "doubling"

    def step_time_s(self, asked: RowQuestion) -> float:
        if asked.row["model"].startswith("llama"):
            raise InexpressibleError("a llama")
        return 2 * asked.measured_s


def test_a_constant_is_the_median_of_its_group_and_leaves_a_source_out(tmp_path: Path):
    path = written(
        tmp_path / "runs.csv",
        {"iteration_time_s": "0.010"},
        {"iteration_time_s": "0.020"},
        {"iteration_time_s": "0.040"},
        {"source": "another paper", "framework": "nanotron", "iteration_time_s": "0.080"},
        {"notes": "experts=8 topk=2 moe_ffn=512", "iteration_time_s": "9"},
        {"tier": "B", "iteration_time_s": "9"},
    )
    runs = peers.dense(read_table(path))
    assert len(runs) == 4
    fitted = peers.constants(runs, runs, leaving=False)
    assert list(fitted.values()) == pytest.approx([0.02, 0.02, 0.02, 0.08])
    left = peers.constants(runs, runs, leaving=True)
    assert list(left.values()) == pytest.approx([0.08, 0.08, 0.08, 0.02])


def test_flops_of_a_model_are_counted_by_its_kind(tmp_path: Path):
    path = written(tmp_path / "runs.csv", {}, {"model": "llama-tiny", "kv_heads": "2"})
    plain, gated = peers.dense(read_table(path))
    weights = 4 * (4 * 256**2 + 2 * 256 * 1024) + 256 * 1024  # the vocabulary is padded to 1024
    assert peers.model_flops(plain) == 16 * 128 * (6 * weights + 12 * 4 * 256 * 128)
    weights += 4 * (256 * 1024 - 256**2)
    assert peers.model_flops(gated) == 16 * 128 * (6 * weights + 12 * 4 * 256 * 128)


def test_lines_have_a_row_per_predictor_and_millrace_on_the_same_rows(tmp_path: Path):
    path = written(tmp_path / "runs.csv", {}, {"model": "llama-tiny"})
    lines = peers.lines(read_table(path), 1, [Doubling()], millrace=True)
    assert [line.errors.rows for line in lines] == [2, 2, 0, 1]
    doubling = lines[-1]
    assert doubling.errors.mape == pytest.approx(1)
    assert doubling.left_out == {"a llama": 1}
    assert doubling.millrace is not None
    assert doubling.millrace.rows == 1
