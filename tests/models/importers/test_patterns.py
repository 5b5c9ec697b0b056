"""Patterns match however a program spells a function out; masks are read as what they show."""

from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

from millrace.models.importers.attention_masks import mask_of
from millrace.models.importers.patterns import (
    ACTIVATIONS,
    RMS_NORM,
    WEIGHTED_RMS_NORM,
    matched,
)


class NestedCalls:
    """Calls as nested tuples, a kind and its operands; numbers are themselves."""

    tolerance = 1e-6

    def uncast(self, value: Any) -> Any:
        return self.uncast(value[1]) if isinstance(value, tuple) and value[0] == "cast" else value

    def number(self, value: Any) -> float | None:
        return value if isinstance(value, float) else None

    def call(self, value: Any) -> tuple[str, tuple[Any, ...]] | None:
        plain = self.uncast(value)
        return (plain[0], plain[1:]) if isinstance(plain, tuple) else None


ERF = ("add", ("erf", ("div", "a", sqrt(2))), 1.0)
INNER = ("mul", sqrt(2 / pi), ("add", ("mul", 0.044715, ("pow", "a", 3.0)), "a"))
TANH = ("add", 1.0, ("tanh", INNER))
SPREAD = ("add", ("mean", ("pow", "a", 2.0)), 1e-5)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("silu", ("mul", "a", ("sigmoid", "a"))),
        ("gelu_erf", ("mul", ("mul", 0.5, "a"), ERF)),
        ("gelu_erf", ("div", ("mul", ERF, ("cast", "a")), 2.0)),
        ("gelu", ("mul", "a", ("mul", TANH, 0.5))),
    ],
)
def test_an_activation_is_matched_however_its_factors_are_bracketed(kind, value):
    matches = {
        name: matched(NestedCalls(), pattern, value) for name, pattern in ACTIVATIONS.items()
    }
    assert [name for name, bound in matches.items() if bound is not None] == [kind]
    assert matches[kind] == {"x": "a"}


@pytest.mark.parametrize(
    "value", [("mul", "b", ("sigmoid", "a")), ("mul", ("mul", 0.4, "a"), ERF), ("cast", TANH)]
)
def test_what_has_another_number_or_another_value_is_no_activation(value):
    assert all(matched(NestedCalls(), pattern, value) is None for pattern in ACTIVATIONS.values())


@pytest.mark.parametrize(
    "normed",
    [
        ("mul", ("rsqrt", SPREAD), "a"),
        ("div", "a", ("sqrt", SPREAD)),
        ("mul", "a", ("pow", SPREAD, -0.5)),
        ("mul", "a", ("div", 1.0, ("sqrt", SPREAD))),
    ],
)
def test_a_norm_by_the_root_mean_square_is_matched_with_its_weight_and_without(normed):
    assert matched(NestedCalls(), RMS_NORM, normed) == {"x": "a", "epsilon": 1e-5}
    assert matched(NestedCalls(), WEIGHTED_RMS_NORM, normed) is None
    weighted = ("mul", "w", ("cast", normed))
    assert matched(NestedCalls(), RMS_NORM, weighted) == {"x": "a", "weight": "w", "epsilon": 1e-5}
    assert matched(NestedCalls(), RMS_NORM, ("cast", weighted)) is None


@pytest.mark.parametrize("additive", [True, False])
@pytest.mark.parametrize("window", [0, 1, 3])
def test_a_mask_is_causal_or_a_window_or_neither(additive, window):
    distance = np.subtract.outer(np.arange(5), np.arange(5))
    visible = (distance >= 0) & (distance < (window or 5))
    another = visible | (distance == -1)
    masks = [np.where(x, 0.0, -1e9) if additive else x for x in (visible, another)]
    assert mask_of(np.stack([masks[0]] * 2), 5, 5) == (True, window)
    assert mask_of(masks[1], 5, 5) is None
    assert mask_of(np.stack(masks), 5, 5) is None
    assert mask_of(np.zeros(5), 2, 5) == (False, 0)
    assert mask_of(np.full((5, 5), 0.5), 5, 5) is None
