"""Every instant of a window counts once."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.planner.actors.interval_ownership import OwnedInterval, covering_ns

times = st.integers(0, 40)
intervals = st.builds(
    lambda start, length, rank: OwnedInterval(start, start + length, rank, rank),
    times,
    times,
    st.integers(0, 2),
)


@given(st.lists(intervals, max_size=8), times, times)
def test_every_instant_counts_for_the_lowest_rank_that_covers_it(spans, begin, length):
    counted = covering_ns(spans, begin, begin + length)
    expected: dict[object, int] = {}
    for instant in range(begin, begin + length):
        ranks = [span.rank for span in spans if span.start_ns <= instant < span.end_ns]
        owner = min(ranks, default=None)
        expected[owner] = expected.get(owner, 0) + 1
    assert counted == expected


def test_of_equals_the_one_that_ends_first_counts():
    some = [OwnedInterval(0, 9, 1, "long"), OwnedInterval(2, 5, 1, "short")]
    assert covering_ns(some, 0, 10) == {"long": 6, "short": 3, None: 1}
