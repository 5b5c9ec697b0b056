"""Rounds of probes: what they agree on, and how far they differ."""

from millrace.executor.probes.probe_rounds import Points, agree, combined, spreads
from millrace.executor.probes.probe_timing import Timings
from millrace.executor.probes.timed_ranks import quality_of


def rounds_of(*durations_ns: int) -> list[Points]:
    """Rounds of one probe that takes so long in each, and of another that always takes 100 ns."""
    return [{"gelu": [(8, duration_ns)], "relu": [(8, 100)]} for duration_ns in durations_ns]


def test_a_burst_in_one_of_three_rounds_leaves_no_trace() -> None:
    rounds = rounds_of(1000, 9000, 1000)
    assert combined(rounds) == {"gelu": [(8, 1000)], "relu": [(8, 100)]}
    assert spreads(rounds) == {"gelu": [0.0], "relu": [0.0]}
    assert agree(spreads(rounds), 3)


def test_rounds_that_differ_do_not_agree_and_the_worst_table_is_named() -> None:
    rounds = rounds_of(1000, 2000, 3000)
    differences = spreads(rounds)
    assert differences == {"gelu": [0.5], "relu": [0.0]}
    assert not agree(differences, 3)
    quality = quality_of([Timings(spreads=differences, rounds=3)])
    assert (quality.rounds, quality.spread, quality.spread_max) == (3, 0.25, 0.5)
    assert quality.spread_max_of == "gelu"
    assert quality.others is quality.steal is quality.frequency is None


def test_the_more_rounds_differ_the_more_are_needed() -> None:
    for spread, needed in ((0.08, 9), (0.1, 14)):
        differences = {"gelu": [spread] * 10}
        assert not agree(differences, needed - 1)
        assert agree(differences, needed)


def test_one_round_has_no_spread() -> None:
    quality = quality_of([Timings()])
    assert (quality.rounds, quality.spread, quality.spread_max) == (1, None, None)
    assert not quality.is_doubtful
