"""Suite of plans that are predicted and run: models of every family, each split in many ways.

Plans of one model that run on the same number of ranks are ranked against each other.
"""

from dataclasses import dataclass

Pins = dict[str, int | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteModel:
    """A model of the suite: samples of a step, tokens of a sample, and the pins of its plans."""

    name: str
    global_batch: int
    seq_len: int | None
    plans: tuple[Pins, ...]  # on two ranks
    others: dict[int, tuple[Pins, ...]]  # on other numbers of ranks


_LAYERED: tuple[Pins, ...] = (
    {"dp": 2, "zero": 0},
    {"tp": 2},
    {"pp": 2, "schedule": "1f1b", "micro_batch": 4},
    {"pp": 2, "schedule": "gpipe", "micro_batch": 4},
    {"pp": 2, "schedule": "interleaved-1f1b", "interleave": 2, "micro_batch": 4},
    {"dp": 2, "zero": 3},
    {"dp": 2, "recompute": "full"},
    {"dp": 2, "micro_batch": 2},
    {"tp": 2, "sequence_parallel": True},
    {"pp": 2, "schedule": "zb-h1", "micro_batch": 4},
)
_ON_OTHERS: dict[int, tuple[Pins, ...]] = {1: ({},), 4: ({"dp": 2, "tp": 2}, {"dp": 2, "pp": 2})}
_OF_IMAGES: tuple[Pins, ...] = (
    {"dp": 2, "zero": 0},
    {"dp": 2, "zero": 1},
    {"dp": 2, "zero": 3},
    {"dp": 2, "recompute": "full"},
    {"dp": 2, "micro_batch": 8},
    {"tp": 2},
    {"pp": 2, "schedule": "1f1b", "micro_batch": 8},
    {"pp": 2, "schedule": "gpipe", "micro_batch": 8},
    {"pp": 2, "schedule": "1f1b", "micro_batch": 16},
)
SUITE: tuple[SuiteModel, ...] = (
    SuiteModel(name="gpt-demo", global_batch=16, seq_len=128, plans=_LAYERED, others=_ON_OTHERS),
    SuiteModel(name="llama-demo", global_batch=16, seq_len=128, plans=_LAYERED, others=_ON_OTHERS),
    SuiteModel(name="bert-demo", global_batch=32, seq_len=128, plans=_LAYERED, others=_ON_OTHERS),
    SuiteModel(
        name="mixtral-demo",
        global_batch=16,
        seq_len=128,
        plans=(*_LAYERED[:8], {"dp": 2, "ep": 2}, {"dp": 2, "ep": 2, "zero": 1}),
        others={1: ({},), 4: ({"dp": 2, "ep": 2, "pp": 2},)},
    ),
    SuiteModel(
        name="resnet-demo", global_batch=128, seq_len=None, plans=_OF_IMAGES, others={1: ({},)}
    ),
    SuiteModel(
        name="mlp",
        global_batch=4096,
        seq_len=None,
        plans=tuple(
            pins | ({"micro_batch": 32 * int(pins["micro_batch"])} if "micro_batch" in pins else {})
            for pins in _OF_IMAGES
        ),
        others={1: ({},), 4: ({"dp": 2, "tp": 2},)},
    ),
    SuiteModel(
        name="wide-deep-demo",
        global_batch=4096,
        seq_len=None,
        plans=({"dp": 2}, {"tp": 2}, {"dp": 2, "zero": 3}, {"dp": 2, "micro_batch": 512}),
        others={1: ({},)},
    ),
    SuiteModel(
        name="arcface-demo",
        global_batch=256,
        seq_len=None,
        plans=({"dp": 2}, {"tp": 2}, {"dp": 2, "zero": 3}, {"dp": 2, "micro_batch": 32}),
        others={1: ({},), 4: ({"dp": 2, "tp": 2},)},
    ),
)
