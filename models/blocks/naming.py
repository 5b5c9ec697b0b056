"""Naming of ops and tensors of blocks: equal blocks, equal names behind the block's own."""

from collections.abc import Mapping, Sequence

import msgspec

from millrace.models.blocks.structural_equality import NAMING_ATTRIBUTES
from millrace.models.graph import Graph, Op
from millrace.models.ops import op_kind


def inner_names(copies: Sequence[Sequence[Op]]) -> list[str]:
    """Return one name per place for the ops of equal blocks.

    Parameters
    ----------
    copies : sequence of sequences of Op
        The ops of every block, those of one place at the same index.

    Returns
    -------
    list of str
        What the old names of a place have in common at their end (`3.attn.query` and
        `4.attn.query`: `attn.query`), or, where that does not tell all ops and outputs apart, kind
        and place (`matmul.7`) for all.
    """
    names = [_common_end([_old(op) for op in alike]) for alike in zip(*copies, strict=True)]
    taken = [
        output for op, name in zip(copies[0], names, strict=True) for output in outputs_of(op, name)
    ]
    if all(names) and len(set(taken)) == len(taken):
        return names
    return [f"{op.kind}.{place}" for place, op in enumerate(copies[0])]


def outputs_of(op: Op, name: str) -> tuple[str, ...]:
    """Names of the outputs of an op that is called `name`, as a builder gives them."""
    return name, *(f"{name}.{suffix}" for suffix in op_kind(op.kind).extra_outputs)


def _old(op: Op) -> str:
    return op.name.removeprefix(f"{op.block}.")


def _common_end(names: Sequence[str]) -> str:
    parts = [name.split(".")[::-1] for name in names]
    common: list[str] = []
    for alike in zip(*parts, strict=False):
        if len(set(alike)) > 1:
            break
        common.append(alike[0])
    return ".".join(reversed(common))


def renamed(
    graph: Graph,
    names: Mapping[str, str],
    homes: Mapping[str, str],
    templates: Mapping[str, str],
) -> tuple[Graph, dict[str, str]]:
    """Return the graph with ops renamed and moved to blocks, and the tensors' new names.

    Parameters
    ----------
    graph : Graph
    names : mapping
        Old to new name of forward ops; a tensor is named after its op. What is named after one of
        them (`<name>.grad_input`) follows.
    homes : mapping
        Old name of an op to its new block; an op that is not in it stays.
    templates : mapping
        Block to template, in the order of the blocks.
    """
    after = dict(names)
    for op in graph.ops:
        if op.name in names:
            after.update(zip(op.outputs, outputs_of(op, names[op.name]), strict=True))

    def new(name: str) -> str:
        stem = name
        while stem not in after:
            stem, dot, _ = stem.rpartition(".")
            if not dot:
                return name
        return after[stem] + name.removeprefix(stem)

    tensors = {tensor.name: new(tensor.name) for tensor in graph.tensors}
    ops = tuple(
        msgspec.structs.replace(
            op,
            name=new(op.name),
            inputs=tuple(tensors[name] for name in op.inputs),
            outputs=tuple(tensors[name] for name in op.outputs),
            block=homes.get(op.name, op.block),
            attributes={
                key: new(str(value)) if key in NAMING_ATTRIBUTES else value
                for key, value in op.attributes.items()
            },
        )
        for op in graph.ops
    )
    renamed_graph = msgspec.structs.replace(
        graph,
        ops=ops,
        tensors=tuple(msgspec.structs.replace(t, name=tensors[t.name]) for t in graph.tensors),
        blocks=tuple(templates),
        templates=dict(templates),
    )
    return renamed_graph.validate(), tensors
