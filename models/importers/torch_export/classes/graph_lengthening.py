"""Graph lengthening: layers that were not traced are copies of the last traced layer of their kind.

An op belongs to the layer in whose module it stands; what is made of no layer, and constants, stand
before all layers, and what reads layers from outside stands behind them. The layers must be a
chain: each hands one tensor to the next. Where two layers of a kind were traced they are compared
op by op, and one whose like differs, or reads something else from outside, may not be copied.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from millrace.models.blocks.structural_equality import (
    NAMING_ATTRIBUTES,
    facts_of_op,
    facts_of_tensor,
)
from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Op, Phase, Tensor
from millrace.models.importers.torch_export.classes.layer_kinds import LayerList
from millrace.models.importers.torch_export.sources import ParameterSource
from millrace.models.importers.torch_export.writing import BLOCK

Sources = dict[str, ParameterSource]
Copied = tuple[Op, "_LayerCopy | None"]
BEFORE, BEHIND = -1, -2  # places of ops of no layer


class NotAChainError(ModelError):
    """Layers that cannot be copied; the message says why."""


def lengthened(graph: Graph, sources: Sources, layers: LayerList) -> tuple[Graph, Sources]:
    """Graph with all layers of a list, made of one with the traced layers.

    Parameters
    ----------
    graph : Graph
        Forward graph of the shortened module, not yet cut into blocks.
    sources : dict
        Parameter of each variable, by its name in the shortened module.
    layers : LayerList
        The list that was shortened.

    Returns
    -------
    tuple of Graph and dict
        The parameters go by their names in the whole module.

    Raises
    ------
    NotAChainError
        A layer hands more than one tensor on, or none, or two layers of a kind differ.
    """
    chain = _LayerChain.of(graph, layers)
    chain.check()
    copies = [_LayerCopy(chain, number) for number in range(len(layers.kinds))]
    for copy, following in pairwise(copies):
        following.received = copy.renamed(chain.handed[copy.place])
    last = _LayerCopy(chain, len(layers.kinds) - 1)
    handed = {chain.handed[-1]: last.renamed(chain.handed[last.place])}
    outside = {BEFORE: list[Copied](), BEHIND: list[Copied]()}
    for op in graph.ops:
        if chain.places[op.name] < 0:
            outside[chain.places[op.name]].append((op, None))
    inside = [(op, copy) for copy in copies for op in chain.members[copy.place]]
    ops: list[Op] = []
    tensors: list[Tensor] = []
    longer: Sources = {}
    for op, layer in (*outside[BEFORE], *inside, *outside[BEHIND]):
        rename = chain.numbered if layer is None else layer.renamed
        read = handed if layer is None else {chain.received(layer.place): layer.received}
        ops.append(_renamed(op, rename, read))
        tensors += [
            msgspec.structs.replace(graph.tensor(old), name=new)
            for old, new in zip(op.outputs, ops[-1].outputs, strict=True)
        ]
        if op.outputs[0] in sources:
            source = sources[op.outputs[0]]
            fqn = rename(f"{BLOCK}.{source.fqn}").removeprefix(f"{BLOCK}.")
            longer[ops[-1].outputs[0]] = replace(source, fqn=fqn)
    ops.sort(key=lambda op: op.phase is not Phase.BEGIN)
    return msgspec.structs.replace(graph, ops=tuple(ops), tensors=tuple(tensors)), longer


def _renamed(op: Op, rename: Callable[[str], str], read: Mapping[str, str]) -> Op:
    """Op under another name, which reads some tensors instead of others."""
    return msgspec.structs.replace(
        op,
        name=rename(op.name),
        inputs=tuple(read.get(name) or rename(name) for name in op.inputs),
        outputs=tuple(map(rename, op.outputs)),
        attributes={
            key: rename(str(value)) if key in NAMING_ATTRIBUTES else value
            for key, value in op.attributes.items()
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerChain:
    """Traced layers as a chain: the ops of each, and the tensor that it hands on."""

    graph: Graph
    layers: LayerList
    places: Mapping[str, int]  # of a tensor: its layer in the shortened list, BEFORE or BEHIND
    members: Sequence[Sequence[Op]]
    handed: Sequence[str]

    @classmethod
    def of(cls, graph: Graph, layers: LayerList) -> "_LayerChain":
        """Chain of the layers of a graph, each of which reads the one before it alone."""
        places = _places(graph, layers)
        last = len(layers.traced) - 1
        members: list[list[Op]] = [[] for _ in layers.traced]
        handed: list[dict[str, None]] = [{} for _ in layers.traced]
        for op in graph.ops:
            place = places[op.name]
            if place >= 0:
                members[place].append(op)
            for name in op.inputs:
                maker = places[name]
                if maker < 0 or maker == place:
                    continue
                handed[maker][name] = None
                if place != maker + 1 and (place, maker) != (BEHIND, last):
                    raise NotAChainError(f"`{op.name}` reads `{name}` past the layers between")
        for number, names in zip(layers.traced, handed, strict=True):
            if len(names) != 1:
                raise NotAChainError(
                    f"layer {number} of `{layers.path}` hands on {len(names)} tensors"
                )
        return cls(
            graph=graph,
            layers=layers,
            places=places,
            members=members,
            handed=[next(iter(names)) for names in handed],
        )

    def check(self) -> None:
        """Compare the two traced layers of each kind that others are copied from."""
        layers = self.layers
        for number in set(range(len(layers.kinds))) - set(layers.traced):
            first, second = (
                place
                for place, other in enumerate(layers.traced)
                if layers.kinds[other] == layers.kinds[number]
            )
            if self._structure(first) != self._structure(second):
                raise NotAChainError(
                    f"layers {layers.traced[first]} and {layers.traced[second]} of "
                    f"`{layers.path}` have equal parts and other calls"
                )

    def received(self, place: int) -> str:
        """Tensor that a layer is handed; the first layer's where that can be told."""
        if place:
            return self.handed[place - 1]
        kinds = [self.layers.kinds[number] for number in self.layers.traced]
        if kinds.count(kinds[0]) == 1:
            return ""
        alike = kinds.index(kinds[0], 1)
        pairs = zip(self.members[0], self.members[alike], strict=False)
        reads = (zip(op.inputs, other.inputs, strict=False) for op, other in pairs)
        return next(
            (name for row in reads for name, like in row if like == self.handed[alike - 1]), ""
        )

    def numbered(self, name: str) -> str:
        """Name of an op or parameter as it is in the whole module, by the number of its layer."""
        place = _number(name, self.layers)
        if place is None:
            return name
        return _moved(self.layers.path, place, self.layers.traced[place], name)

    def _structure(self, place: int) -> list[object]:
        """Facts of each op of a layer and of what it reads and hands on."""
        numbers = {
            name: (number, output)
            for number, op in enumerate(self.members[place])
            for output, name in enumerate(op.outputs)
        }
        numbers[self.received(place)] = (-1, 0)
        facts: list[object] = [numbers[self.handed[place]]]
        for op in self.members[place]:
            reads = tuple(numbers.get(name, name) for name in op.inputs)
            outputs = tuple(facts_of_tensor(self.graph.tensor(name)) for name in op.outputs)
            facts.append((facts_of_op(op), reads, outputs))
        return facts


