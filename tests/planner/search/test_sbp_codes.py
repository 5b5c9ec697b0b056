"""SBP codes: numbers of nd-SBPs say what `millrace.planner.sbp` says of the nd-SBPs themselves."""

from itertools import product

import numpy as np
import pytest

from millrace.planner.errors import PlanError
from millrace.planner.sbp import (
    BROADCAST,
    PARTIAL_MAX,
    PARTIAL_SUM,
    NdSbp,
    local_shape,
    local_size,
    split,
)
from millrace.planner.search.blocks.sbp_codes import (
    digits,
    divisible,
    is_partial,
    number_of,
    numbers,
    padded_sizes,
    sbp_of,
    shards,
)

ONES = (BROADCAST, PARTIAL_SUM, PARTIAL_MAX, split(0), split(1), split(2))


def everything(axes: int) -> list[NdSbp]:
    return list(product(ONES, repeat=axes))


@pytest.mark.parametrize("axes", [0, 1, 2, 3])
def test_a_number_is_an_nd_sbp_and_back(axes: int) -> None:
    states = [number_of(sbp) for sbp in everything(axes)]
    assert len(set(states)) == len(states)
    assert [sbp_of(state, axes) for state in states] == everything(axes)
    if axes:
        array = np.array(states)
        assert (numbers(list(digits(array, axes))) == array).all()


def test_a_tensor_may_have_many_dims() -> None:
    late = (split(13), split(40))
    assert sbp_of(number_of(late), 2) == late


@pytest.mark.parametrize("shape", [(), (12,), (8, 6), (4, 12, 5)])
def test_what_divides_and_what_is_left_is_what_local_shapes_say(shape: tuple[int, ...]) -> None:
    meshes = [(1, 2), (2, 2), (2, 4), (3, 2), (4, 3)]
    sizes = np.array(meshes).T
    sbps = everything(2)
    states = np.array([number_of(sbp) for sbp in sbps])
    dims = np.repeat(np.array(shape, np.int64).reshape(-1, 1), len(meshes), axis=1)
    fits = divisible(states, dims, sizes)
    cut, padded = shards(states, sizes), padded_sizes(states, dims, sizes)
    for number, sbp in enumerate(sbps):
        for row, mesh in enumerate(meshes):
            if not any(axis_sbp.dim >= len(shape) for axis_sbp in sbp):
                assert padded[number, row] == local_size(shape, sbp, mesh)
            try:
                local = local_shape(shape, sbp, mesh)
            except PlanError:
                assert not fits[number, row]
                continue
            assert fits[number, row], (sbp, mesh)
            assert int(np.prod(shape)) // cut[number, row] == np.prod(local)
            assert int(np.prod(shape)) // cut[number, row] == local_size(shape, sbp, mesh)


def test_partial_states_are_those_with_a_partial_axis() -> None:
    sbps = everything(2)
    partial = is_partial(np.array([number_of(sbp) for sbp in sbps]), 2)
    assert partial.tolist() == [any(axis_sbp.is_partial for axis_sbp in sbp) for sbp in sbps]
