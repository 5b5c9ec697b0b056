"""ResNet against transformers: loss, every gradient, and the count of parameters."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.importers.huggingface import read_config
from millrace.models.ops import model_flops
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build, build_training
from tests.extras import optional
from tests.models.torch_parity.modules import (
    Arrays,
    Named,
    compare,
    drawn,
    labelled_images,
    renamed,
)

torch = optional("torch")
flop_counter = optional("torch.utils.flop_counter")
transformers = optional("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

BATCH = 8


def imported(values: dict[str, Any]) -> ModelSpec:
    """Specification that the importer makes of transformers' configuration of these values."""
    config = transformers.ResNetConfig(**values)
    config.architectures = ["ResNetForImageClassification"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(config.to_json_string())
        return read_config(path)


def channels_first(graph: Graph) -> tuple[int, ...]:
    """The shape of the images in PyTorch's order."""
    samples, rows, columns, channels = graph.tensor("stem.images").shape
    return samples, channels, rows, columns


def resnet_of(named: Named) -> Arrays:
    return renamed(
        named,
        (r"^resnet\.embedder\.embedder", "stem"),
        (r"^resnet\.encoder\.stages\.(\d+)\.layers\.(\d+)", r"stage.\1.\2"),
        (r"\.layer\.(\d)\.convolution", r".conv\1"),
        (r"\.layer\.(\d)\.normalization", r".norm\1"),
        (r"\.convolution", ".conv"),
        (r"\.normalization", ".norm"),
        (r"^classifier\.1", "head.logits"),
    )


BASIC = {"layer_type": "basic", "depths": [2, 1], "hidden_sizes": [8, 12], "embedding_size": 8}
BOTTLENECK = {"depths": [2, 2], "hidden_sizes": [16, 20], "embedding_size": 6}
UNUSUAL = {
    "depths": [1, 1, 1],
    "hidden_sizes": [8, 8, 12],
    "embedding_size": 8,
    "num_channels": 1,
    "hidden_act": "gelu",
    "downsample_in_bottleneck": True,
    "downsample_in_first_stage": True,
}


@pytest.mark.parametrize(
    ("values", "image_size"),
    [(BASIC, 32), (BOTTLENECK, 40), (UNUSUAL, 45)],
    ids=["basic", "bottleneck", "unusual"],
)
def test_resnet_trains_as_in_transformers(values: dict[str, Any], image_size: int) -> None:
    values = {"num_labels": 5, **values}
    spec = imported(values)
    small = ModelSpec(
        name="small", family=spec.family, config={**spec.config, "image_size": image_size}
    )
    graph = build(small, BATCH)
    config = transformers.ResNetConfig(**values)
    module = drawn(transformers.ResNetForImageClassification(config), seed=0)
    inputs = labelled_images(channels_first(graph), "classes", 5)
    logits = module(torch.tensor(inputs["images"])).logits
    targets = torch.tensor(inputs["classes"]).long()
    loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    compare(graph, module, loss, resnet_of, inputs)


def theirs(values: dict[str, Any]) -> int:
    """Number of parameters of the module of transformers."""
    with torch.device("meta"):
        module = transformers.ResNetForImageClassification(transformers.ResNetConfig(**values))
    return sum(parameter.numel() for parameter in module.parameters())


# The configurations of microsoft/resnet-18 to resnet-152.
PUBLISHED = {
    18: ("basic", [2, 2, 2, 2], [64, 128, 256, 512]),
    34: ("basic", [3, 4, 6, 3], [64, 128, 256, 512]),
    50: ("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048]),
    101: ("bottleneck", [3, 4, 23, 3], [256, 512, 1024, 2048]),
    152: ("bottleneck", [3, 8, 36, 3], [256, 512, 1024, 2048]),
}


@pytest.mark.parametrize("layers", PUBLISHED)
def test_published_resnets_have_as_many_parameters_as_in_transformers(layers: int) -> None:
    kind, depths, widths = PUBLISHED[layers]
    values = {"layer_type": kind, "depths": depths, "hidden_sizes": widths, "num_labels": 1000}
    spec = imported(values)
    assert build(spec, 1).parameter_count == theirs(values)


@pytest.mark.parametrize("values", [BASIC, BOTTLENECK, UNUSUAL], ids=["basic", "bottle", "unusual"])
def test_resnet_has_the_flops_that_pytorch_counts(values: dict[str, Any]) -> None:
    graph = build_training(imported(values), TrainingSpec(), 2)
    with torch.device("meta"):
        module = transformers.ResNetForImageClassification(transformers.ResNetConfig(**values))
        images = torch.zeros(channels_first(graph))
    with flop_counter.FlopCounterMode(display=False) as counter:
        module(images).logits.sum().backward()
    assert model_flops(graph) == counter.get_total_flops()


_STAGES = st.integers(1, 4).flatmap(
    lambda stages: st.fixed_dictionaries(
        {
            "depths": st.lists(st.integers(1, 3), min_size=stages, max_size=stages),
            "hidden_sizes": st.lists(st.integers(4, 70), min_size=stages, max_size=stages),
        }
    )
)
_OTHER = st.fixed_dictionaries(
    {},
    optional={
        "layer_type": st.sampled_from(["basic", "bottleneck"]),
        "embedding_size": st.integers(1, 70),
        "num_channels": st.integers(1, 5),
        "num_labels": st.integers(2, 30),
        "hidden_act": st.sampled_from(["relu", "gelu", "silu", "tanh"]),
        "downsample_in_first_stage": st.booleans(),
        "downsample_in_bottleneck": st.booleans(),
    },
)


@settings(max_examples=25, deadline=None)
@given(stages=_STAGES, other=_OTHER)
def test_any_resnet_has_as_many_parameters_as_in_transformers(
    stages: dict[str, Any], other: dict[str, Any]
) -> None:
    values = {**stages, **other}
    assert build(imported(values), 1).parameter_count == theirs(values)


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from([2**40, 1e300, "", "basic"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner, max_size=1),
    max_leaves=4,
)
_KEYS = ["architectures", "depths", "downsample_in_bottleneck", "downsample_in_first_stage"]
_KEYS += ["embedding_size", "hidden_act", "hidden_sizes", "id2label", "layer_type"]
_KEYS += ["num_channels", "num_labels", "problem_type"]


@settings(max_examples=100, deadline=None)
@given(values=st.dictionaries(st.sampled_from(_KEYS), _ANY, max_size=4))
def test_any_configuration_is_read_or_refused_as_a_model_error(values: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": "resnet", **values}))
        try:
            spec = read_config(path)
        except ModelError:
            return
        assert spec.family == "resnet"
