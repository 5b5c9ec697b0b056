"""Views, slices, joins and products of traced arrays mean what NumPy's do, however they follow.

No torch is needed: arrays are drafted directly, written as a graph and evaluated by the oracle.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from millrace.models.builder import GraphBuilder
from millrace.models.importers.torch_export import views
from millrace.models.importers.torch_export.algebra import combined, narrowed, product, reduced
from millrace.models.importers.torch_export.draft import Array, Draft, DraftTensor, pointwise
from millrace.models.importers.torch_export.extents import (
    Extent,
    ShapeError,
    TensorAxis,
    leaves,
    size_of,
)
from millrace.models.importers.torch_export.writing import BLOCK, DraftWriter
from millrace.models.type_inference import check_graph
from tests.models.oracle import run

Values = NDArray[Any]


def drafted(*shapes: tuple[int, ...]) -> tuple[Draft, list[Array], list[Values]]:
    """A draft with one input per shape, batch first, and a value for each."""
    draft = Draft(batch=shapes[0][0])
    generator = np.random.default_rng(0)
    arrays, values = [], []
    for position, shape in enumerate(shapes):
        axes = [TensorAxis(Extent(size, "b" if i == 0 else None)) for i, size in enumerate(shape)]
        tensor = DraftTensor(name=draft.name(f"x{position}"), axes=tuple(axes), kind="input")
        tensor.attributes["source"] = "features"
        arrays.append(Array(tensor, tuple((axis,) for axis in axes)))
        values.append(generator.normal(size=shape))
    return draft, arrays, values


def computed(draft: Draft, inputs: list[Array], values: list[Values], out: Array) -> Values:
    """Write the draft as a graph, evaluate it, and see the result through the array's views."""
    copied = pointwise(draft, "scale", out, {"factor": 1.0})
    builder = GraphBuilder(name="views", batch=draft.batch, tokens_per_sample=1, precision="fp64")
    builder.begin_block(BLOCK)
    writer = DraftWriter(builder=builder)
    writer.write(draft.steps)
    graph = check_graph(builder.build())
    values_by_name = {f"{BLOCK}.{x.tensor.name}": v for x, v in zip(inputs, values, strict=True)}
    input_names = {op.outputs[0] for op in graph.ops if op.kind == "input"}
    result = run(graph, {k: v for k, v in values_by_name.items() if k in input_names})
    array = result[writer.tensor(copied.tensor, "result")]
    have = list(copied.tensor.leaves())
    order = [axis for group in copied.dims for axis in leaves(group)]
    real = [next(i for i, x in enumerate(have) if x is axis) for axis in order if axis in have]
    moved = array.transpose(real)
    wide = [axis.size if axis in have else 1 for axis in order]
    spread = np.broadcast_to(moved.reshape(wide), [axis.size for axis in order])
    return spread.reshape([size_of(group) for group in copied.dims])


