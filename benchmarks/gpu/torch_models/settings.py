"""Settings of PyTorch: every change is tried on the best so far, and kept where it is faster.

So the competitor's settings are its best of all those in these tables, on the GPU at hand; each one
that was tried is in the results with its speed.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from millrace.models.spec import ModelSpec

LAYERS_WHOLE = 12  # a model of more is first compiled block by block, to be done in minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way of training.

    Parameters
    ----------
    numerics
        `autocast` (float32 weights, bf16 where autocast says so), `masters` (bf16 weights and
        activations, the optimizer on float32 copies) or `float32`. All have float32 weights,
        moments and updates, as ours do.
    compiled
        Mode of torch.compile; empty: eager.
    scope
        What is compiled: the `whole` model, or its `blocks` one by one.
    graph
        The whole step, update included, is captured as one CUDA graph.
    optimizer
        AdamW's implementation: `fused`, `foreach`, or `compiled` together with clipping.
    attention
        The only backend of scaled_dot_product_attention; empty: the library chooses.
    vocab_multiple
        Rows of the embedding are a multiple of this.
    grouped_experts
        Experts multiply the rows that they are sent, not all of their places.
    channels_last
        Images and weights of convolutions have their channels last.
    deterministic
        torch.use_deterministic_algorithms.
    """

    numerics: str = "autocast"
    compiled: str = ""
    scope: str = "whole"
    graph: bool = False
    optimizer: str = "fused"
    attention: str = ""
    vocab_multiple: int = 1
    grouped_experts: bool = False
    channels_last: bool = False
    deterministic: bool = False

    @property
    def eager(self) -> bool:
        """True if kernels are launched one by one."""
        return not self.compiled and not self.graph and self.optimizer != "compiled"


Change = tuple[str, dict[str, Any]]

VOCAB_MULTIPLE = 64  # rows that matrix units take at once (NVIDIA's matmul guide)
AUTOTUNED = "max-autotune-no-cudagraphs"

# This was fastest of token models on an H100, but for 1 % (2026-11-23): it comes first, since time
# may not allow more.
_FAST = {"compiled": "default", "numerics": "masters", "graph": True}
_COMPILED: tuple[Change, ...] = (
    ("torch.compile, bf16 weights with float32 masters, the step as a CUDA graph", _FAST),
    ("torch.compile, bf16 weights with float32 masters", _FAST | {"graph": False}),
)
_EAGER = {"compiled": "", "graph": False, "optimizer": "fused"}
_SLOWER: tuple[Change, ...] = (
    ("eager, bf16 weights with float32 masters", _EAGER | {"numerics": "masters"}),
    ("eager, autocast", _EAGER | {"numerics": "autocast"}),
    ("torch.compile, autocast", {"graph": False, "numerics": "autocast"}),
    ("clipping and AdamW compiled", {"optimizer": "compiled"}),
)
_SLOWEST: tuple[Change, ...] = (
    (f"torch.compile, {AUTOTUNED}", {"compiled": AUTOTUNED}),
    ("torch.compile, reduce-overhead", {"compiled": "reduce-overhead", "graph": False}),
    ("AdamW by foreach", {"optimizer": "foreach"}),
)
_TOKENS: tuple[Change, ...] = (
    *_COMPILED,
    ("the whole model compiled at once", {"scope": "whole"}),
    ("a vocabulary of whole 64s", {"vocab_multiple": VOCAB_MULTIPLE}),
    ("cuDNN attention", {"attention": "cudnn"}),
    ("flash attention", {"attention": "flash"}),
    *_SLOWER,
    *_SLOWEST,
    ("memory-efficient attention", {"attention": "efficient"}),
)
# A mixture of experts tries these.
_MIXTURE: tuple[Change, ...] = (
    *_COMPILED,
    ("grouped products of experts", {"grouped_experts": True}),
    *_TOKENS[len(_COMPILED) :],
)
_IMAGES: tuple[Change, ...] = (
    (f"{_COMPILED[0][0]}, channels last", _FAST | {"channels_last": True}),
    _COMPILED[1],
    ("no compiler, the step as a CUDA graph", {"compiled": "", "graph": True}),
    *_SLOWER,
    ("channels first", {"channels_last": False}),
    *_SLOWEST,
)
DETERMINISTIC: Change = ("deterministic", {"deterministic": True})


def changes_of(spec: ModelSpec) -> tuple[Change, ...]:
    """Changes that are tried of a model, in order; `DETERMINISTIC` comes behind."""
    if spec.family == "resnet":
        return _IMAGES
    changes = _MIXTURE if spec.config.get("experts") else _TOKENS
    even = int(str(spec.config["vocab"])) % VOCAB_MULTIPLE == 0
    return tuple(change for change in changes if not (even and "vocab_multiple" in change[1]))


def first_setting(spec: ModelSpec) -> Setting:
    """Setting that the first change is made to."""
    layers = spec.config.get("layers", 0)
    assert isinstance(layers, int)
    return Setting(scope="blocks" if layers > LAYERS_WHOLE else "whole")


def changed(setting: Setting, change: Change) -> Setting | None:
    """Setting with one change; None where it has that already."""
    changed_setting = replace(setting, **change[1])
    return None if change[1] and changed_setting == setting else changed_setting


def setting_fields(setting: Setting) -> dict[str, object]:
    """Fields of a setting, as results hold them."""
    return asdict(setting)
