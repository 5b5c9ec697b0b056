"""The zoo: published parameter counts, names, and what cannot be built."""

import msgspec
import pytest

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import ALIASES, NAMES, build, build_training, model_spec

# Parameters of the released GPT-2 checkpoints (openai/gpt-2, 2019), the tied head counted once.
GPT2 = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}
# Layers and hidden size of Brown et al., arXiv 2005.14165, table 2.1, and its rounded total.
GPT3 = {
    "gpt3-125m": (12, 768, 125e6),
    "gpt3-350m": (24, 1024, 350e6),
    "gpt3-760m": (24, 1536, 760e6),
    "gpt3-1.3b": (24, 2048, 1.3e9),
    "gpt3-2.7b": (32, 2560, 2.7e9),
    "gpt3-6.7b": (32, 4096, 6.7e9),
    "gpt3-13b": (40, 5120, 13e9),
    "gpt3-175b": (96, 12288, 175e9),
}


@pytest.mark.parametrize("name", GPT2)
def test_gpt2_has_exactly_the_published_parameters(name: str) -> None:
    assert build(model_spec(name), 1).parameter_count == GPT2[name]


@pytest.mark.parametrize("name", GPT3)
def test_gpt3_has_the_parameters_of_its_sizes(name: str) -> None:
    layers, hidden, published = GPT3[name]
    embeddings = (50257 + 2048) * hidden
    block = 12 * hidden**2 + 13 * hidden  # 4 + 8 products; 3 + 1 + 4 + 1 biases, 4 norm vectors
    expected = embeddings + layers * block + 2 * hidden
    assert build(model_spec(name), 1).parameter_count == expected
    assert expected == pytest.approx(published, rel=0.025)


def test_the_demo_model_has_one_to_three_million_parameters_and_reads_bytes() -> None:
    spec = model_spec("gpt-demo")
    assert 1e6 <= build(spec, 1).parameter_count <= 3e6
    assert (spec.config["vocab"], spec.seq_len) == (256, 128)


def test_a_shorter_sequence_changes_no_parameter() -> None:
    long, short = model_spec("gpt2-small"), model_spec("gpt2-small", seq_len=128)
    assert build(long, 1).parameter_count == build(short, 1).parameter_count
    assert build(short, 1).tokens_per_sample == 128


def test_aliases_mean_a_name_of_the_catalogue() -> None:
    spelled = {"GPT-2": "gpt2-small", "gpt_3_6.7B": "gpt3-6.7b", "MLP": "mlp"}
    astray = [
        alias
        for alias, name in (ALIASES | spelled).items()
        if name not in NAMES or model_spec(alias) != model_spec(name)
    ]
    assert astray == []


def test_a_specification_builds_the_same_graph_after_a_round_trip() -> None:
    spec = model_spec("gpt-demo", seq_len=32, precision="bf16")
    again = msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec)
    assert build(again, 2) == build(spec, 2)


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("gpt2-smal", {}, "did you mean gpt2-small"),
        ("alexnet", {}, "`millrace models` lists them"),
        ("gpt2", {"precision": "int8"}, "no precision `int8`; choose one of fp64"),
        ("gpt2", {"seq_len": 2048}, "has 1024 positions: sequences of 2048 tokens do not fit"),
        ("gpt2", {"seq_len": 0}, "use 1 to 16,777,216"),
        ("mlp", {"seq_len": 7}, "model `mlp` has no sequence"),
        ("no.such.module:graph", {}, "expected `package.module:function`"),
        ("millrace.models.graph:nothing", {}, "expected `package.module:function`"),
        ("millrace.models.graph:GLOBAL_BLOCK", {}, "is not a function"),
        ("tests.models.test_zoo:not_a_graph", {}, "returns a str; expected a Graph"),
        ("tests.models.test_zoo:line", {"seq_len": 5}, "5 were asked for; change the function"),
        ("tests.models.test_zoo:line", {"precision": "bf16"}, "not precision bf16"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_with_the_fix(
    name: str, arguments: dict[str, int | str], complaint: str
) -> None:
    with pytest.raises(ModelError) as refused:
        model_spec(name, **arguments)  # type: ignore[arg-type]
    assert complaint in str(refused.value)


GPT = {"layers": 1, "hidden": 10, "heads": 4, "ffn_hidden": 8, "vocab": 8, "positions": 8}
MLP = {"inputs": 10, "columns": 3, "hidden": 4, "layers": 1, "classes": 2}


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (ModelSpec(name="own", family="cnn", config={}), "no family `cnn`; choose one of mlp, gpt"),
        (ModelSpec(name="own", family="mlp", config={"width": 3}), "configuration of `mlp`"),
        (
            ModelSpec(name="own", family="gpt", config=GPT),
            "hidden (10) is not divisible by heads (4)",
        ),
        (
            ModelSpec(name="own", family="mlp", config=MLP),
            "inputs (10) is not divisible by columns (3)",
        ),
        (
            ModelSpec(name="own", family="mlp", config=MLP | {"columns": 5, "layers": 0}),
            "`layers` is 0, below 1",
        ),
    ],
)
def test_a_configuration_that_cannot_be_built_is_refused(spec: ModelSpec, complaint: str) -> None:
    with pytest.raises(ModelError) as refused:
        build(spec, 1)
    assert complaint in str(refused.value)


def line() -> Graph:
    """A model of the user's own: one product and a loss."""
    builder = GraphBuilder(name="line", batch=1, tokens_per_sample=1)
    builder.begin_block("fit")
    x = builder.input("x", "b k", (1, 3), source="features")
    w = builder.parameter("weight", "k c", (3, 2))
    logits = builder.apply("matmul", "logits", (x, w), "b k, k c -> b c")
    classes = builder.input("classes", "b", (1,), source="classes", values=2)
    losses = builder.apply("cross_entropy", "loss", (logits, classes), "b c!, b -> b, b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "count", (classes,), "b -> ")
    return builder.build()


def not_a_graph() -> str:
    return "no graph"


def test_a_function_that_returns_a_graph_is_a_model() -> None:
    spec = model_spec("tests.models.test_zoo:line")
    assert (spec.family, spec.seq_len) == ("function", 1)
    graph = build_training(spec, TrainingSpec(), 16)
    assert graph.batch == 16
    assert graph.tensor("fit.logits").shape == (16, 2)
    assert graph.parameter_count == 6