def _shapes_of(total: int) -> list[tuple[int, ...]]:
    """Shapes of up to three dims that hold a number of places."""
    shapes = [(total,)]
    for a in range(2, total):
        if total % a == 0:
            shapes.append((a, total // a))
            shapes += [(a, b, total // a // b) for b in range(2, total // a) if total // a % b == 0]
    return shapes


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_row_of_views_slices_and_sums_is_numpys(data: st.DataObject) -> None:
    draft, inputs, values = drafted((2, 4, 12))
    array, want = inputs[0], values[0]
    for _ in range(data.draw(st.integers(1, 6))):
        array, want = _stepped(data, draft, array, want)
    np.testing.assert_allclose(computed(draft, inputs, values, array), want)


def _stepped(data: st.DataObject, draft: Draft, array: Array, want: Values) -> tuple[Array, Values]:
    kinds = ["view", "permute", "narrow", "unsqueeze", "expand", "sum", "double", "twice"]
    kind = data.draw(st.sampled_from(kinds))
    rank = want.ndim
    if kind == "view":
        rest = data.draw(st.sampled_from(_shapes_of(int(np.prod(want.shape[1:])))))
        return views.viewed(draft, array, (want.shape[0], *rest)), want.reshape(-1, *rest).reshape(
            want.shape[0], *rest
        )
    if kind == "permute" and rank > 2:
        order = [0, *data.draw(st.permutations(range(1, rank)))]
        return views.permuted(array, order), want.transpose(order)
    dim = data.draw(st.integers(1, rank - 1)) if rank > 1 else 0
    if kind == "narrow" and rank > 1 and want.shape[dim] > 2:
        start = data.draw(st.integers(0, want.shape[dim] - 2))
        size = data.draw(st.integers(1, want.shape[dim] - start))
        taken = want.take(range(start, start + size), axis=dim)
        return narrowed(draft, array, dim, start, size), taken
    if kind == "unsqueeze" and rank < 4:
        return views.unsqueezed(array, rank), want[..., None]
    if kind == "expand" and rank < 4:
        wide = views.expanded(views.unsqueezed(array, rank), (*want.shape, 2))
        return wide, np.broadcast_to(want[..., None], (*want.shape, 2))
    if kind == "sum" and rank > 2:
        return reduced(draft, array, [dim], keep=True), want.sum(dim, keepdims=True)
    if kind == "twice" and rank > 1:
        return views.joined(draft, [array, array], dim), np.concatenate([want, want], dim)
    return combined(draft, "add", array, array), want + want


@pytest.mark.parametrize(
    ("left", "right", "equation"),
    [
        ((2, 4, 6), (2, 6, 4), ("abk", "akc", "abc")),
        ((2, 4, 6), (2, 4, 6), ("abk", "ack", "abc")),
        ((2, 4, 6), (2, 4), ("abk", "ab", "ak")),
        ((2, 4, 6), (2, 5), ("abk", "ac", "acb")),
    ],
)
def test_products_are_einsums(
    left: tuple[int, ...], right: tuple[int, ...], equation: tuple[str, str, str]
) -> None:
    draft, inputs, values = drafted(left, right)
    out = product(draft, *inputs, equation)
    text = f"{equation[0]},{equation[1]}->{equation[2]}"
    np.testing.assert_allclose(computed(draft, inputs, values, out), np.einsum(text, *values))


def test_a_view_of_one_tensor_splits_the_dims_of_all_that_are_added_to_it() -> None:
    draft, inputs, _ = drafted((2, 12), (2, 12))
    total = combined(draft, "add", *inputs)
    views.viewed(draft, total, (2, 3, 4))
    assert [axis.size for axis in inputs[1].tensor.leaves()] == [2, 3, 4]


def test_dims_taken_apart_in_two_ways_are_made_one_first() -> None:
    draft, inputs, values = drafted((2, 12))
    first = views.viewed(draft, inputs[0], (2, 4, 3))
    second = views.viewed(draft, views.viewed(draft, first, (2, 12)), (2, 3, 4))
    merged = computed(draft, inputs, values, second)
    np.testing.assert_allclose(merged, values[0].reshape(2, 3, 4))
    assert any(step.kind == "merge" for step in draft.steps)


def test_more_dims_than_letters_have_labels_too() -> None:
    draft = Draft(batch=2)
    axes = (TensorAxis(Extent(2, "b")), *(TensorAxis(2) for _ in range(30)))
    tensor = DraftTensor(name=draft.name("x"), axes=axes, kind="input")
    tensor.attributes["source"] = "features"
    pointwise(draft, "relu", Array(tensor, tuple((axis,) for axis in axes)))
    builder = GraphBuilder(name="wide", batch=2, tokens_per_sample=1)
    builder.begin_block(BLOCK)
    DraftWriter(builder=builder).write(draft.steps)
    assert len(builder.build().ops[-1].labels.split()) == 2 * 31 + 1


def test_the_batch_is_never_split() -> None:
    draft, inputs, _ = drafted((4, 6))
    with pytest.raises(ShapeError, match="batch"):
        views.viewed(draft, inputs[0], (2, 2, 6))
