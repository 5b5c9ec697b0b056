"""Repetitions in a sequence against trying every start and period."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.models.blocks.maximal_repetitions import Repetition, maximal_repetitions, z_array

WORDS = st.integers(1, 3).flatmap(lambda top: st.lists(st.integers(0, top), max_size=40))


def by_trying(word: list[int]) -> list[Repetition]:
    runs = []
    for period in range(1, len(word) // 2 + 1):
        start = 0
        while start + period < len(word):
            stop = start + period
            while stop < len(word) and word[stop] == word[stop - period]:
                stop += 1
            if stop - start >= 2 * period:
                runs.append(Repetition(start, stop, period))
            start = max(start + 1, stop - period + 1)
    return sorted(runs)


@given(WORDS)
def test_repetitions_are_those_that_trying_every_period_finds(word: list[int]) -> None:
    assert maximal_repetitions(word) == by_trying(word)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(2, 9))
def test_a_repeated_word_is_one_repetition(word: list[int], times: int) -> None:
    assert any(
        repetition.start == 0 and repetition.stop == len(word) * times
        for repetition in maximal_repetitions(word * times)
    )


@given(WORDS)
def test_the_z_array_counts_what_equals_the_beginning(word: list[int]) -> None:
    for index, length in enumerate(z_array(word)):
        assert word[index : index + length] == word[:length]
        assert index + length == len(word) or word[length] != word[index + length]
