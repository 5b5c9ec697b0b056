"""The reserve of a device is a share or a size, by default on the catalogue's GPUs alone."""

import pytest

import millrace
from millrace.figures import plan_summary
from millrace.memory_reserve import does_not_fit_probability, read_reserve, reserve_on
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import PlanError
from millrace.planner.memory import DEFAULT_RESERVE, NO_RESERVE, Reserve

GPUS = parse_cluster("a100-sxm-80gb:2x1")


@pytest.mark.parametrize(
    ("text", "reserve"),
    [
        ("5%", Reserve(fraction=0.05)),
        (" 12.5 % ", Reserve(fraction=0.125)),
        ("2GiB", Reserve(size_bytes=2**31)),
        ("0", NO_RESERVE),
        ("0%", NO_RESERVE),
        ("0.0", NO_RESERVE),
    ],
)
def test_a_reserve_is_a_share_a_size_or_nothing(text, reserve):
    assert read_reserve(text) == reserve


@pytest.mark.parametrize("text", ["", "5", "100%", "-5%", "5 percent", "2G", "0.05", "nan%"])
def test_what_is_no_reserve_is_refused_with_examples(text):
    with pytest.raises(PlanError, match=r"--reserve .*\(5%\), a size \(2GiB\) or 0"):
        read_reserve(text)


def test_gpus_of_the_catalogue_have_one_by_default_and_this_machine_has_none():
    assert reserve_on(GPUS, None, None) == DEFAULT_RESERVE
    assert reserve_on(parse_cluster("local:2"), None, None) == NO_RESERVE
    assert reserve_on(GPUS, None, 2**30) == NO_RESERVE
    assert reserve_on(GPUS, "0", None) == NO_RESERVE
    with pytest.raises(PlanError, match="leave one of them out"):
        reserve_on(GPUS, "5%", 2**30)


@pytest.mark.parametrize("reserve", [None, "0", "2GiB"])
def test_a_plan_says_what_it_leaves(reserve):
    plan = millrace.plan("mlp", GPUS, global_batch=8, reserve=reserve).plan
    device_bytes = GPUS.device.memory_bytes
    left = {None: DEFAULT_RESERVE.bytes_of(device_bytes), "0": 0, "2GiB": 2**31}[reserve]
    assert plan.memory_limit_bytes == device_bytes - left
    assert plan_summary(plan)["reserve_bytes"] == left


def test_a_fuller_device_is_less_likely_to_fit():
    memory = GPUS.device.memory_bytes
    shares = [does_not_fit_probability(GPUS, round(memory * part)) for part in (0.2, 0.87, 1, 1.2)]
    assert None not in shares
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.05
    assert shares[1] < 0.1
    assert shares[-1] > 0.9
    assert does_not_fit_probability(GPUS, None) is None
    assert does_not_fit_probability(parse_cluster("local:2", cores=2), memory) is None
