"""The label grammar: what is parsed, written and bound, and what is refused."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.models.errors import ModelError
from millrace.models.labels import Operand, bind, dim_of, parse, shape_of, write

LABELS = ("b", "t", "h", "d", "k", "n", "v0")


@st.composite
def operands(draw: st.DrawFn) -> Operand:
    labels = draw(st.permutations(LABELS))[: draw(st.integers(0, 5))]
    dims, start = [], 0
    while start < len(labels):
        length = draw(st.integers(1, 3))
        dims.append(tuple(labels[start : start + length]))
        start += length
    return tuple(dims)


@settings(deadline=None)
@given(
    st.lists(operands(), max_size=3),
    st.lists(operands(), min_size=1, max_size=2),
    st.sets(st.sampled_from(LABELS)),
)
def test_what_is_written_is_parsed_back(
    inputs: list[Operand], outputs: list[Operand], whole_labels: set[str]
) -> None:
    used = {label for operand in [*inputs, *outputs] for dim in operand for label in dim}
    expression = parse(write(inputs, outputs, frozenset(whole_labels)))
    assert expression.inputs == tuple(inputs)
    assert expression.outputs == tuple(outputs)
    assert expression.whole_labels == whole_labels & used


@settings(deadline=None)
@given(operands(), st.data())
def test_sizes_are_found_again_from_the_shapes_of_groups(
    operand: Operand, data: st.DataObject
) -> None:
    plain = tuple((label,) for dim in operand for label in dim)
    sizes = {dim[0]: data.draw(st.integers(1, 6)) for dim in plain}
    expression = parse(write((operand,), (plain,)))
    grouped, spread = shape_of(operand, sizes), shape_of(plain, sizes)
    assert prod(grouped) == prod(spread)
    assert bind(expression, [grouped], [spread]) == sizes
    for label in sizes:
        position = dim_of(operand, label)
        assert position is not None
        assert label in operand[position]
        assert dim_of(plain, label) == list(sizes).index(label)


@settings(deadline=None)
@given(operands().filter(bool), st.data())
def test_a_shape_that_is_off_in_one_dim_is_refused(operand: Operand, data: st.DataObject) -> None:
    sizes = {label: data.draw(st.integers(2, 5)) for dim in operand for label in dim}
    shape = list(shape_of(operand, sizes))
    shape[data.draw(st.integers(0, len(shape) - 1))] += 1
    with pytest.raises(ModelError, match="op `there`"):
        bind(parse(write((operand,), ((),))), [tuple(shape)], [()], sizes, op="there")


def test_an_empty_side_means_no_inputs_or_one_scalar_output() -> None:
    assert parse("->").inputs == ()
    assert parse(" -> ").outputs == ((),)
    assert parse("b t ->").outputs == ((),)
    assert parse("() -> ()").inputs == ((),)
    assert parse("k n, z!,  -> k n").inputs == ((("k",), ("n",)), (("z",),), ())


def test_contracted_labels_are_those_no_output_has() -> None:
    assert parse("b t k, k n -> b t n").contracted == ("k",)
    assert parse("b t d, b t d, b t, b t -> d, d").contracted == ("b", "t")


def test_only_outermost_labels_that_are_not_whole_are_splittable() -> None:
    assert parse("b t (c! h d) -> c b h t d").splittable == ("b", "t")
    assert parse("b (h d) -> b h d").splittable == ("b", "h")
    assert parse("b t h d!, b s! h d! -> b t h d!").splittable == ("b", "t", "h")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("b t", "one `->`"),
        ("b -> t -> d", "one `->`"),
        ("B t -> t", "`B t` is not a label"),
        ("b (t d -> b", "brackets"),
        ("b t) -> b", "brackets"),
        ("b ((t) d) -> b", "brackets"),
        ("b () -> b", "at least one label"),
        ("b t b -> b", "one label twice"),
    ],
)
def test_text_outside_the_grammar_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ModelError) as refused:
        parse(text)
    assert complaint in str(refused.value)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "complaint"),
    [
        (
            "b k, k n -> b n",
            [(2, 3), (4, 5)],
            [],
            "tensor `w`: label `k` is 3 elsewhere but 4 here",
        ),
        ("b k, k n -> b n", [(2, 3)], [], "2 inputs expected, 1 given"),
        ("b k, k n -> b n", [(2, 3), (3, 5, 1)], [], "tensor `w`: 2 dims expected"),
        ("b k, k n -> b n", [(2, 3), (3, 5)], [(2, 5), (2, 5)], "1 outputs expected, 2 given"),
        ("b (h d), d n -> b", [(2, 7), (2, 3)], [], "tensor `x`: size 7 of group `(h d)`"),
        ("b (h d), n n2 -> b h", [(2, 8), (2, 3)], [], "label `h` is not known"),
        ("b k, k n -> b m", [(2, 3), (3, 5)], [], "label `m` is not known"),
    ],
)
def test_shapes_that_do_not_fit_name_op_tensor_and_label(
    text: str,
    inputs: list[tuple[int, ...]],
    outputs: list[tuple[int, ...]],
    complaint: str,
) -> None:
    with pytest.raises(ModelError) as refused:
        bind(parse(text), inputs, outputs, op="h.0.fc", tensors=("x", "w", "y"))
    assert "op `h.0.fc`" in str(refused.value)
    assert complaint in str(refused.value)
