"""The builder: names, shapes, dtypes and rates of what it adds, and what it refuses."""

import pytest

from millrace.models.builder import GraphBuilder, dense
from millrace.models.errors import ModelError
from millrace.models.graph import Phase, Rate
from millrace.models.type_inference import check_graph


def started(precision: str = "fp32") -> GraphBuilder:
    builder = GraphBuilder(name="small", batch=4, tokens_per_sample=3, precision=precision)
    builder.begin_block("body")
    return builder


def test_ops_and_tensors_are_named_after_their_block() -> None:
    builder = started()
    x = builder.input("x", "b t k", (4, 3, 8), source="features")
    y = dense(builder, "fc", x, "b t k, k h d -> b t h d", {"h": 2, "d": 5})
    graph = check_graph(builder.build())
    assert (x, y) == ("body.x", "body.fc")
    names = [op.name for op in graph.ops]
    assert names == [
        "body.fc.weight",
        "body.fc.bias",
        "body.x",
        "body.fc.weight.repeat",
        "body.fc.matmul",
        "body.fc.bias.repeat",
        "body.fc",
    ]
    assert graph.tensor("body.fc.weight").shape == (8, 2, 5)
    assert graph.tensor("body.fc.bias").shape == (2, 5)
    assert graph.tensor("body.fc").shape == (4, 3, 2, 5)


def test_what_happens_once_a_step_comes_first_and_belongs_to_begin() -> None:
    builder = started()
    x = builder.input("x", "b k", (4, 8), source="features")
    dense(builder, "fc", x, "b k, k n -> b n", {"n": 2}, bias=False)
    graph = builder.build()
    assert [op.phase for op in graph.ops] == [Phase.BEGIN, *[Phase.FORWARD] * 3]
    assert graph.tensor("body.fc.weight").rate is Rate.STEP
    assert graph.tensor("body.fc.weight.repeat").rate is Rate.MICROBATCH


def test_the_batch_dim_is_where_label_b_stands() -> None:
    builder = started()
    x = builder.input("x", "b i j", (4, 3, 2), source="features")
    builder.apply("rearrange", "y", (x,), "b i j -> i (b j)")
    graph = builder.build()
    assert graph.tensor("body.x").batch_dim == 0
    assert graph.tensor("body.y").batch_dim == 1
    assert graph.tensor("body.y").shape == (3, 8)


@pytest.mark.parametrize(
    ("precision", "variable", "compute"),
    [
        ("fp64", "float64", "float64"),
        ("fp32", "float32", "float32"),
        ("tf32", "float32", "float32"),
        ("bf16", "float32", "bfloat16"),
        ("fp16", "float32", "float16"),
    ],
)
def test_variables_stay_wide_and_arithmetic_has_the_precision(
    precision: str, variable: str, compute: str
) -> None:
    builder = started(precision)
    x = builder.input("x", "b k", (4, 8), source="features")
    y = dense(builder, "fc", x, "b k, k n -> b n", {"n": 2})
    graph = check_graph(builder.build())
    assert graph.tensor("body.x").dtype == variable
    assert graph.tensor("body.fc.weight").dtype == variable
    assert graph.tensor("body.fc.weight.repeat").dtype == compute
    assert graph.tensor(y).dtype == compute
    casts = [op for op in graph.ops if op.kind == "cast"]
    assert len(casts) == (3 if variable != compute else 0)
    assert {op.phase for op in casts if "weight" in op.name} <= {Phase.BEGIN}


def test_losses_and_statistics_are_never_narrower_than_float32() -> None:
    builder = started("bf16")
    x = builder.input("x", "b v", (4, 8), source="features")
    targets = builder.input("targets", "b", (4,), source="classes", values=8)
    loss = builder.apply("cross_entropy", "loss", (x, targets), "b v!, b -> b, b")
    count = builder.apply("count_valid", "count", (targets,), "b -> ")
    assert builder.tensors[loss].dtype == "float32"
    assert builder.tensors["body.loss.logsumexp"].dtype == "float32"
    assert builder.tensors[count].dtype == "float32"


@pytest.mark.parametrize(
    ("kind", "inputs", "labels", "complaint"),
    [
        ("relu", ("body.y",), "b k -> b k", "reads `body.y`, which no op before it makes"),
        ("relu", ("body.x",), "b k -> b n", "op `body.new`: the size of label `n`"),
        ("relu", ("body.x",), "b k -> b k, b", "`relu` has 1 outputs"),
        ("sign", ("body.x",), "b k -> b k", "no op kind `sign`"),
        ("add", ("body.x", "body.w"), "b k, k n -> b k", "reads tensors of both rates"),
        ("add", (), "-> b k", "has no inputs"),
    ],
)
def test_an_op_that_does_not_fit_is_refused_by_name(
    kind: str, inputs: tuple[str, ...], labels: str, complaint: str
) -> None:
    builder = started()
    builder.input("x", "b k", (4, 8), source="features")
    builder.variable("w", "k n", (8, 2))
    with pytest.raises(ModelError) as refused:
        builder.apply(kind, "new", inputs, labels)
    assert complaint in str(refused.value)


def test_a_name_is_used_once() -> None:
    builder = started()
    x = builder.input("x", "b k", (4, 8), source="features")
    builder.apply("relu", "y", (x,), "b k -> b k")
    with pytest.raises(ModelError, match=r"`body\.y` exists already; rename the op"):
        builder.apply("relu", "y", (x,), "b k -> b k")
    with pytest.raises(ModelError, match="begins block `body` twice"):
        builder.begin_block("body")


def test_what_cannot_start_is_refused() -> None:
    with pytest.raises(ModelError, match="at least one sample"):
        GraphBuilder(name="small", batch=0, tokens_per_sample=1)
    with pytest.raises(ModelError, match="no precision `int8`; choose one of fp64"):
        GraphBuilder(name="small", batch=1, tokens_per_sample=1, precision="int8")
    with pytest.raises(ModelError, match="call begin_block first"):
        GraphBuilder(name="small", batch=1, tokens_per_sample=1).variable("w", "k", (1,))
