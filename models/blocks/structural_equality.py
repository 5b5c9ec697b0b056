"""Equality of ops and of blocks in structure, whatever they are called.

A *carried* op is one that works on no data: variables, constants and what is made of them alone,
and the inputs of data themselves. It goes where it is read. All other ops make up the stream.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from millrace.models.graph import GLOBAL_BLOCK, Graph, Op, Tensor

# Names inside attributes say who an op is, not what it does.
NAMING_ATTRIBUTES = ("op", "variable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStructure:
    """The forward part of a graph by number: who reads whom, and what each op is like.

    Attributes
    ----------
    ops : tuple of Op
        Ops of the phases begin and forward outside the global block, in the graph's order.
    inputs : tuple
        Per op and input: the number of the op that makes it, and which of its outputs it is.
    outputs : tuple
        Per op and output: shape, dtype, rate and batch dim.
    likeness : tuple of int
        Per op a number that two ops share when their kind, labels, attributes, phase and outputs
        are equal.
    trained, data : tuple of bool
        Per op, whether it depends on a variable that is trained, and on an input.
    carried : tuple of bool
        Per op, whether it goes where it is read.
    """

    ops: tuple[Op, ...]
    inputs: tuple[tuple[tuple[int, int], ...], ...]
    outputs: tuple[tuple[tuple[Hashable, ...], ...], ...]
    likeness: tuple[int, ...]
    trained: tuple[bool, ...]
    data: tuple[bool, ...]
    carried: tuple[bool, ...]

    def seen(self, source: tuple[int, int]) -> tuple[Hashable, ...]:
        """Facts that a reader in another block sees of an op's output."""
        number, output = source
        return *self.outputs[number][output], self.trained[number], self.data[number]


def wiring_of(graph: Graph) -> ForwardStructure:
    """Number the forward part of a valid graph."""
    tensors = graph.tensors_by_name
    sources_by_name: dict[str, tuple[int, int]] = {}
    numbers_by_facts: dict[Hashable, int] = {}
    ops: list[Op] = []
    inputs: list[tuple[tuple[int, int], ...]] = []
    outputs: list[tuple[tuple[Hashable, ...], ...]] = []
    likeness: list[int] = []
    trained: list[bool] = []
    data: list[bool] = []
    for op in graph.ops:
        if not op.phase.is_forward or op.block == GLOBAL_BLOCK:
            continue
        sources = tuple(sources_by_name[name] for name in op.inputs)
        sources_by_name.update((name, (len(ops), output)) for output, name in enumerate(op.outputs))
        outputs.append(tuple(facts_of_tensor(tensors[name]) for name in op.outputs))
        likeness.append(
            numbers_by_facts.setdefault((*facts_of_op(op), outputs[-1]), len(numbers_by_facts))
        )
        # What is counted or chosen (int32) has no slope.
        read = zip(sources, op.inputs, strict=True)
        sloped = [number for (number, _), name in read if "int" not in tensors[name].dtype]
        trained.append(op.trains or any(trained[number] for number in sloped))
        data.append(op.kind == "input" or any(data[number] for number, _ in sources))
        inputs.append(sources)
        ops.append(op)
    return ForwardStructure(
        ops=tuple(ops),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        likeness=tuple(likeness),
        trained=tuple(trained),
        data=tuple(data),
        carried=tuple(
            op.kind == "input" or not depends for op, depends in zip(ops, data, strict=True)
        ),
    )


def facts_of_tensor(tensor: Tensor) -> tuple[Hashable, ...]:
    """Everything about a tensor but its name."""
    return tensor.shape, tensor.dtype, tensor.rate, tensor.batch_dim


def facts_of_op(op: Op) -> tuple[Hashable, ...]:
    """Everything about an op but its name and tensors: kind, labels, phase, attributes."""
    attributes = tuple(x for x in sorted(op.attributes.items()) if x[0] not in NAMING_ATTRIBUTES)
    return op.kind, op.labels, op.phase, attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStructure:
    """A block: its ops in an order that equal blocks share, and what makes them equal."""

    order: tuple[int, ...]
    structure: Hashable


def block_structures(
    wiring: ForwardStructure, homes: Sequence[int], count: int
) -> tuple[BlockStructure, ...]:
    """Describe every block.

    Parameters
    ----------
    wiring : ForwardStructure
    homes : sequence of int
        Per op the number of its block.
    count : int
        Number of blocks.

    Returns
    -------
    tuple of Member
        Two structures are equal when the ops are (kinds, labels, attributes, shapes, dtypes), the
        wiring among them, the order of first reading of what comes from outside and what that
        depends on (which decides what their gradients need), and which outputs are read outside.
    """
    inside: list[list[int]] = [[] for _ in range(count)]
    for number, home in enumerate(homes):
        inside[home].append(number)
    leaving = {
        source
        for number, home in enumerate(homes)
        for source in wiring.inputs[number]
        if homes[source[0]] != home
    }
    blocks = []
    for numbers in inside:
        order = _order(wiring, numbers)
        blocks.append(BlockStructure(order=order, structure=_structure(wiring, order, leaving)))
    return tuple(blocks)


def _order(wiring: ForwardStructure, numbers: Sequence[int]) -> tuple[int, ...]:
    """Ops of the stream in order, each carried op right before its first reader, idle ones last."""
    inside = set(numbers)
    placed: dict[int, None] = {}
    stream = [number for number in numbers if not wiring.carried[number]]
    for root in (*stream, *numbers):
        pending = [root]
        while pending:
            number = pending[-1]
            waiting = [
                producer
                for producer, _ in wiring.inputs[number]
                if producer in inside and producer not in placed and producer != number
            ]
            if waiting:
                pending.extend(reversed(waiting))
            else:
                placed.setdefault(pending.pop())
    return tuple(placed)


def _structure(
    wiring: ForwardStructure, order: Sequence[int], leaving: set[tuple[int, int]]
) -> tuple[Hashable, ...]:
    places = {number: place for place, number in enumerate(order)}
    outside: dict[tuple[int, int], int] = {}
    facts: list[Hashable] = []
    for number in order:
        reads: list[Hashable] = []
        for source in wiring.inputs[number]:
            if source[0] in places:
                reads.append((places[source[0]], source[1]))
            else:
                entry = outside.setdefault(source, len(outside))
                reads.append(("outside", entry, *wiring.seen(source)))
        outputs = range(len(wiring.ops[number].outputs))
        read_outside = tuple((number, output) in leaving for output in outputs)
        facts.append((wiring.likeness[number], tuple(reads), read_outside))
    return tuple(facts)
