"""The op sequence of a graph, its *stream*: ops that work on data, equal numbers for equal ones.

Positions in the stream are what repetitions and cuts are counted in.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from millrace.models.blocks.structural_equality import ForwardStructure
from millrace.models.graph import Graph

NEVER = -(1 << 62)  # the position of a reader that there is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Ops on data by position.

    Attributes
    ----------
    wiring : ForwardStructure
    numbers : tuple of int
        Position to the number of the op.
    word : tuple of int
        Position to a number that two ops share when they and all that they carry are equal.
    producers : tuple
        Position to the positions of the ops in the stream that it reads.
    reads : tuple
        Position to the position that each input reads, or, for something carried that others read
        as well, that of its reader before this one (or NEVER).
    lasts : tuple
        Position to the last reader (or NEVER) of every output.
    trains : tuple of bool
        Position to whether the op carries anything made of a variable.
    spans : tuple
        Per tensor that is read later: position that makes it, position that reads it last, bytes.
    """

    wiring: ForwardStructure
    numbers: tuple[int, ...]
    word: tuple[int, ...]
    producers: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    lasts: tuple[tuple[int, ...], ...]
    trains: tuple[bool, ...]
    spans: tuple[tuple[int, int, int], ...]


def stream_of(graph: Graph, wiring: ForwardStructure) -> Stream:
    """Line up the ops of a graph that work on data."""
    numbers = [number for number in range(len(wiring.ops)) if not wiring.carried[number]]
    positions = {number: position for position, number in enumerate(numbers)}
    shared = _shared(wiring, positions)
    trees = _carried_trees(wiring)
    tensors = graph.tensors_by_name
    numbers_by_token: dict[Hashable, int] = {}
    word: list[int] = []
    producers: list[tuple[int, ...]] = []
    reads: list[tuple[int, ...]] = []
    last: dict[tuple[int, int], int] = {}
    first: dict[tuple[int, int], int] = {}
    for position, number in enumerate(numbers):
        token: list[Hashable] = [wiring.likeness[number]]
        producer_positions: list[int] = []
        before: list[int] = []
        for source in wiring.inputs[number]:
            if wiring.carried[source[0]]:
                token.append((trees[source[0]], source[1], source[0] in shared))
                before.append(last.get(source, NEVER))
                first.setdefault(source, position)
            else:
                token.append(wiring.seen(source))
                producer_positions.append(positions[source[0]])
                before.append(producer_positions[-1])
                first.setdefault(source, producer_positions[-1])
        last.update(dict.fromkeys(wiring.inputs[number], position))
        word.append(numbers_by_token.setdefault(tuple(token), len(numbers_by_token)))
        producers.append(tuple(producer_positions))
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
            any(
                wiring.carried[source] and wiring.trained[source]
                for source, _ in wiring.inputs[number]
            )
            for number in numbers
        ),
        spans=tuple(
            (first[source], stop, tensors[wiring.ops[source[0]].outputs[source[1]]].size_bytes)
            for source, stop in last.items()
            if first[source] < stop
        ),
    )


def _carried_trees(wiring: ForwardStructure) -> dict[int, int]:
    """Number per carried op, equal where everything that it is made of is equal."""
    numbers_by_tree: dict[Hashable, int] = {}
    trees: dict[int, int] = {}
    for number, carried in enumerate(wiring.carried):
        if carried:
            inputs = tuple((trees[source], output) for source, output in wiring.inputs[number])
            trees[number] = numbers_by_tree.setdefault(
                (wiring.likeness[number], inputs), len(numbers_by_tree)
            )
    return trees


def _shared(wiring: ForwardStructure, positions: dict[int, int]) -> set[int]:
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
