"""Shipped tables of published runs: facts with their sources, read without notes."""

import csv
from pathlib import Path

import pytest

from millrace.published.reading import TableFormat, read_table
from millrace.published.validation import ask, source

TABLES = Path(__file__).parents[2] / "benchmarks" / "tables"
READ = {
    "published": TableFormat.LANGUAGE,
    "unseen": TableFormat.LANGUAGE,
    "dlperf": TableFormat.DLPERF,
    "newer_models": TableFormat.NAMED,
}
LONGEST = 250  # characters of a fact: the longest are paths of sources


@pytest.mark.parametrize("name", READ)
def test_every_row_that_is_judged_is_a_question(name: str):
    table = read_table(TABLES / f"{name}.csv")
    assert table.layout is READ[name]
    judged = [row for row in table.rows if row["tier"] == "A"]
    assert [reason for row in judged if (reason := ask(row, table.layout).reason)] == []


@pytest.mark.parametrize("name", READ)
def test_every_row_says_where_it_was_read_and_whether_figures_were_fitted_to_it(name: str):
    table = read_table(TABLES / f"{name}.csv")
    assert "notes" not in table.columns
    for row in table.rows:
        assert source(row)
        assert row.get("source_path") or row["source_file"]
        assert row["fitted"] in ("0", "1")
        assert row.get("routing", "") in ("", "balanced", "natural")


def test_figures_were_fitted_to_tier_a_and_tpus_of_the_published_runs_and_to_no_unseen_one():
    published, unseen = (
        read_table(TABLES / f"{name}.csv").rows for name in ("published", "unseen")
    )
    fitted_on = {(row["tier"], row["gpu"].startswith("tpu"), row["fitted"]) for row in published}
    assert fitted_on == {("A", False, "1"), ("B", True, "1"), ("B", False, "0")}
    assert {row["fitted"] for row in unseen} == {"0"}


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.csv")), ids=lambda path: path.stem)
def test_fields_are_facts_not_sentences(path: Path):
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            assert max(len(value) for value in row.values()) <= LONGEST
