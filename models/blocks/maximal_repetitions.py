"""Repetitions in a sequence: stretches in which every item equals the one a period further on.

Notes
-----
Main and Lorentz, "An O(n log n) algorithm for finding all repetitions in a string", Journal of
Algorithms 5 (1984), 422-432: a repetition lies in the left half, in the right half, or across the
middle; those across are found for every period at once from longest common prefixes and suffixes,
which the Z array gives in linear time (Gusfield, "Algorithms on strings, trees and sequences",
1997, section 1.4).
"""

from collections.abc import Sequence
from typing import NamedTuple


class Repetition(NamedTuple):
    """Stretch `word[start:stop]` that has this period at least twice and cannot be extended."""

    start: int
    stop: int
    period: int


def maximal_repetitions(word: Sequence[int]) -> list[Repetition]:
    """Return every maximal repetition, multiples of a smallest period among them.

    Parameters
    ----------
    word : sequence of int
        Not negative.

    Examples
    --------
    >>> maximal_repetitions([7, 1, 2, 1, 2, 1, 8])
    [Repetition(start=1, stop=6, period=2)]
    """
    candidates: set[Repetition] = set()
    pending = [(0, len(word))]
    while pending:
        low, high = pending.pop()
        if high - low < 2:
            continue
        middle = (low + high) // 2
        candidates.update(_across(word, low, middle, high))
        pending += [(low, middle), (middle, high)]
    return sorted(candidate for candidate in candidates if _is_maximal(word, candidate))


def _across(word: Sequence[int], low: int, middle: int, high: int) -> list[Repetition]:
    """Repetitions in `word[low:high]` that touch the middle, as far as they reach there."""
    left, right = list(word[low:middle]), list(word[middle:high])
    ahead = z_array(right)
    behind = z_array([*left[::-1], -1, *right[::-1], *left[::-1]])
    back = z_array(left[::-1])
    after = z_array([*right, -1, *left, *right])
    crossing = []
    for period in range(1, len(right) + 1):
        # Item j equals item j + period from `before` items left of the middle on.
        prefix = ahead[period] if period < len(right) else 0
        before = behind[len(left) + 1 + len(right) - period]
        if before + prefix >= period:
            crossing.append(Repetition(middle - before, middle + prefix + period, period))
    for period in range(1, len(left) + 1):
        # Item j equals item j - period up to `prefix` items right of the middle.
        prefix = after[len(right) + 1 + len(left) - period]
        before = back[period] if period < len(left) else 0
        if before + prefix >= period:
            crossing.append(Repetition(middle - period - before, middle + prefix, period))
    return crossing


def _is_maximal(word: Sequence[int], repetition: Repetition) -> bool:
    start, stop, period = repetition
    if start > 0 and word[start - 1] == word[start - 1 + period]:
        return False
    return stop == len(word) or word[stop] != word[stop - period]


def z_array(word: Sequence[int]) -> list[int]:
    """Return for every index how many items from there on equal the first ones of the word.

    Examples
    --------
    >>> z_array([1, 2, 1, 2, 3])
    [5, 0, 2, 0, 0]
    """
    size = len(word)
    lengths = [0] * size
    if size:
        lengths[0] = size
    left = right = 0  # word[left:right] equals the beginning
    for index in range(1, size):
        length = min(right - index, lengths[index - left]) if index < right else 0
        while index + length < size and word[length] == word[index + length]:
            length += 1
        lengths[index] = length
        if index + length > right:
            left, right = index, index + length
    return lengths
