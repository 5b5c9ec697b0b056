"""Units are read and written only here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.planner.errors import PlanError
from millrace.units import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_duration_s,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("512 MB", 512_000_000),
        ("1073741824", 2**30),
        ("80B", 80),
        ("0.5tib", 2**39),
    ],
)
def test_sizes_are_read_with_binary_and_decimal_units(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "80G", "-1GiB", "0", "many", "1e9", "GiB", "80", "9e9TiB", "9" * 30]
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(PlanError, match="write 80GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2_592_000), (" 12 h", 43_200), ("90min", 5400), ("2W", 1_209_600), ("1e3s", 1000)],
)
def test_durations_are_read_with_their_unit(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "0d", "3m", "3 months", "1e400d"])
def test_a_duration_without_a_unit_or_length_is_refused_with_an_example(text):
    with pytest.raises(PlanError, match="write 30d, 12h"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("2M", 2e6), ("500k", 5e5), ("$1.5B", 1.5e9), ("15T", 1.5e13), ("1e12", 1e12), ("7", 7)],
)
def test_budgets_and_tokens_are_read_with_powers_of_a_thousand(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "M", "-2M", "0", "2Mio", "€2M", "nan", "inf", "1e999"])
def test_a_count_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(PlanError, match="write 500k, 2M"):
        parse_count(text)


def test_figures_are_written_with_three_digits_and_their_unit():
    assert format_bytes(3 * 2**29) == "1.50 GiB"
    assert format_bytes(12) == "12 B"
    assert format_seconds(0.01234) == "12.3 ms"
    assert format_seconds(0) == "0 s"
    assert format_percent(-0.0512, signed=True) == "-5.1 %"
    assert format_count(124_439_808) == "124M"


@given(st.floats(1e-9, 1e6))
def test_a_written_duration_is_within_half_a_percent_of_the_real_one(seconds):
    number, unit = format_seconds(seconds).split()
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=0.006, abs=0.5e-9)
