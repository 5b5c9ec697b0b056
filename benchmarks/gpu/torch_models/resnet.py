"""ResNet in PyTorch (version 1.5: a bottleneck's 3x3 convolution has the stride).

Batch norms keep no running statistics: a training step does not read them.

Legend: B batch, C channels, Y X rows and columns, S classes.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.torch_models.gpt import Sources

REDUCTION = 4


def convolved(inward: int, outward: int, side: int, stride: int = 1) -> nn.Conv2d:
    """Convolution that keeps the image's size, but for its stride."""
    return nn.Conv2d(inward, outward, side, stride, padding=side // 2, bias=False)


def normed(channels: int) -> nn.BatchNorm2d:
    """Batch norm by the statistics of the batch."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and a shortcut."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        inner = outward // REDUCTION
        self.conv_0, self.norm_0 = convolved(inward, inner, 1), normed(inner)
        self.conv_1, self.norm_1 = convolved(inner, inner, 3, stride), normed(inner)
        self.conv_2, self.norm_2 = convolved(inner, outward, 1), normed(outward)
        self.shortcut = self.shortcut_norm = None
        if stride != 1 or inward != outward:
            self.shortcut = convolved(inward, outward, 1, stride)
            self.shortcut_norm = normed(outward)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, Y, X] to more channels, and perhaps a smaller image."""
        y = functional.relu(self.norm_0(self.conv_0(x)))
        y = functional.relu(self.norm_1(self.conv_1(y)))
        y = self.norm_2(self.conv_2(y))
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return functional.relu(x + y)


class Basic(nn.Module):
    """3x3, 3x3, and a shortcut."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.conv_0, self.norm_0 = convolved(inward, outward, 3, stride), normed(outward)
        self.conv_1, self.norm_1 = convolved(outward, outward, 3), normed(outward)
        self.shortcut = self.shortcut_norm = None
        if stride != 1 or inward != outward:
            self.shortcut = convolved(inward, outward, 1, stride)
            self.shortcut_norm = normed(outward)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, Y, X] to more channels, and perhaps a smaller image."""
        y = functional.relu(self.norm_0(self.conv_0(x)))
        y = self.norm_1(self.conv_1(y))
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return functional.relu(x + y)


class ResNet(nn.Module):
    """Images to the mean loss. `config` is that of the zoo's family `resnet`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config.get("stem", 64)
        self.stem = nn.Conv2d(config.get("channels", 3), width, 7, 2, padding=3, bias=False)
        self.norm = normed(width)
        self.places: list[str] = []  # of the blocks, as the zoo names them
        block_of = Basic if config["block"] == "basic" else Bottleneck
        blocks: list[nn.Module] = []
        for stage, (depth, outward) in enumerate(
            zip(config["depths"], config["widths"], strict=True)
        ):
            for block in range(depth):
                stride = 2 if block == 0 and stage > 0 else 1
                blocks.append(block_of(width, outward, stride))
                self.places.append(f"stage.{stage}.{block}")
                width = outward
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, config.get("classes", 1000))

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        """[B, C, Y, X] and [B] to one number."""
        x = functional.relu(self.norm(self.stem(images)))
        x = functional.max_pool2d(x, 3, 2, padding=1)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x.mean((2, 3)))
        return functional.cross_entropy(logits.float(), classes)

    def sources(self) -> Sources:
        """Variables of the zoo that each part holds, by the part's path."""
        names_by_part: Sources = {
            "stem": ("stem.conv",),
            "norm": ("stem.norm",),
            "head": ("head.logits",),
        }
        for index, place in enumerate(self.places):
            for which in range(3):
                names_by_part[f"blocks.{index}.conv_{which}"] = (f"{place}.conv{which}",)
                names_by_part[f"blocks.{index}.norm_{which}"] = (f"{place}.norm{which}",)
            names_by_part[f"blocks.{index}.shortcut"] = (f"{place}.shortcut.conv",)
            names_by_part[f"blocks.{index}.shortcut_norm"] = (f"{place}.shortcut.norm",)
        return names_by_part
