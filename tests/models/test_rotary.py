"""Angles of rotary positions, plain and stretched."""

from math import pi

import pytest

from millrace.models.errors import ModelError
from millrace.models.rotary import rotary_frequencies

PLAIN = {"base": 10000.0, "dims": 64}
STRETCHED = PLAIN | {"factor": 8.0, "original_positions": 2048}
LLAMA = STRETCHED | {"scaling": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = STRETCHED | {"scaling": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}


def test_the_first_pair_turns_one_radian_and_the_others_ever_less() -> None:
    angles = rotary_frequencies(PLAIN)
    assert len(angles) == 32
    assert angles[0] == 1.0
    assert angles[16] == pytest.approx(0.01)
    assert list(angles) == sorted(angles, reverse=True)


def test_linear_scaling_slows_all_pairs_down() -> None:
    scaled = rotary_frequencies(STRETCHED | {"scaling": "linear"})
    assert scaled == pytest.approx([angle / 8 for angle in rotary_frequencies(PLAIN)])


@pytest.mark.parametrize(("attributes", "fast", "slow"), [(LLAMA, 4, 1), (YARN, 32, 1)])
def test_pairs_that_turn_often_are_kept_and_those_that_turn_seldom_are_slowed(
    attributes: dict[str, float | str], fast: float, slow: float
) -> None:
    shares = []
    for plain, scaled in zip(
        rotary_frequencies(PLAIN), rotary_frequencies(attributes), strict=True
    ):
        turns = 2048 * plain / (2 * pi)
        shares.append(scaled / plain)
        if turns > 1.5 * fast:
            assert shares[-1] == 1
        if turns < slow / 1.5:
            assert shares[-1] == pytest.approx(1 / 8)
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) > 3  # and between the two there is a ramp


def test_yarns_ramp_may_begin_between_two_pairs() -> None:
    truncated, between = rotary_frequencies(YARN), rotary_frequencies(YARN | {"truncate": False})
    assert truncated != between
    assert (truncated[0], truncated[-1]) == (between[0], between[-1])


def test_a_ramp_of_no_length_is_a_step() -> None:
    angles = rotary_frequencies(YARN | {"dims": 2})
    assert angles == (1.0,)


def test_a_scaling_that_is_not_known_is_refused() -> None:
    with pytest.raises(ModelError, match="choose one of linear, llama3, yarn"):
        rotary_frequencies(PLAIN | {"scaling": "ntk"})
