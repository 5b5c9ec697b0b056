"""Units are read and written only here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.planner.errors import PlanError
from millrace.units import format_bytes, format_count, format_percent, format_seconds, parse_bytes


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
