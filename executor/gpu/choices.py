"""Choices: which way of computing one thing a device takes, picked once before the first step.

Calls that differ only in where their operands lie are one question, so all layers take the same
way. What was asked and which way was taken can be told in words.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import gcd

from executor.cuda.binding import bound
from executor.cuda.calls import Call, Choice, Launch, LibraryCall, Operand, Product, described
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


class Choices:
    """The options that a device has picked.

    Parameters
    ----------
    supports
        `supports(call)`: the device can carry out this bound call.
    choose
        Picks one of the options that are supported.
    """

    def __init__(self, supports: Callable[[Call], bool], choose: Choose = first_supported) -> None:
        self._supports, self._choose = supports, choose
        self._answers: dict[Choice, int] = {}  # by question
        self._taken: dict[Choice, int] = {}  # by bound choice

    def pick(self, choice: Choice) -> tuple[Call, ...]:
        """Return the calls of the option that is taken, picked now where that is the first time."""
        if choice not in self._taken:
            question = _unplaced(choice)
            if question not in self._answers:
                self._answers[question] = self._made(choice)
            self._taken[choice] = self._answers[question]
        return self.taken(choice)

    def taken(self, choice: Choice) -> tuple[Call, ...]:
        """Return the calls of the option that was taken.

        Raises
        ------
        ExecutorError
            Nothing was picked.
        """
        found = self._taken.get(choice)
        if found is None:
            raise ExecutorError(
                f"a choice among {len(choice.options)} ways was captured before it was prepared: "
                f"{subject_of(choice)}"
            )
        return choice.options[found]

    def picked(self) -> dict[str, dict[str, int]]:
        """Return how many choices took which way, by what they compute; both in words."""
        found: dict[str, Counter[str]] = {}
        for choice, at in self._taken.items():
            found.setdefault(subject_of(choice), Counter())[way_of(choice.options[at])] += 1
        return {subject: dict(ways) for subject, ways in found.items()}

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


def subject_of(choice: Choice) -> str:
    """Return what a choice computes, in words: its first library's call, which says it in one."""
    calls = (call for option in choice.options for call in option)
    found = next((call for call in calls if isinstance(call, LibraryCall | Product)), None)
    return f"{len(choice.options)} ways of one thing" if found is None else described(found)


def way_of(option: Sequence[Call]) -> str:
    """Return how an option computes what it does: libraries, and the sources of kernels of ours.

    Examples
    --------
    >>> from executor.cuda.calls import Clear, write
    >>> kernel = Launch("pointwise", "add<bf16>", (1, 1, 1), (256, 1, 1), ())
    >>> way_of((kernel, Clear(write(0), 2), kernel))
    '2 our pointwise + clear'
    """
    counts = Counter(map(_maker, option))
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())


def _maker(call: Call) -> str:
    match call:
        case Launch():
            return f"our {call.source}"
        case Product():
            return "cublaslt" if call == call.plain else "cublaslt fused"
        case _ if isinstance(call, LibraryCall):
            return "cudnn"
        case _:
            return type(call).__name__.lower()


def _unplaced(choice: Choice) -> Choice:
    """Return the choice with addresses replaced by what kernels may know of them: alignment."""

    def aligned(operand: Operand) -> Operand:
        return Operand(operand.role, 0, gcd(operand.offset_bytes, ALIGNMENT_BYTES))

    found = bound(choice, aligned)
    assert isinstance(found, Choice)
    return found
