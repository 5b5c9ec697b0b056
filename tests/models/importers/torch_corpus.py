"""Small modules, each of which an import gets exactly right or refuses in the words given here.

This file: writes in place, constants, gradients that stop, parameters and buffers.
"""

from collections.abc import Callable
from typing import Any

from tests.extras import optional

torch = optional("torch")
F = torch.nn.functional
nn = torch.nn


class Written(nn.Module):  # type: ignore[misc]
    """A module of named parts, with a function as its `forward`."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._written = forward
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self._written(self, x)


class TwoInputs(Written):
    """A module like `Written`, with two inputs."""

    def forward(self, left: Any, right: Any) -> Any:
        return self._written(self, left, right)


Case = tuple[Any, Any, dict[str, Any]]
Build = Callable[[], Case]
EXACT: dict[str, Build] = {}
REFUSED: dict[str, tuple[Build, str]] = {}

FEATURES = (4, 6)
TOKENS = (3, 8)


def ids(*shape: int) -> Any:
    return torch.zeros(shape or TOKENS, dtype=torch.long)


def frozen(module: Any) -> Any:
    return module.requires_grad_(False)


def case(
    name: str,
    build: Callable[[], Any],
    inputs: Callable[[], Any] = lambda: torch.zeros(FEATURES),
    *,
    refused: str = "",
    **options: Any,
) -> None:
    """Add a module; `refused` is what a refusal says."""

    def build_case() -> Case:
        return build(), inputs(), options

    assert name not in EXACT.keys() | REFUSED.keys(), name
    if refused:
        REFUSED[name] = build_case, refused
    else:
        EXACT[name] = build_case


def on_features(forward: Callable[..., Any], **parts: Any) -> Callable[[], Any]:
    """A module with a linear layer before and one behind the function."""

    def forward_between(self: Any, x: Any) -> Any:
        return self.leave(forward(self, self.enter(x)))

    return lambda: Written(forward_between, enter=nn.Linear(6, 6), leave=nn.Linear(6, 3), **parts)


def written(name: str, write: Callable[[Any], None], *, refused: str = "", **parts: Any) -> None:
    """A case in which something is written into a hidden state in place."""

    def forward(self: Any, h: Any) -> Any:
        h = h.clone()
        write(h)
        return h

    case(name, on_features(forward, **parts), refused=refused)


def changed(name: str, change: Callable[[Any], Any], *, refused: str = "") -> None:
    """A case in which a hidden state is made into another of six features."""
    case(name, on_features(lambda self, h: change(h)), refused=refused)


def put(h: Any, places: Any, value: Any) -> None:
    h[places] = value


# Writes into slices, views and places of data.
written("a slice set to zero", lambda h: put(h, (slice(None), slice(0, 2)), 0.0))
written("a slice in the middle set", lambda h: put(h, (slice(None), slice(2, 4)), 1.5))
written("a column set to another", lambda h: put(h, (slice(None), 1), h[:, 4].clone()))
written("a column set to one that was written", lambda h: put(h, (..., 1), h[:, 0] * 2))
written("all of it set", lambda h: put(h, slice(None), h * 3.0))
written("a slice added to", lambda h: h[:, 1:3].add_(2.0))
written("a slice scaled", lambda h: h[..., 3:].mul_(0.5))
written("every second place scaled", lambda h: h[..., ::2].mul_(2.0))
written("every third place set", lambda h: put(h, (..., slice(1, None, 3)), 0.25))
written("a view added to", lambda h: h.view(-1, 2, 3).add_(1.0))
written("part of a view set", lambda h: put(h.view(-1, 2, 3), (slice(None), 1), 0.0))
written("a view of a view", lambda h: h.view(-1, 2, 3)[:, :, 1:].mul_(3.0))
written("a transposed view", lambda h: put(h.view(-1, 2, 3).transpose(1, 2), (..., 0), 0.5))
written("an unsqueezed view", lambda h: h.unsqueeze(1).mul_(1.5))
written("a narrow part of it", lambda h: h.narrow(1, 2, 3).mul_(2.0))
written("listed places set", lambda h: put(h, (slice(None), torch.tensor([0, 3, 4])), 0.5))
written("masked places set", lambda h: put(h, (..., torch.arange(6) % 2 == 0), 0.0))
written("filled with zero", lambda h: h[:, 2:].zero_())
written("filled", lambda h: h[:, :1].fill_(7.0))
written("copied into", lambda h: h[:, :3].copy_(h[:, 3:] + 1))
written("a chain in place", lambda h: h.mul_(2).add_(1).clamp_(min=-1.0).relu_())
written("masked and filled", lambda h: h.masked_fill_(torch.arange(6) > 3, -1.0))
written("one sample set", lambda h: put(h, 0, 0.0), refused="across samples")
written("places of the data set", lambda h: put(h, h > 0, 0.0))
written(
    "data at listed places",
    lambda h: put(h, (slice(None), torch.tensor([0, 3])), h[:, :2]),
    refused="depends on the inputs",
)
written("every fourth of six", lambda h: h[..., ::4].mul_(2.0), refused="every 4th")
written(
    "added at listed places",
    lambda h: h.index_add_(1, torch.tensor([0]), h[:, :1]),
    refused="index_add",
)
written(
    "a diagonal", lambda h: h.view(-1, 2, 3).diagonal(dim1=1, dim2=2).mul_(2.0), refused="diagonal"
)


# Writes into constants and new tensors.
def new(name: str, make: Callable[[Any], Any], *, refused: str = "") -> None:
    changed(name, lambda h: h + make(h), refused=refused)


def filled(shape: tuple[int, ...], write: Callable[[Any], None]) -> Any:
    tensor = torch.zeros(shape)
    write(tensor)
    return tensor


new("a constant written by slice", lambda h: filled((6,), lambda m: put(m, slice(0, 3), 3.0)))
new("a constant written by steps", lambda h: filled((6,), lambda m: put(m, slice(0, None, 2), 3.0)))
new("a constant written by view", lambda h: filled((6,), lambda m: m.view(2, 3)[1].add_(2.0)))
new(
    "a constant written by list",
    lambda h: filled((6,), lambda m: put(m, torch.tensor([5, 0]), 1.0)),
)
new("a triangle", lambda h: torch.ones(6, 6).tril().sum(0) * 0.1)
new(
    "data into a constant",
    lambda h: filled((len(h), 6), lambda m: put(m, (..., slice(2, 4)), h[:, 4:])),
)
new(
    "data into a constant, twice",
    lambda h: filled(
        (len(h), 6), lambda m: (put(m, (..., 0), h[:, 5]), put(m, (..., slice(1, 6)), h[:, :5]))
    ),
)
new("random values", torch.randn_like, refused="random")


def sinusoids(self: Any, x: Any) -> Any:
    angles = torch.arange(8.0)[:, None] * torch.exp(-torch.arange(0, 6, 2) / 6)
    table = torch.zeros(8, 6)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()
    return self.head(self.table(x) + table)


case(
    "sinusoids written by steps",
    lambda: Written(sinusoids, table=nn.Embedding(9, 6), head=nn.Linear(6, 9)),
    ids,
)


def shifted_right(self: Any, x: Any) -> Any:
    before = x.new_zeros(x.shape)
    before[:, 1:] = x[:, :-1].clone()
    before[:, 0] = 2
    return self.head(self.table(before))


case(
    "ids shifted right",
    lambda: Written(shifted_right, table=nn.Embedding(9, 6), head=nn.Linear(6, 9)),
    ids,
)
case(
    "ids where there are some",
    lambda: Written(
        lambda self, x: self.head(self.table(x.masked_fill(x == 0, 1))),
        table=nn.Embedding(9, 6),
        head=nn.Linear(6, 9),
    ),
    ids,
)

# Gradients that stop, and what passes the tracer.
changed("a detached term", lambda h: h + h.detach(), refused="stops a gradient")
changed(
    "a written detached view", lambda h: (h.detach().mul_(2.0), h)[1], refused="stops a gradient"
)
changed("data of a value", lambda h: (h.data.mul_(2.0), h)[1], refused="`.data`")


def without(self: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = self.enter(x)
    return self.leave(self.enter(x) * scale)


def without_all(self: Any, x: Any) -> Any:
    with torch.no_grad():
        return self.leave(self.enter(x))


def without_constants(self: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = torch.arange(6.0).exp() + x.sum(-1, keepdim=True)
    return self.leave(self.enter(x) * scale)


def ends() -> dict[str, Any]:
    return {"enter": nn.Linear(6, 6), "leave": nn.Linear(6, 3)}


case("a part without gradients", lambda: Written(without, **ends()), refused="stops a gradient")
case("all without gradients", lambda: Written(without_all, **ends()), refused="stops a gradient")
case("inputs without gradients", lambda: Written(without_constants, **ends()))
case("the input written", lambda: Written(lambda self, x: self.leave(x.mul_(2.0)), **ends()))

# Parameters: frozen, tied, shared, of no dim, of one place.
case("a frozen part", lambda: nn.Sequential(frozen(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 3)))
case(
    "a frozen part behind",
    lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), frozen(nn.Linear(6, 3))),
)
case(
    "a frozen part without gradients",
    lambda: Written(without, **(ends() | {"enter": frozen(nn.Linear(6, 6))})),
)


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen layer with a trained correction of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = frozen(nn.Linear(6, 6))
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.base(x).detach() + self.up(self.down(x)))


case("adapters on a frozen layer, detached", Adapted)
case("everything frozen", lambda: frozen(nn.Linear(6, 3)), refused="no parameter")
case(
    "a layer used twice",
    on_features(lambda self, h: self.same(F.relu(self.same(h))), same=nn.Linear(6, 6)),
)


def tied() -> Any:
    module = Written(
        lambda self, x: self.head(self.table(x)),
        table=nn.Embedding(9, 6),
        head=nn.Linear(6, 9, bias=False),
    )
    module.head.weight = module.table.weight
    return module


case("a tied head", tied, ids)
case(
    "a number that is trained",
    on_features(
        lambda self, h: h * self.scale + self.shift,
        scale=nn.Parameter(torch.tensor(1.5)),
        shift=nn.Parameter(torch.tensor([0.5])),
    ),
)
case(
    "a parameter sliced",
    on_features(lambda self, h: h * self.long[2:8], long=nn.Parameter(torch.arange(10.0) / 5)),
)
case(
    "a parameter written into",
    on_features(
        lambda self, h: (put(copied := self.long * 1, slice(0, 2), 0.0), h * copied)[1],
        long=nn.Parameter(torch.arange(6.0) / 5),
    ),
)
case(
    "a parameter changed",
    lambda: Written(
        lambda self, x: (self.leave.bias.data.mul_(2.0), self.leave(self.enter(x)))[1], **ends()
    ),
    refused="`.data`",
)
case("parameters left out", lambda: Written(lambda self, x: self.leave(x), **ends()))

# Buffers.
case("a buffer", on_features(lambda self, h: h * self.table, table=torch.arange(6.0)))
case(
    "a buffer of ids",
    lambda: Written(
        lambda self, x: self.head(self.table(x) + self.places(self.order)),
        table=nn.Embedding(9, 6),
        places=nn.Embedding(8, 6),
        head=nn.Linear(6, 9),
        order=torch.arange(8).flip(0),
    ),
    ids,
)
case(
    "a buffer that counts",
    on_features(lambda self, h: (self.steps.add_(1.0), h * self.steps)[1], steps=torch.ones(1)),
    refused="another one after every step",
)
case(
    "a buffer that is kept up, unread",
    on_features(lambda self, h: (self.seen.copy_(h.detach().mean(0)), h)[1], seen=torch.zeros(6)),
)
case("batch norm", lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
case(
    "batch norm, evaluating",
    lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval(),
)
case(
    "batch norm without statistics",
    lambda: nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False, track_running_stats=False), nn.Linear(5, 3)
    ),
)
