"""The stream of a graph: its ops that work on data, in order, each as a number that says its like.

Positions in the stream are what repetitions and cuts are counted in.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from millrace.models.blocks.structure import Wiring
from millrace.models.graph import Graph

NEVER = -(1 << 62)  # the position of a reader that there is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Ops on data by position.

    Attributes
    ----------
    wiring : Wiring
    numbers : tuple of int
        Position to the number of the op.
    word : tuple of int
        Position to a number that two ops share when they and all that they carry are equal.
    producers : tuple
        Position to the positions of the ops in the stream that it reads.
    reads : tuple
        The same for every input: what it reads, or for something carried that others read as well,
        its reader before this one (or NEVER).
    lasts : tuple
        Position to the last reader (or NEVER) of every output.
    trains : tuple of bool
        Position to whether the op carries anything made of a variable.
    spans : tuple
        Per tensor that is read later: position that makes it, position that reads it last, bytes.
    """

    wiring: Wiring
    numbers: tuple[int, ...]
    word: tuple[int, ...]
    producers: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    lasts: tuple[tuple[int, ...], ...]
    trains: tuple[bool, ...]
    spans: tuple[tuple[int, int, int], ...]


def stream_of(graph: Graph, wiring: Wiring) -> Stream:
    """Line up the ops of a graph that work on data."""
    numbers = [number for number in range(len(wiring.ops)) if not wiring.carried[number]]
    positions = {number: position for position, number in enumerate(numbers)}
    shared = _shared(wiring, positions)
    trees = _carried_trees(wiring)
    tensors = graph.tensors_by_name
    known: dict[Hashable, int] = {}
    word: list[int] = []
    producers: list[tuple[int, ...]] = []
    reads: list[tuple[int, ...]] = []
    last: dict[tuple[int, int], int] = {}
    first: dict[tuple[int, int], int] = {}
    for position, number in enumerate(numbers):
        token: list[Hashable] = [wiring.likeness[number]]
        made_at: list[int] = []
        before: list[int] = []
        for made in wiring.inputs[number]:
            if wiring.carried[made[0]]:
                token.append((trees[made[0]], made[1], made[0] in shared))
                before.append(last.get(made, NEVER))
                first.setdefault(made, position)
            else:
                token.append(wiring.seen(made))
                made_at.append(positions[made[0]])
                before.append(made_at[-1])
                first.setdefault(made, made_at[-1])
        last.update(dict.fromkeys(wiring.inputs[number], position))
        word.append(known.setdefault(tuple(token), len(known)))
        producers.append(tuple(made_at))
        reads.append(tuple(before))
    return Stream(
        wiring=wiring,
        numbers=tuple(numbers),
        word=tuple(word),
        producers=tuple(producers),
        reads=tuple(reads),
        lasts=tuple(
            tuple(
                last.get((number, output), NEVER) for output in range(len(wiring.outputs[number]))
            )
            for number in numbers
        ),
        trains=tuple(
            any(wiring.carried[made] and wiring.trained[made] for made, _ in wiring.inputs[number])
            for number in numbers
        ),
        spans=tuple(
            (first[made], stop, tensors[wiring.ops[made[0]].outputs[made[1]]].size_bytes)
            for made, stop in last.items()
            if first[made] < stop
        ),
    )


def _carried_trees(wiring: Wiring) -> dict[int, int]:
    """Number per carried op, equal where everything that it is made of is equal."""
    known: dict[Hashable, int] = {}
    trees: dict[int, int] = {}
    for number, carried in enumerate(wiring.carried):
        if carried:
            made = tuple((trees[source], output) for source, output in wiring.inputs[number])
            trees[number] = known.setdefault((wiring.likeness[number], made), len(known))
    return trees


def _shared(wiring: Wiring, positions: dict[int, int]) -> set[int]:
    """Carried ops that more than one op of the stream reads, or that are made of such."""
    readers: dict[int, int] = {}  # carried op to its only position
    shared: set[int] = set()
    for number in reversed(range(len(wiring.ops))):
        reader = positions.get(number, readers.get(number, NEVER))
        for source, _ in wiring.inputs[number]:
            if not wiring.carried[source]:
                continue
            if number in shared or readers.setdefault(source, reader) != reader:
                shared.add(source)
    for number, sources in enumerate(wiring.inputs):
        if wiring.carried[number] and any(source in shared for source, _ in sources):
            shared.add(number)
    return shared
