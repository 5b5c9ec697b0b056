"""Pins are taken by name, every value of its kind."""

import pytest

from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.search import Pins


def test_pins_of_a_mapping_are_those_of_the_command_line() -> None:
    given = {"dp": 2, "zero": "3-hybrid", "ring": False, "recompute": "full", "tp": None}
    assert Pins.of(given).document == {
        name: value for name, value in given.items() if value is not None
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bogus": 1}, "there is no pin `bogus`; known: dp, tp"),
        ({"micro-batch": 1}, "there is no pin `micro-batch`; did you mean micro_batch"),
        ({"dp": "2"}, "pin `dp` is '2': expected int"),
        ({"dp": True}, "pin `dp` is True: expected int"),
        ({"dp": 2.0}, r"pin `dp` is 2\.0: expected int"),
        ({"ring": 1}, "pin `ring` is 1: expected bool"),
        ({"zero": 1.5}, r"pin `zero` is 1\.5: expected str or int"),
        ({"dp": 0}, "--dp is 0: expected at least 1"),
    ],
)
def test_what_is_no_pin_is_refused_by_name(given: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        Pins.of(given).check()
    assert not isinstance(caught.value, InfeasibleError)
