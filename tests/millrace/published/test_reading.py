"""Tables are told apart by their header; a malformed field is named with its line."""

from pathlib import Path

import pytest

from millrace.models.documents import FileError
from millrace.published.question import InexpressibleError
from millrace.published.reading import (
    ROWS_MAX,
    TableFormat,
    choice,
    number,
    read,
    read_table,
    sampled,
    whole_number,
)
from tests.millrace.published.rows import DLPERF, written


def test_layouts_are_told_apart_by_their_header(tmp_path: Path):
    assert read_table(written(tmp_path / "a.csv", {})).layout is TableFormat.LANGUAGE
    table = read_table(written(tmp_path / "b.csv", {}, plain=DLPERF))
    assert table.layout is TableFormat.DLPERF
    assert table.rows[0]["tier"] == "A"


def test_columns_that_a_file_leaves_out_are_blank(tmp_path: Path):
    path = tmp_path / "few.csv"
    path.write_text("layers,hidden,heads,seq_len,gpu,gpus,global_batch\n2,64,2,16,b200,1,4\n")
    (row,) = read_table(path).rows
    assert row["cp"] == row["notes"] == row["framework"] == ""
    assert row["line"] == "2"


def test_one_tier_is_read(tmp_path: Path):
    path = written(tmp_path / "a.csv", {"tier": "B"}, {})
    assert [row["line"] for row in read(path)] == ["3"]


def test_a_sample_is_every_so_many_rows_of_tier_a(tmp_path: Path):
    rows = [{"model": f"gpt-{number}", "tier": "AAB"[number % 3]} for number in range(9)]
    table = read_table(written(tmp_path / "a.csv", *rows))
    assert [row["model"] for row in sampled(table, 2).rows] == ["gpt-0", "gpt-3", "gpt-6"]
    assert len(sampled(table, 1).rows) == 6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "header lacks"),
        (b"a,b\n1,2\n", "model, framework, .*DLPerf layout"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(tmp_path: Path, content: bytes, said: str):
    path = tmp_path / "other.csv"
    path.write_bytes(content)
    with pytest.raises(FileError, match=said):
        read_table(path)


def test_a_number_out_of_place_names_the_field_and_what_was_expected():
    row = {"line": "7", "gpus": "many", "micro_batch": "0.25", "dp": "", "zero": "4", "tp": "4.0"}
    with pytest.raises(InexpressibleError, match="gpus is `many`: expected a number"):
        whole_number(row, "gpus")
    with pytest.raises(
        InexpressibleError, match=r"micro_batch is `0\.25`: expected a whole number"
    ):
        whole_number(row, "micro_batch")
    with pytest.raises(InexpressibleError, match="dp is blank"):
        whole_number(row, "dp")
    with pytest.raises(InexpressibleError, match="zero is `4`: expected one of 0, 1"):
        choice(row, "zero", ("0", "1"))
    with pytest.raises(InexpressibleError, match="hidden is blank"):
        number(row, "hidden")
    assert whole_number(row, "dp", 1) == 1
    assert whole_number(row, "tp") == 4


def test_more_rows_than_a_day_has_time_for_are_refused(tmp_path: Path):
    path = tmp_path / "long.csv"
    path.write_text(",".join(DLPERF) + "\n" + "x\n" * (ROWS_MAX + 1))
    with pytest.raises(FileError, match=r"long\.csv` has more than 10,000 rows"):
        read_table(path)


def test_a_count_beyond_all_counts_is_refused():
    with pytest.raises(InexpressibleError, match=r"gpus is `1e300`: .* at most 1e\+15"):
        whole_number({"gpus": "1e300"}, "gpus")
