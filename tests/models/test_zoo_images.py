"""The zoo's models of images, faces and clicks: published sizes, structure, and what is refused."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.ops import model_flops
from millrace.models.spec import Config, ModelSpec
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import FAMILIES, build, model_spec

# torchvision's documentation of its weights ("Num. params", version 0.20, 2024).
RESNET = {
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
}


def built(name: str, **config: object) -> Graph:
    """A model of the catalogue with some of its sizes changed."""
    spec = model_spec(name)
    return check_graph(build(msgspec.structs.replace(spec, config={**spec.config, **config}), 2))  # type: ignore[dict-item]


@pytest.mark.parametrize("name", RESNET)
def test_resnets_have_exactly_the_published_parameters(name: str) -> None:
    assert built(name).parameter_count == RESNET[name]


def test_resnet_50_multiplies_as_often_as_published() -> None:
    # 4.09 billion multiply-adds per image (torchvision's documentation, "GFLOPS" of resnet50).
    assert model_flops(built("resnet-50")) / 2 / 2 == pytest.approx(4.09e9, rel=2e-3)


def test_the_face_networks_have_the_published_parameters() -> None:
    def network(name: str) -> int:
        graph = built(name)
        classifier = graph.tensor("head.classes.weight").shape
        return graph.parameter_count - classifier[0] * classifier[1]

    # deepinsight/insightface's iresnet100 holds 65,156,160 values, of which the 512 scales of the
    # last norm are fixed; Chen et al., arXiv 1804.07573, section 4.2: "0.99 million parameters".
    assert network("arcface-r100") == 65_156_160 - 512
    assert network("arcface-mobilefacenet") == pytest.approx(0.99e6, rel=0.015)


def test_the_classifier_has_a_row_of_512_for_every_identity() -> None:
    assert built("arcface-r100-1e7").tensor("head.classes.weight").shape == (10**7, 512)


@pytest.mark.parametrize(("name", "rows"), [("wide-deep", 10**6), ("wide-deep-1e8", 10**8)])
def test_wide_and_deep_counts_two_tables_and_its_layers(name: str, rows: int) -> None:
    layers = (26 * 16 + 13) * 1024 + 6 * 1024 * 1024 + 7 * 1024
    assert built(name).parameter_count == rows * (16 + 1) + layers + 1024 + 1


def test_dlrm_counts_the_tables_of_mlperf_and_its_layers() -> None:
    # Rows of the 26 tables as MLPerf's DLRM has them, at most 40 million each: 204,184,588
    # (mlcommons/training, recommendation/dlrm, read 2026-11), here filled up to 4096 times 49,850.
    sizes = ((13, 512), (512, 256), (256, 128), (479, 1024), (1024, 1024), (1024, 512), (512, 256))
    layers = sum(inputs * outputs + outputs for inputs, outputs in (*sizes, (256, 1)))
    graph = built("dlrm")
    assert graph.parameter_count == 204_185_600 * 128 + layers
    assert graph.tensor("tables.table.weight").shape == (4096 * 49_850, 128)


@pytest.mark.parametrize(("first", "strides"), [(False, [1, 2, 1]), (True, [2, 1, 1])])
def test_version_1_5_strides_in_the_window_of_three(first: bool, strides: list[int]) -> None:
    graph = built("resnet-50", stride_first=first)
    actual = [
        op.attributes["stride_y"]
        for op in graph.ops
        if op.kind == "conv" and op.name.startswith("stage.1.0.conv")
    ]
    assert actual == strides


@pytest.mark.parametrize(
    ("name", "config", "complaint"),
    [
        ("resnet-50", {"block": "wide"}, "choose basic or bottleneck"),
        ("resnet-50", {"depths": (1, 2)}, "`depths` has 2 stages, `widths` 4"),
        ("resnet-50", {"widths": (256, 3, 1024, 2048)}, "`widths` is 3, below 4"),
        ("resnet-50", {"depths": (3, 0, 1, 1)}, "`depths` is 0, below 1"),
        ("resnet-50", {"depths": (3, 10**12, 1, 1)}, "at most 1000 layers are built"),
        ("resnet-50", {"activation": "power"}, "choose one of relu"),
        ("resnet-50", {"image_size": 0}, "`image_size` is 0, below 1"),
        ("dlrm", {"tables": ()}, "`tables` is empty; list one size or more"),
        ("dlrm", {"bottom": (512, 0)}, "`bottom` is 0, below 1"),
        ("wide-deep", {"vocab": 25}, "too few rows for 26 fields"),
        ("wide-deep", {"hidden": -1}, "`hidden` is -1, below 1"),
        ("wide-deep", {"layers": 10**9}, "at most 1000 layers are built"),
        ("arcface-r100", {"network": "vgg"}, "choose iresnet, mobilefacenet"),
        ("arcface-r100", {"widths": ()}, "expected one of each per stage"),
        ("arcface-mobilefacenet", {"depths": (1,), "widths": (8,)}, "expected none"),
        ("arcface-r100", {"margin": float("nan")}, "`margin` is nan radians"),
        ("arcface-r100", {"classes": 0}, "`classes` is 0, below 1"),
        ("arcface-r100", {"clases": 3}, "unknown field `clases`"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused_with_the_fix(
    name: str, config: Config, complaint: str
) -> None:
    with pytest.raises(ModelError) as refused:
        built(name, **config)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("name", ["resnet-50", "wide-deep", "arcface-r100"])
def test_images_and_advertisements_have_no_sequence(name: str) -> None:
    with pytest.raises(ModelError, match="has no sequence"):
        model_spec(name, seq_len=7)


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([2**40, 10**30]),
    st.floats(),
    st.sampled_from(["", "basic", "bottleneck", "iresnet", "mobilefacenet", "relu", "power"]),
    st.lists(st.integers(-1, 9), max_size=3).map(tuple),
)
_FIELDS = sorted(
    {
        field
        for family in ("resnet", "wide_deep", "face")
        for field in FAMILIES[family].config.__struct_fields__
    }
)


@settings(max_examples=150, deadline=None)
@given(
    family=st.sampled_from(["resnet", "wide_deep", "face"]),
    changes=st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=3),
    kept_fields=st.sets(st.sampled_from(_FIELDS)),
)
def test_any_configuration_builds_a_graph_or_is_refused_as_a_model_error(
    family: str, changes: dict[str, object], kept_fields: set[str]
) -> None:
    row = FAMILIES[family]
    start = dict(next(iter(row.models.values())))
    fields = set(row.config.__struct_fields__)
    config = {k: v for k, v in start.items() if k in kept_fields or len(kept_fields) < 6}
    config |= {k: v for k, v in changes.items() if k in fields}  # type: ignore[misc]
    spec = ModelSpec(name="own", family=family, config=config)
    try:
        graph = build(spec, 1)
    except ModelError:
        return
    assert check_graph(graph).parameter_count > 0
