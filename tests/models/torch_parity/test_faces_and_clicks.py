"""Face recognition, Wide & Deep and DLRM against modules written from the papers' definitions."""

from typing import Any

import numpy as np

from millrace.models.graph import Graph
from millrace.models.spec import Config, ModelSpec
from millrace.models.zoo.catalogue import build
from tests.extras import optional
from tests.models.torch_parity import networks
from tests.models.torch_parity.modules import (
    Arrays,
    Named,
    Translate,
    compare,
    drawn,
    labelled_images,
    renamed,
)

torch = optional("torch")

BATCH = 8
IDENTITIES, FEATURES, SIDE = 11, 12, 32
FIELDS, NUMBERS = 5, 3


def small(family: str, config: Config) -> Graph:
    return build(ModelSpec(name="small", family=family, config=config), BATCH)


def face_of(network: Translate) -> Translate:
    def translate(named: Named) -> Arrays:
        inner = {name.removeprefix("network."): value for name, value in named.items()}
        classes = inner.pop("classes").numpy()
        return {"head.classes.weight": classes, **network(inner)}

    return translate


def iresnet_of(named: Named) -> Arrays:
    arrays = renamed(named, (r"fc_norm", "fc.norm"))
    fc = named["features.fc.weight"].numpy()
    side = round((fc.shape[1] / len(named["features.norm.weight"])) ** 0.5)
    arrays["features.fc.weight"] = fc.T.reshape(-1, side, side, len(fc)).transpose(1, 2, 0, 3)
    return arrays


def mobilefacenet_of(named: Named) -> Arrays:
    places = [f"stage.{stage}.{unit}" for stage, count in enumerate((5, 1, 6, 1, 2))
              for unit in range(count)]  # fmt: skip
    arrays = renamed(
        named,
        (r"^(conv|depthwise)\.", r"stem.\1."),
        (r"^units\.(\d+)", lambda match: places[int(match[1])]),
        (r"^last", "features.conv"),
        (r"^gdconv", "features.whole"),
        (r"^fc", "features.fc"),
        (r"\.(conv0|depthwise|conv)\.conv\.", r".\1."),
        (r"(\d)\.norm\.", r"\1.conv1.norm."),
        (r"\.conv0\.conv1\.", r".conv0."),
        (r"_norm", ".norm"),
    )
    fc = arrays["features.fc.weight"]
    arrays["features.fc.weight"] = fc[None, None]
    return arrays


FACES = {"image_size": SIDE, "classes": IDENTITIES, "features": FEATURES}


def test_arcface_on_residual_units_equals_a_module_of_the_papers_definitions() -> None:
    sizes = {"depths": (2, 1, 3), "widths": (8, 12, 16)}
    graph = small("face", {"network": "iresnet", **sizes, **FACES})
    network = networks.IResNet(**sizes, image=SIDE, features=FEATURES)
    _compare_faces(graph, network, iresnet_of)


def test_arcface_on_depthwise_convolutions_equals_a_module_of_the_papers_definitions() -> None:
    graph = small("face", {"network": "mobilefacenet", "width_percent": 25, **FACES})
    network = networks.MobileFaceNet(thinner=4, image=SIDE, features=FEATURES)
    _compare_faces(graph, network, mobilefacenet_of)


def _compare_faces(graph: Graph, network: Any, translate: Translate) -> None:
    module = drawn(networks.ArcFace(network, FEATURES, IDENTITIES), seed=1)
    inputs = labelled_images((BATCH, 3, SIDE, SIDE), "identities", IDENTITIES)
    targets = torch.tensor(inputs["identities"]).long()
    loss = module(torch.tensor(inputs["images"]), targets)
    compare(graph, module, loss, face_of(translate), inputs)


def wide_deep_of(named: Named) -> Arrays:
    arrays = renamed(
        named,
        (r"^layers\.0", "deep.rows"),
        (r"^layers\.(\d)", lambda match: f"hidden.{int(match[1]) - 1}.fc"),
        (r"^head", "head.fc"),
    )
    arrays["wide.table.weight"] = named["wide.weight"].numpy()
    arrays["deep.table.weight"] = named["table.weight"].numpy()
    del arrays["wide.weight"], arrays["table.weight"]
    features = arrays["deep.table.weight"].shape[1]
    first = arrays["deep.rows.weight"]
    ids = FIELDS * features
    arrays["deep.rows.weight"] = first[:ids].reshape(FIELDS, features, -1)
    arrays["deep.numbers_fc.weight"] = first[ids:]
    return arrays


def test_wide_and_deep_equals_a_module_of_the_papers_definition() -> None:
    config = {"vocab": 40, "fields": FIELDS, "numbers": NUMBERS, "embedding": 4, "hidden": 16,
              "layers": 3}  # fmt: skip
    graph = small("wide_deep", config)
    module = drawn(networks.WideDeep(**config), seed=2)
    generator = np.random.default_rng(0)
    inputs: Arrays = {
        "categories": generator.integers(0, 40, (BATCH, FIELDS)).astype(np.int32),
        "features": generator.normal(size=(BATCH, NUMBERS)).astype(np.float32),
        "clicks": np.arange(BATCH, dtype=np.int32) % 2,
    }
    ids, numbers, clicks = (torch.tensor(inputs[name]) for name in inputs)
    loss = module(ids, numbers, clicks.float())
    compare(graph, module, loss, wide_deep_of, inputs)


def dlrm_of(named: Named) -> Arrays:
    arrays = renamed(
        named,
        (r"^bottom\.(\d)", r"bottom.fc\1"),
        (r"^top\.(\d)", r"top.\1.fc"),
        (r"^head", "head.fc"),
        (r"^table", "tables.table"),
    )
    arrays["tables.table.weight"] = named["table.weight"].numpy()
    return arrays


def test_dlrm_equals_a_module_of_the_papers_definition() -> None:
    config = {"bottom": (9, 4), "top": (12, 6), "numbers": NUMBERS}
    graph = small("dlrm", config | {"tables": (7, 3, 2), "rows_multiple": 8})
    module = drawn(networks.Dlrm(rows=16, fields=3, **config), seed=2)
    generator = np.random.default_rng(0)
    inputs: Arrays = {
        "categories": generator.integers(0, 16, (BATCH, 3)).astype(np.int32),
        "features": generator.normal(size=(BATCH, NUMBERS)).astype(np.float32),
        "clicks": np.arange(BATCH, dtype=np.int32) % 2,
    }
    ids, numbers, clicks = (torch.tensor(inputs[name]) for name in inputs)
    loss = module(ids, numbers, clicks.float())
    compare(graph, module, loss, dlrm_of, inputs)
