"""Choices: which way of computing one thing a device takes, picked once before the first step.

Calls that differ only in where their operands lie are one question, so all layers take the same
way.
"""

from collections.abc import Callable, Sequence
from math import gcd

from executor.cuda.binding import bound
from executor.cuda.calls import Call, Choice, Operand
from executor.errors import ExecutorError

Choose = Callable[[Choice, Sequence[int]], int]
"""`choose(choice, supported)`: the index of the option to take, one of `supported` (ascending).

The choice is bound, and what its operands hold is not needed yet: the calls of an option may be
issued, to be timed. The last option is always supported."""

ALIGNMENT_BYTES = 16
"""The widest access of memory: what addresses have in common beyond it decides nothing."""


def first_supported(choice: Choice, supported: Sequence[int]) -> int:
    """Return the first option that the device can carry out: factories give the best first."""
    return supported[0]


class Picks:
    """What a device has picked.

    Parameters
    ----------
    supports
        `supports(call)`: the device can carry out this bound call.
    choose
        Picks one of the options that are supported.
    """

    def __init__(self, supports: Callable[[Call], bool], choose: Choose = first_supported) -> None:
        self._supports, self._choose = supports, choose
        self._picked: dict[Choice, int] = {}

    def pick(self, choice: Choice) -> tuple[Call, ...]:
        """Return the calls of the option that is taken, picked now where that is the first time."""
        question = _unplaced(choice)
        if question not in self._picked:
            self._picked[question] = self._made(choice)
        return choice.options[self._picked[question]]

    def picked(self, choice: Choice) -> tuple[Call, ...]:
        """Return the calls of the option that was taken.

        Raises
        ------
        ExecutorError
            Nothing was picked.
        """
        found = self._picked.get(_unplaced(choice))
        if found is None:
            raise ExecutorError(
                f"a choice among {len(choice.options)} ways was captured before it was prepared"
            )
        return choice.options[found]

    def _made(self, choice: Choice) -> int:
        last = len(choice.options) - 1
        if self._choose is first_supported:
            return next(at for at in range(last + 1) if at == last or self._can(choice, at))
        supported = [at for at in range(last + 1) if at == last or self._can(choice, at)]
        found = self._choose(choice, supported)
        if found not in supported:
            raise ExecutorError(f"option {found} was chosen, and {supported} are supported")
        return found

    def _can(self, choice: Choice, at: int) -> bool:
        return all(self._supports(call) for call in choice.options[at])


def _unplaced(choice: Choice) -> Choice:
    """Return the choice with addresses replaced by what kernels may know of them: alignment."""

    def aligned(operand: Operand) -> Operand:
        return Operand(operand.role, 0, gcd(operand.offset_bytes, ALIGNMENT_BYTES))

    found = bound(choice, aligned)
    assert isinstance(found, Choice)
    return found
