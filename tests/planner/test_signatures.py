"""Signatures follow from labels; checked against their meaning in NumPy."""

from itertools import product

import numpy as np
import pytest

from millrace.models.graph import Op, Tensor
from millrace.models.ops import OPS
from millrace.planner.errors import PlanError
from millrace.planner.plan import OpSignature
from millrace.planner.ring_attention import RING, RINGS
from millrace.planner.sbp import local_shape, parse_nd_sbp
from millrace.planner.signatures import (
    EXPANSIONS,
    EXTRA,
    axis_signatures,
    split_labels,
    sub_signatures,
)
from tests.planner.op_signatures import op_signatures

VOCABULARY = "vocabulary_parallel"


def written(kind: str, labels: str) -> list[str]:
    return [
        f"{' '.join(map(str, signature.inputs))} -> {' '.join(map(str, signature.outputs))}"
        for signature in axis_signatures(kind, labels)
    ]


def matmul(shape: tuple[int, ...] = (4, 6)) -> tuple[Op, dict[str, Tensor]]:
    tensors = {
        "x": Tensor(name="x", shape=(4, 6)),
        "w": Tensor(name="w", shape=(6, 8)),
        "y": Tensor(name="y", shape=(4, 8)),
    }
    op = Op(
        name="a.mm",
        kind="matmul",
        inputs=("x", "w"),
        outputs=("y",),
        labels="m k, k n -> m n",
        block="a",
    )
    return op, tensors


def test_a_product_has_the_five_signatures_and_all_b() -> None:
    assert written("matmul", "m k, k n -> m n") == [
        "B B -> B",
        "S(0) B -> S(0)",
        "S(1) S(0) -> P(sum)",
        "B S(1) -> S(1)",
        "P(sum) B -> P(sum)",
        "B P(sum) -> P(sum)",
    ]


def test_add_passes_partial_sums_on_all_inputs_at_once() -> None:
    assert written("add", "b n, n -> b n") == [
        "B B -> B",
        "S(0) B -> S(0)",
        "S(1) S(0) -> S(1)",
        "P(sum) P(sum) -> P(sum)",
    ]


def test_whole_labels_and_inner_labels_of_a_group_are_not_split() -> None:
    assert written("relu", "b d! -> b d!") == ["B -> B", "S(0) -> S(0)"]
    assert written("rearrange", "b i j -> b (i j)") == [
        "B -> B",
        "S(0) -> S(0)",
        "S(1) -> S(1)",
        "P(sum) -> P(sum)",
    ]


def test_a_contracted_label_without_reduction_is_not_split() -> None:
    assert written("relu", "b d -> b") == ["B -> B", "S(0) -> S(0)"]


def test_a_maximum_comes_out_as_a_partial_maximum() -> None:
    assert "S(1) -> P(max)" in written("row_max", "b v -> b")


def test_ids_are_never_partial() -> None:
    tensors = {
        "ids": Tensor(name="ids", shape=(4,), dtype="int32"),
        "table": Tensor(name="table", shape=(8, 2)),
        "y": Tensor(name="y", shape=(4, 2)),
    }
    op = Op(
        name="e",
        kind="embedding",
        inputs=("ids", "table"),
        outputs=("y",),
        labels="b, v d -> b d",
        block="e",
    )
    for signature in op_signatures(op, tensors, (2,)):
        assert not signature.inputs[0][0].is_partial
    assert any(
        signature.inputs[1][0].is_split and signature.outputs[0][0].is_partial
        for signature in op_signatures(op, tensors, (2,))
    )


def test_several_axes_are_the_product_of_one_axis_where_it_divides() -> None:
    op, tensors = matmul()
    single = op_signatures(op, tensors, (2,))
    double = op_signatures(op, tensors, (2, 2))
    assert len(single) == 6
    pairs = {signature.inputs for signature in double}
    assert (parse_nd_sbp("(S(0), S(0))"), parse_nd_sbp("(B, B)")) in pairs
    # k is 6, which two axes of two do not divide: only those two splits of k fall away.
    assert len(double) == 6 * 6 - 1
    for signature in double:
        for name, sbp in zip(("x", "w", "y"), (*signature.inputs, *signature.outputs), strict=True):
            local_shape(tensors[name].shape, sbp, (2, 2))


def test_a_pin_is_a_filter_per_axis() -> None:
    op, tensors = matmul()
    only_rows = op_signatures(
        op,
        tensors,
        (2, 2),
        allowed=lambda op, axis, axis_signature: axis == 1 or axis_signature.label == "m",
    )
    assert {signature.labels[0] for signature in only_rows} == {"m"}
    assert {signature.labels[1] for signature in only_rows} == {"m", "k", "n", None}