@dataclass(slots=True)
class _LayerCopy:
    """Layer of the whole module as a copy of a traced one.

    `received` is the tensor that the layer before hands on; the first layer's is not renamed.
    """

    chain: _LayerChain
    number: int
    received: str = ""

    @property
    def place(self) -> int:
        """Place of the traced layer."""
        return self.chain.layers.stand_in(self.number)

    def renamed(self, name: str) -> str:
        """Name of what the traced layer has as it is in this layer."""
        if self.chain.places.get(name, self.place) < 0:
            return self.chain.numbered(name)
        return _moved(self.chain.layers.path, self.place, self.number, name)


def _moved(path: str, place: int, number: int, name: str) -> str:
    """Name of what a layer has, with another number of the layer."""
    return name.replace(f".{path}.{place}.", f".{path}.{number}.")


def _number(name: str, layers: LayerList) -> int | None:
    """Place of the traced layer in whose module an op or parameter stands."""
    prefix = f"{BLOCK}.{layers.path}."
    number = name.removeprefix(prefix).partition(".")[0]
    return int(number) if name.startswith(prefix) and number.isdigit() else None


def _places(graph: Graph, layers: LayerList) -> dict[str, int]:
    """Place of each op and tensor: its layer's, or before or behind them all."""
    sharing: dict[str, set[int | None]] = {}
    for op in graph.ops:
        for name in op.inputs:
            sharing.setdefault(name, set()).add(_number(op.name, layers))
    wanted: set[str] = set()  # of layers
    for op in reversed(graph.ops):
        if _number(op.name, layers) is not None or not wanted.isdisjoint(op.outputs):
            wanted.update(op.inputs)
    places: dict[str, int] = {}
    begun = False  # a layer
    for op in graph.ops:
        number = _number(op.name, layers)
        begun = begun or (number is not None and op.phase is not Phase.BEGIN)
        sources = [places[name] for name in op.inputs]
        shared = op.kind == "variable" and len(sharing.get(op.outputs[0], ())) > 1
        if op.kind == "cast":  # a constant is one for all layers that need its values
            shared = graph.makers[op.inputs[0]].kind == "constant"
        if number is None or shared or op.kind == "constant":
            early = not begun or not wanted.isdisjoint(op.outputs)
            early = early and all(place == BEFORE for place in sources)
            number = BEFORE if early else BEHIND
        places |= dict.fromkeys((op.name, *op.outputs), number)
    return places
