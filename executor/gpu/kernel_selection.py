"""Kernel selection: the way in which a device computes a thing, picked before the first step.

Calls that differ only in where their operands lie are one question, so all layers take the same
way. What was asked and which way was taken can be told in words.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import gcd

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import (
    Call,
    KernelAlternatives,
    Launch,
    LibraryCall,
    Operand,
    ProductCall,
)
from millrace.executor.cuda.wording import described
from millrace.executor.errors import ExecutorError

Can = Callable[[int], bool]
"""`can(option)`: the device can carry out this option, by index; always the last."""

Choose = Callable[[KernelAlternatives, Can, int], int]
"""`choose(choice, can, stream)`: the index of the option to take, one that the device can.

The choice is bound, and what its operands hold is not needed yet: the calls of an option may be
issued on the stream, to be timed."""

ALIGNMENT_BYTES = 16
"""The widest access of memory: what addresses have in common beyond it decides nothing."""


def first_supported(choice: KernelAlternatives, can: Can, stream: int) -> int:
    """First option that the device can carry out: factories give the best first."""
    return next(option for option in range(len(choice.options)) if can(option))


class Choices:
    """The options that a device has picked.

    Parameters
    ----------
    supports
        `supports(call)`: the device can carry out this bound call.
    choose
        Picks one of the options.
    """

    def __init__(self, supports: Callable[[Call], bool], choose: Choose = first_supported) -> None:
        self._supports, self._choose = supports, choose
        self._answers: dict[KernelAlternatives, int] = {}  # by question
        self._option_by_choice: dict[KernelAlternatives, int] = {}  # by bound choice
        self._streams: dict[KernelAlternatives, int] = {}  # by bound choice, the stream that asked

    def pick(self, choice: KernelAlternatives, stream: int) -> tuple[Call, ...]:
        """Calls of the option that is taken, picked now where that is the first time."""
        if choice not in self._option_by_choice:
            question = _unplaced(choice)
            if question not in self._answers:
                self._answers[question] = self._chosen_option(choice, stream)
            self._option_by_choice[choice], self._streams[choice] = self._answers[question], stream
        return self.chosen_calls(choice)

    def forget(self) -> dict[KernelAlternatives, int]:
        """Forget all that was picked; return which choices there were, and their streams."""
        asked, self._streams = self._streams, {}
        self._answers.clear()
        self._option_by_choice.clear()
        return asked

    def chosen_calls(self, choice: KernelAlternatives) -> tuple[Call, ...]:
        """Calls of the option that was taken.

        Raises
        ------
        ExecutorError
            Nothing was picked.
        """
        option = self._option_by_choice.get(choice)
        if option is None:
            raise ExecutorError(
                f"a choice among {len(choice.options)} ways was captured before it was prepared: "
                f"{subject_of(choice)}"
            )
        return choice.options[option]

    def picked(self) -> dict[str, dict[str, int]]:
        """Number of choices that took each way, by what they compute; both in words."""
        counts: dict[str, Counter[str]] = {}
        for choice, option in self._option_by_choice.items():
            counts.setdefault(subject_of(choice), Counter())[way_of(choice.options[option])] += 1
        return {subject: dict(ways) for subject, ways in counts.items()}

    def _chosen_option(self, choice: KernelAlternatives, stream: int) -> int:
        last = len(choice.options) - 1

        def can(option: int) -> bool:
            return option == last or all(self._supports(call) for call in choice.options[option])

        option = self._choose(choice, can, stream)
        if not can(option):
            raise ExecutorError(f"option {option} of {subject_of(choice)} is not supported")
        return option


def key_of_choice(choice: KernelAlternatives) -> str:
    """All that the choice of a way depends on, but for the device: words, and a digest."""
    digest = sha256(repr(_unplaced(choice)).encode()).hexdigest()[:16]
    return f"{subject_of(choice)}; {digest}"


def subject_of(choice: KernelAlternatives) -> str:
    """Subject of a choice in words: that of its first library's call, which says it in one."""
    calls = (call for option in choice.options for call in option)
    library_call = next(
        (call for call in calls if isinstance(call, LibraryCall | ProductCall)), None
    )
    return (
        f"{len(choice.options)} ways of one thing"
        if library_call is None
        else described(library_call)
    )


def way_of(option: Sequence[Call]) -> str:
    """An option's way of computing, in words: libraries, and the sources of kernels of ours.

    Examples
    --------
    >>> from millrace.executor.cuda.calls import Clear, write
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
        case ProductCall():
            return "cublaslt" if call == call.plain else "cublaslt fused"
        case _ if isinstance(call, LibraryCall):
            return "cudnn"
        case _:
            return type(call).__name__.removesuffix("Call").lower()


def _unplaced(choice: KernelAlternatives) -> KernelAlternatives:
    """Choice with addresses replaced by what kernels may know of them: alignment."""

    def aligned(operand: Operand) -> Operand:
        return Operand(operand.role, 0, gcd(operand.offset_bytes, ALIGNMENT_BYTES))

    unplaced = bind(choice, aligned)
    assert isinstance(unplaced, KernelAlternatives)
    return unplaced
