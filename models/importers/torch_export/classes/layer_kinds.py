"""Layer kinds: which layers of a module compute alike, and the module with few of each kind.

Layers are of one kind where their parts, the shapes of their parameters, the values of their small
buffers and their plain attributes are equal, but for attributes that count the layers. A shortened
module has the first layers of each kind, renumbered, and what is said per layer for these alone.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.models.importers.torch_export.tracing import has_values

EACH = 2  # layers of a kind that are traced: the second shows that the first stands for others
_COMPARED_VALUES = 2**20  # of a buffer

Place = tuple[str, str]  # of an attribute: path of the part in its layer, and name


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerList:
    """A list of layers and what is traced of it.

    Attributes
    ----------
    path : str
        Of the list in its module.
    kinds : tuple of int
        Kind of each layer.
    traced : tuple of int
        Layers that the shortened module has, in order.
    """

    path: str
    kinds: tuple[int, ...]
    traced: tuple[int, ...]

    def stand_in(self, layer: int) -> int:
        """Place in the shortened list of the layer itself, or else of the last of its kind."""
        if layer in self.traced:
            return self.traced.index(layer)
        alike = [
            place
            for place, other in enumerate(self.traced)
            if self.kinds[other] == self.kinds[layer]
        ]
        return alike[-1]


def shorten(module: Any) -> tuple[LayerList, ...]:
    """Shorten every list of layers of a module in place, and return what was left of each.

    Parameters
    ----------
    module : torch.nn.Module
        Its configurations are changed too.

    Returns
    -------
    tuple of LayerList
        Those that are shorter now.
    """
    shortened: list[LayerList] = []
    for path, layers in _layer_lists(module):
        counters = _counters(layers)
        numbers: dict[Hashable, int] = {}
        kinds = tuple(numbers.setdefault(_facts(layer, counters), len(numbers)) for layer in layers)
        traced = tuple(n for n, kind in enumerate(kinds) if kinds[:n].count(kind) < EACH)
        if len(traced) < len(kinds):
            _restrict(module, path, traced, counters)
            shortened.append(LayerList(path=path, kinds=kinds, traced=traced))
    return tuple(shortened)


def _layer_lists(module: Any) -> list[tuple[str, Any]]:
    """Lists of more layers than are traced, but those inside the layers of another."""
    import torch

    lists: list[tuple[str, Any]] = []
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer, _ in lists)
        if isinstance(part, torch.nn.ModuleList) and len(part) > EACH and not inside:
            lists.append((path, part))
    return lists


def _plain(layer: Any) -> Iterator[tuple[Place, Any]]:
    """Attributes of a layer's parts that are numbers, words, or lists of them."""
    for path, part in layer.named_modules():
        for name, value in vars(part).items():
            if not name.startswith("_") and isinstance(
                value, bool | int | float | str | tuple | list | dict | type(None)
            ):
                yield (path, name), value


def _counters(layers: Sequence[Any]) -> dict[Place, int]:
    """Attributes that are the number of their layer plus a constant, with the constant."""
    seen: dict[Place, list[tuple[int, int]]] = {}
    for number, layer in enumerate(layers):
        for place, value in _plain(layer):
            if type(value) is int:
                seen.setdefault(place, []).append((number, value - number))
    return {
        place: rows[0][1]
        for place, rows in seen.items()
        if len(rows) > 1 and len({offset for _, offset in rows}) == 1
    }


def _facts(layer: Any, counters: dict[Place, int]) -> Hashable:
    """Everything about a layer that its computation may follow from, but its number."""
    facts: list[Hashable] = [(path, type(part)) for path, part in layer.named_modules()]
    facts += [
        (place, repr(value)) for place, value in sorted(_plain(layer)) if place not in counters
    ]
    for name, tensor in layer.named_parameters(remove_duplicate=False):
        facts.append((name, tuple(tensor.shape), tensor.requires_grad))
    for name, tensor in layer.named_buffers(remove_duplicate=False):
        values = b""
        if has_values(tensor) and tensor.numel() <= _COMPARED_VALUES:
            values = tensor.detach().double().numpy().tobytes()
        facts.append((name, tuple(tensor.shape), values))
    return tuple(facts)


def _restrict(module: Any, path: str, traced: Sequence[int], counters: dict[Place, int]) -> None:
    """Leave the traced layers in a list, renumbered, and of what is said per layer theirs."""
    import torch

    layers = module.get_submodule(path)
    depth, parent = len(layers), module.get_submodule(path.rpartition(".")[0])
    setattr(parent, path.rpartition(".")[2], torch.nn.ModuleList([layers[n] for n in traced]))
    for number, layer in enumerate(layers[n] for n in traced):
        parts = dict(layer.named_modules())
        for (part, name), offset in counters.items():
            if part in parts and hasattr(parts[part], name):
                setattr(parts[part], name, number + offset)
    owners = {id(part): part for part in module.modules()}
    owners |= {id(part.config): part.config for part in module.modules() if hasattr(part, "config")}
    for owner in owners.values():
        for name, value in list(vars(owner).items()):
            if isinstance(value, list | tuple) and len(value) == depth:
                vars(owner)[name] = type(value)(value[n] for n in traced)
            elif type(value) is int and value == depth and _counts_layers(name):
                vars(owner)[name] = len(traced)


def _counts_layers(name: str) -> bool:
    return "layer" in name or "block" in name
