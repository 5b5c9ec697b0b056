"""The benchmark of training without a GPU: small models on the emulated device.

It shows that everything runs and writes down what it finds; its times say nothing.
"""

import msgspec

from benchmarks.gpu.step_times import Effort
from millrace.models.spec import ModelSpec
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.small_models import small

BATCH = 4
BRIEF = Effort(
    losses=4,
    warm_up=1,
    eager_steps=2,
    steps=3,
    steps_min=2,
    opened=lambda deterministic: (EmulatedDevice(), None),
)
SMALL = {"gpt": "gpt", "resnet": "resnet", "decoder": "llama"}


def emulated(spec: ModelSpec) -> ModelSpec:
    """Small model of the family of one that is trained on a GPU."""
    name = "mixtral" if spec.config.get("experts") else SMALL[spec.family]
    model = small(name, spec.precision)
    if spec.family != "gpt":
        return model
    return msgspec.structs.replace(model, config=dict(model.config) | {"layers": 1})
