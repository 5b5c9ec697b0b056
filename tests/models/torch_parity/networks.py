"""The papers' networks as PyTorch modules, whose parameters are named as the graph's variables."""

from itertools import pairwise
from typing import Any

from tests.extras import optional

torch = optional("torch")
nn = torch.nn
F = nn.functional


def norm(channels: int) -> Any:
    return nn.BatchNorm2d(channels)


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, **other: int) -> Any:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False, **other)


class ResidualUnit(nn.Module):
    """Deng et al.'s improved residual unit: norm, convolution, norm, PReLU, convolution, norm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm0, self.conv0, self.norm1 = norm(inputs), conv(inputs, outputs), norm(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv1, self.norm2 = conv(outputs, outputs, stride=stride), norm(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.ModuleDict(
                {"conv": conv(inputs, outputs, 1, stride), "norm": norm(outputs)}
            )

    def forward(self, x: Any) -> Any:
        shortcut = x
        if self.shortcut is not None:
            shortcut = self.shortcut["norm"](self.shortcut["conv"](x))
        x = self.prelu(self.norm1(self.conv0(self.norm0(x))))
        return self.norm2(self.conv1(x)) + shortcut


class IResNet(nn.Module):
    def __init__(
        self, depths: tuple[int, ...], widths: tuple[int, ...], image: int, features: int
    ) -> None:
        super().__init__()
        self.stem = nn.ModuleDict(
            {"conv": conv(3, widths[0]), "norm": norm(widths[0]), "prelu": nn.PReLU(widths[0])}
        )
        self.stage = nn.ModuleList()
        for depth, (inputs, outputs) in zip(depths, pairwise((widths[0], *widths)), strict=True):
            units = [ResidualUnit(inputs if unit == 0 else outputs, outputs, 1 if unit else 2)
                     for unit in range(depth)]  # fmt: skip
            self.stage.append(nn.Sequential(*units))
            image = (image - 1) // 2 + 1
        self.features = nn.ModuleDict(
            {
                "norm": norm(widths[-1]),
                "fc": nn.Linear(widths[-1] * image * image, features),
                "fc_norm": nn.BatchNorm1d(features),
            }
        )
        self.features["fc_norm"].weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        for part in self.stem.values():
            x = part(x)
        for stage in self.stage:
            x = stage(x)
        x = self.features["norm"](x).flatten(1)
        return self.features["fc_norm"](self.features["fc"](x))


class Rectified(nn.Module):
    """A convolution, its norm and a PReLU."""

    def __init__(
        self, inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = conv(inputs, outputs, size, stride, groups=groups)
        self.norm, self.prelu = norm(outputs), nn.PReLU(outputs)

    def forward(self, x: Any) -> Any:
        return self.prelu(self.norm(self.conv(x)))


class InvertedUnit(nn.Module):
    """Chen et al.'s bottleneck, that of MobileNetV2 with PReLU."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = expansion * inputs
        self.conv0 = Rectified(inputs, inner, 1)
        self.depthwise = Rectified(inner, inner, 3, stride, groups=inner)
        self.conv1, self.norm = conv(inner, outputs, 1), norm(outputs)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        out = self.norm(self.conv1(self.depthwise(self.conv0(x))))
        return out + x if self.adds else out


class MobileFaceNet(nn.Module):
    """Chen et al., arXiv 1804.07573, table 1, with channels divided by `thinner`."""

    def __init__(self, thinner: int, image: int, features: int) -> None:
        super().__init__()
        stem, last = 64 // thinner, 512 // thinner
        self.conv = Rectified(3, stem, 3, 2)
        self.depthwise = Rectified(stem, stem, groups=stem)
        rows = ((2, 64, 5, 2), (4, 128, 1, 2), (2, 128, 6, 1), (4, 128, 1, 2), (2, 128, 2, 1))
        inputs, units, sides = stem, [], image // 2
        for expansion, channels, count, stride in rows:
            outputs = channels // thinner
            for unit in range(count):
                units.append(InvertedUnit(inputs, outputs, expansion, 1 if unit else stride))
                inputs = outputs
            sides //= stride
        self.units = nn.ModuleList(units)
        self.last = Rectified(inputs, last, 1)
        self.gdconv, self.gdconv_norm = (
            nn.Conv2d(last, last, sides, groups=last, bias=False),
            norm(last),
        )
        self.fc, self.fc_norm = nn.Linear(last, features, bias=False), nn.BatchNorm1d(features)

    def forward(self, x: Any) -> Any:
        x = self.depthwise(self.conv(x))
        for unit in self.units:
            x = unit(x)
        x = self.gdconv_norm(self.gdconv(self.last(x))).flatten(1)
        return self.fc_norm(self.fc(x))


class ArcFace(nn.Module):
    """A network's features against a row of length one per identity; returns the summed loss."""

    def __init__(self, network: Any, features: int, identities: int) -> None:
        super().__init__()
        self.network = network
        self.classes = nn.Parameter(torch.empty(identities, features))

    def forward(self, images: Any, targets: Any) -> Any:
        cosine = F.normalize(self.network(images)) @ F.normalize(self.classes).T
        angle = torch.acos(cosine) + 0.5 * F.one_hot(targets, cosine.shape[1])
        return F.cross_entropy(64 * torch.cos(angle), targets, reduction="sum")


class WideDeep(nn.Module):
    """Cheng et al., arXiv 1606.07792, section 3, figure 4: one sum of a wide and a deep part."""

    def __init__(
        self, vocab: int, fields: int, numbers: int, embedding: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.wide = nn.Embedding(vocab, 1)
        self.table = nn.Embedding(vocab, embedding)
        sizes = (fields * embedding + numbers, *(hidden for _ in range(layers)))
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.head = nn.Linear(hidden, 1)

    def forward(self, ids: Any, numbers: Any, clicks: Any) -> Any:
        x = torch.cat([self.table(ids).flatten(1), numbers], 1)
        for layer in self.layers:
            x = F.relu(layer(x))
        logits = self.head(x)[:, 0] + self.wide(ids).sum((1, 2))
        return F.binary_cross_entropy_with_logits(logits, clicks, reduction="sum")


class Dlrm(torch.nn.Module):
    """DLRM with a product of each pair of vectors, summed logistic losses."""

    def __init__(self, rows: int, fields: int, numbers: int, bottom: Any, top: Any) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(rows, bottom[-1])
        self.bottom = torch.nn.ModuleList(
            torch.nn.Linear(*sizes) for sizes in pairwise((numbers, *bottom))
        )
        products = bottom[-1] + fields * (fields + 1) // 2
        self.top = torch.nn.ModuleList(
            torch.nn.Linear(*sizes) for sizes in pairwise((products, *top))
        )
        self.head = torch.nn.Linear(top[-1], 1)

    def forward(self, ids: Any, numbers: Any, clicks: Any) -> Any:
        for layer in self.bottom:
            numbers = layer(numbers).relu()
        vectors = torch.cat([numbers[:, None], self.table(ids)], dim=1)
        below, before = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
        x = torch.cat([numbers, (vectors @ vectors.mT)[:, below, before]], dim=1)
        for layer in self.top:
            x = layer(x).relu()
        logits = self.head(x)[:, 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, clicks, reduction="sum")
