"""Launch overhead: actors in a row become one, launched as often and as late as they."""

from millrace.planner.costs.launch_overhead import Pace, merged

HOST_NS = 20


def test_what_is_merged_is_launched_as_often_as_its_parts() -> None:
    assert merged([(Pace(1), 100), (Pace(2), 100), (Pace(0), 100)], HOST_NS).launches == 3


def test_a_part_whose_launch_comes_after_the_parts_before_it_are_done_lags() -> None:
    # Launched 20 ns after the first, which takes 5: it begins 15 late, and its own lag is added.
    assert merged([(Pace(1), 5), (Pace(1, 3), 50)], HOST_NS) == Pace(2, 18)


def test_a_long_part_before_it_hides_a_launch() -> None:
    assert merged([(Pace(1, 2), 100), (Pace(1), 50)], HOST_NS) == Pace(2, 2)


def test_a_first_part_that_is_early_keeps_its_lead() -> None:
    assert merged([(Pace(1, -7), 100)], HOST_NS) == Pace(1, -7)