@pytest.mark.parametrize("sizes", [(2,), (2, 2)])
def test_the_shards_of_a_product_make_the_whole_product(sizes: tuple[int, ...]) -> None:
    op, tensors = matmul()
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(4, 6)), rng.normal(size=(6, 8))
    for signature in op_signatures(op, tensors, sizes):
        total = np.zeros((4, 8))
        for coordinate in product(*map(range, sizes)):
            y = shard(x, signature.inputs[0], sizes, coordinate, rng) @ shard(
                w, signature.inputs[1], sizes, coordinate, rng
            )
            place(total, y, signature.outputs[0], sizes, coordinate)
        np.testing.assert_allclose(total, x @ w, atol=1e-12, err_msg=str(signature))


def shard(tensor, sbp, sizes, coordinate, rng):
    """Shard of one device; a partial one is a fixed fraction of the tensor."""
    value = tensor
    for axis_sbp, size, index in zip(sbp, sizes, coordinate, strict=True):
        if axis_sbp.is_split:
            value = np.split(value, size, axis=axis_sbp.dim)[index]
        elif axis_sbp.is_partial:
            shares = np.linspace(1, 2, size)
            value = value * (shares[index] / shares.sum())
    return value


def place(total, part, sbp, sizes, coordinate):
    """Add a device's part where it belongs; copies count once."""
    window = total
    for axis_sbp, size, index in zip(sbp, sizes, coordinate, strict=True):
        if axis_sbp.is_split:
            window = np.split(window, size, axis=axis_sbp.dim)[index]
        elif not axis_sbp.is_partial and index:
            return
    window += part


def test_every_extra_signature_has_an_expansion_of_known_kinds() -> None:
    named = {(kind, extra.name) for kind, extras in EXTRA.items() for extra in extras}
    rings = {(kind, RING) for kind in RINGS}
    assert named == set(EXPANSIONS) | rings
    assert all(ring.later in OPS for ring in RINGS.values())
    for expansion in EXPANSIONS.values():
        outputs = {name for op in expansion.ops for name in op.outputs}
        for op in expansion.ops:
            assert op.kind in OPS
            assert all(name.startswith("in") or name in outputs for name in op.inputs)


def test_vocabulary_parallel_loss_expands_to_three_ops() -> None:
    labels = "b t v!, b t -> b t, b t"
    axis_signature = next(s for s in axis_signatures("cross_entropy", labels) if s.expansion)
    assert [str(s) for s in (*axis_signature.inputs, *axis_signature.outputs)] == [
        "S(2)",
        "B",
        "B",
        "B",
    ]
    signature = OpSignature(
        inputs=("(S(0), S(2))", "(S(0), B)"),
        outputs=("(S(0), B)", "(S(0), B)"),
        expansion=VOCABULARY,
    )
    assert split_labels(labels, signature) == ("b", "v")
    row_max, sums, loss = sub_signatures("cross_entropy", labels, signature)
    assert row_max[1].outputs == ("(S(0), P(max))",)
    assert sums[1].inputs == ("(S(0), S(2))", "(S(0), B)", "(S(0), B)")
    assert sums[1].outputs == ("(S(0), P(sum))",)
    assert loss[1].outputs == ("(S(0), B)", "(S(0), B)")
    assert sums[0].labels == "b t v, b t, b t -> b t moments!"


def test_an_expansion_takes_the_labels_of_the_op_it_stands_for() -> None:
    signature = OpSignature(inputs=("S(1)", "B"), outputs=("B", "B"), expansion=VOCABULARY)
    parts = sub_signatures("cross_entropy", "b c!, b -> b, b", signature)
    assert [op.labels for op, _ in parts] == [
        "b c -> b",
        "b c, b, b -> b moments!",
        "b, b moments!, b -> b, b",
    ]


def test_on_a_ring_queries_and_keys_are_split_along_the_sequence() -> None:
    labels = "b t g r d!, b s! g d!, b s! g u! -> b t g r u!, b t g r"
    (axis_signature,) = (s for s in axis_signatures("attention", labels) if s.expansion)
    assert [str(s) for s in (*axis_signature.inputs, *axis_signature.outputs)] == ["S(1)"] * 5
    assert (axis_signature.label, axis_signature.expansion) == ("t", RING)
    given = "b t h d!, b s! h d!, b s! h d!, b t h d!, b t h, b t h d!"
    (axis_signature,) = (
        s
        for s in axis_signatures("attention_grad", f"{given} -> b t h d!, b s! h d!, b s! h d!")
        if s.expansion
    )
    assert [str(s) for s in (*axis_signature.inputs, *axis_signature.outputs)] == ["S(1)"] * 9
    assert not [s for s in axis_signatures("attention", labels, unsplit=("t",)) if s.expansion]


def test_an_unknown_expansion_is_refused() -> None:
    with pytest.raises(PlanError, match="no extra signature `ring`"):
        sub_signatures(
            "relu", "b -> b", OpSignature(inputs=("B",), outputs=("B",), expansion="ring")
        )
