"""Routing: copies of tokens, which dispatcher sends them how often, and what its launches cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster, ExpertLoad, Software
from millrace.planner.clusters import device, parse_cluster
from millrace.planner.collectives import ALONE, TokenCopies
from millrace.planner.compile import compile_plan
from millrace.planner.costs import collective_duration_ns, op_duration_ns
from millrace.planner.costs.collective_costs import EXCHANGE_LINKS
from millrace.planner.costs.expert_routing import (
    EXPERT_KERNEL_NS,
    EXPERT_LAUNCHES,
    NARROW_EXPERT_LAUNCHES,
    busiest,
    copies_of_tokens,
    expert_launches,
    is_expert_bias,
    places_reached,
    share_beyond,
)
from millrace.planner.costs.memory_bound import kernel_ns
from millrace.planner.costs.op_batch import Attributes, OpFirings, Shape, firing_of
from millrace.planner.costs.ops import op_durations_ns
from tests.plan_requests import plan_of
from tests.small_models import small

MIB = 2**20
PRODUCT = "e b c! k, e k n -> e b c! n"


def across(nodes: int, **software: object) -> Cluster:
    on = parse_cluster(f"h100-sxm-80gb:8x{nodes}")
    return replace(on, software=Software(**software))  # type: ignore[arg-type]


def exchange_ns(on: Cluster, copies: int, size: int = 64 * MIB) -> int:
    ranks = tuple(range(on.devices))
    sent = TokenCopies(copies)
    return collective_duration_ns("all_to_all", size, len(ranks), on, ranks, copies=sent)


@pytest.mark.parametrize("copies", [0, 8])
def test_an_all_to_all_takes_its_time_whatever_moves_beside_it(copies: int) -> None:
    beside = across(2, pieces=("all_gather", "all_to_all"))
    assert exchange_ns(beside, copies) == exchange_ns(across(2), copies)


def test_one_copy_crosses_to_every_place_that_has_any() -> None:
    assert share_beyond(4, TokenCopies(1)) == 3 / 4
    assert share_beyond(2, TokenCopies(2)) == 3 / 4 / 2  # hit by either copy, or by none
    assert 8 * share_beyond(4, TokenCopies(8)) == pytest.approx(3 * (1 - 0.75**8))


@pytest.mark.parametrize("places", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("kept_groups", [2, 4])
def test_places_of_tokens_are_those_of_random_routers(places: int, kept_groups: int) -> None:
    experts, groups, chosen, tokens = 256, 8, 8, 2000
    draw = np.random.default_rng(places)
    scores = draw.random((tokens, experts)).reshape(tokens, groups, -1)
    order = draw.random((tokens, groups)).argsort(axis=1)
    scores[np.arange(tokens)[:, None], order[:, kept_groups:]] = 0.0  # groups that are not kept
    best = scores.reshape(tokens, experts).argsort(axis=1)[:, -chosen:]
    reached = np.mean([len({*row}) for row in (best // (experts // places)).tolist()])
    assert places_reached(places, TokenCopies(chosen, groups, kept_groups)) == pytest.approx(
        reached, rel=0.06
    )


def test_a_router_of_few_groups_reaches_fewer_nodes_and_all_devices_of_them() -> None:
    assert places_reached(8, TokenCopies(8, 8, 4)) < 4
    for places in (1, 3, 8, 12, 64):
        everywhere = places_reached(places, TokenCopies(8))
        assert places_reached(places, TokenCopies(8, 8, 8)) == pytest.approx(everywhere, rel=0.02)


@given(places=st.integers(1, 64), copies=st.integers(1, 16))
def test_merged_copies_never_cross_more_often_than_each_by_itself(places: int, copies: int) -> None:
    share = share_beyond(places, TokenCopies(copies))
    assert share <= share_beyond(places, ALONE) + 1e-12
    assert copies * share <= places - 1 + 1e-12


def test_only_software_that_merges_sends_fewer_copies() -> None:
    on = across(4)
    merging = replace(on, software=Software(merges=True))
    assert exchange_ns(on, 8) == exchange_ns(on, 1) == exchange_ns(merging, 1)
    crossing = (
        64 * MIB * share_beyond(4, TokenCopies(8)) / (on.inter_node.bandwidth_bytes_per_s / 1e9)
    )
    extra_ns = exchange_ns(merging, 8, 128 * MIB) - exchange_ns(merging, 8)
    assert extra_ns == pytest.approx(crossing / EXCHANGE_LINKS, rel=1e-6)


def test_tokens_travel_in_16_bits_where_trainers_round_them_on_arrival() -> None:
    on = across(4)
    written = replace(on, software=Software(routing=10))
    for cluster, times in ((on, 1), (written, 2)):
        base_ns, narrow_ns = (
            collective_duration_ns(
                "all_to_all", size, 32, cluster, copies=TokenCopies(8, narrow=narrow)
            )
            for size, narrow in ((times * 64 * MIB, False), (64 * MIB, True))
        )
        assert narrow_ns == pytest.approx(base_ns, rel=1e-6)


def test_tokens_are_put_in_the_order_of_experts_where_they_arrive() -> None:
    on = across(1)
    read = 1e9 / (on.device.memory_bandwidth_bytes_per_s * on.device.memory_efficiency)
    for merges, passes in ((False, 2), (True, (places_reached(8, TokenCopies(8)) - 1) / 8)):
        plain, written = (
            replace(on, software=Software(merges=merges, routing=routing)) for routing in (0, 10)
        )
        ordering_ns = exchange_ns(written, 8) - exchange_ns(plain, 8)
        assert ordering_ns == pytest.approx(64 * MIB * passes * read, rel=1e-3)


def test_few_links_of_other_activations_do_not_slow_the_exchange_of_experts() -> None:
    slow = replace(across(4), software=Software(links=0.6))
    plain = collective_duration_ns("all_to_all", 64 * MIB, 32, slow)
    assert exchange_ns(slow, 8) == pytest.approx(plain * 0.6 / EXCHANGE_LINKS, rel=0.05)


def test_what_experts_read_and_make_holds_a_copy_of_a_token_for_each_of_them() -> None:
    graph = build_training(small("mixtral"), TrainingSpec(), 2)
    copies = copies_of_tokens(graph)
    assert set(copies.values()) == {TokenCopies(2)}
    for name in ("experts.dispatch", "experts.down", "experts.combine.grad_input"):
        assert f"h.0.{name}" in copies
    assert not any("attn" in name for name in copies)
    grouped = copies_of_tokens(build_training(small("deepseek"), TrainingSpec(), 2))
    assert set(grouped.values()) == {TokenCopies(2, groups=2, kept_groups=1)}


def test_copies_are_known_where_tokens_meet_their_experts() -> None:
    plan = plan_of(small("mixtral"), "a100-sxm-80gb:4x1", dp=4, tp=1, pp=1, ep=4)
    (program,) = compile_plan(plan).programs
    meetings = [actor.meeting for actor in program.actors if actor.meeting is not None]
    exchanged = [meeting.copies for meeting in meetings if meeting.kind == "all_to_all"]
    assert exchanged
    assert set(exchanged) == {TokenCopies(2)}
    assert all(meeting.copies == ALONE for meeting in meetings if meeting.kind != "all_to_all")


def op_ns(kind: str, labels: str, shapes: tuple[tuple[int, ...], ...], software: Software) -> int:
    *read, output = shapes
    dtypes = ["bfloat16"] * len(read)
    return op_duration_ns(
        kind, labels, {}, read, (output,), dtypes, ["bfloat16"], device("b200"), software
    )


def test_a_dispatch_waits_for_its_launches() -> None:
    labels = "b t! d, b t! k!, b t! k! -> e b c! d"
    shapes = ((1, 64, 32), (1, 64, 2), (1, 64, 2), (4, 1, 32, 32))
    plain, written = (Software(host_ns=1_000, routing=many) for many in (0, 20))
    assert (
        op_ns("dispatch", labels, shapes, written)
        == op_ns("dispatch", labels, shapes, plain) + 20_000
    )
    product = (8, 1, 32, 32), (8, 32, 32), (8, 1, 32, 32)
    waited = op_ns("matmul", PRODUCT, product, written) - op_ns("matmul", PRODUCT, product, plain)
    assert waited == 8 * EXPERT_KERNEL_NS
    gelu_shapes = ((64, 32), (64, 32))
    assert op_ns("gelu", "n d -> n d", gelu_shapes, written) == op_ns(
        "gelu", "n d -> n d", gelu_shapes, plain
    )


OF_EXPERTS = ((8, 1, 512, 1024), (8, 1024, 256), (8, 1, 512, 256))


def of_experts(
    kind: str, attributes: Attributes, *shapes: Shape, labels: str = PRODUCT
) -> OpFirings:
    *inputs, output = shapes
    dtypes = ["bfloat16"] * len(inputs)
    return firing_of(kind, labels, attributes, inputs, [output], dtypes, ["bfloat16"])


def test_the_host_launches_products_expert_by_expert_unless_a_kernel_does_all() -> None:
    wide = of_experts("matmul", {}, *OF_EXPERTS)
    narrow = of_experts("matmul", {"arithmetic": "fp8"}, *OF_EXPERTS)
    assert expert_launches(wide, Software()) == 1
    assert expert_launches(wide, Software(routing=1)) == 8 * EXPERT_LAUNCHES
    assert expert_launches(narrow, Software(routing=1)) == 8 * NARROW_EXPERT_LAUNCHES
    assert expert_launches(narrow, Software(routing=1, fused_experts=True)) == 1


def test_a_kernel_of_all_experts_makes_the_activation_and_rounds_it() -> None:
    by_itself, fused = (Software(routing=1, fused_experts=each) for each in (False, True))
    labels = "e b c! n, e b c! n -> e b c! n"
    swiglu = of_experts("swiglu", {}, *[(8, 1, 512, 256)] * 3, labels=labels)
    of_activation, of_tokens = (
        of_experts("quantise", attributes, *[(8, 1, 512, 256)] * 2, labels="e b c k -> e b c k")
        for attributes in ({"epilogue": True}, {})
    )
    for firing in (swiglu, of_activation):
        assert op_durations_ns(firing, device("b200"), by_itself)[0] > 0
        assert op_durations_ns(firing, device("b200"), fused)[0] == 0
    assert op_durations_ns(of_tokens, device("b200"), fused)[0] > 0


@pytest.mark.parametrize("experts", [1, 4, 16])
def test_the_busiest_device_has_what_random_shares_give_it(experts: int) -> None:
    shares = np.random.default_rng(experts).normal(1.0, 0.1, (4000, 64))
    fullest = shares.reshape(4000, -1, experts).mean(axis=2).max(axis=1).mean()
    load = ExpertLoad(deviation=0.1, experts=64)
    assert busiest(load, experts) - 1 == pytest.approx(fullest - 1, rel=0.06)
    assert busiest(load, 0) == busiest(load, 1)
    assert busiest(load, 64) == busiest(ExpertLoad(experts=64), experts) == 1.0


def test_what_experts_do_with_tokens_waits_for_the_busiest_device_and_weights_do_not() -> None:
    load = ExpertLoad(deviation=0.3, experts=64)
    on, times = device("b200"), busiest(load, 8)
    tokens = (8, 1, 4096, 256)
    product = of_experts("matmul", {}, (8, 1, 4096, 1024), (8, 1024, 256), tokens)
    activation = of_experts("swiglu", {}, *[tokens] * 3, labels="e b c! n, e b c! n -> e b c! n")
    for firing in (product, activation):
        mean_ns, longest_ns = (
            op_durations_ns(firing, on, Software(load=each))[0] for each in (ExpertLoad(), load)
        )
        moving_ns = mean_ns - kernel_ns(on)
        assert longest_ns - mean_ns == pytest.approx((times - 1) * moving_ns, abs=2)
    weights = of_experts("add", {}, *[(8, 1024, 256)] * 3, labels="e k n, e k n -> e k n")
    dense = of_experts("gelu", {}, *[(4, 1024)] * 2, labels="b n -> b n")
    for firing in (weights, dense):
        assert op_durations_ns(firing, on, Software(load=load)) == op_durations_ns(firing, on)


@pytest.mark.parametrize("setting", ["plain", "merges", "gathers"])
def test_an_exchange_waits_for_the_busiest_device_unless_all_tokens_are_gathered(
    setting: str,
) -> None:
    load, settings = ExpertLoad(deviation=0.3, experts=64), {setting: True}
    settings.pop("plain", None)
    even, uneven = across(4, **settings), across(4, load=load, **settings)
    slopes = [exchange_ns(on, 8, 128 * MIB) - exchange_ns(on, 8) for on in (even, uneven)]
    times = 1.0 if setting == "gathers" else busiest(load, 2)
    assert slopes[1] == pytest.approx(times * slopes[0], rel=1e-4)
    assert exchange_ns(uneven, 0) == exchange_ns(even, 0)  # of no experts


def test_biases_of_experts_are_added_in_several_passes() -> None:
    shapes = (8, 1, 512, 1024), (8, 1024), (8, 1, 512, 1024)
    biased = of_experts("add", {}, *shapes, labels="e b c n, e n -> e b c n")
    plain, written = Software(), Software(routing=1)
    assert is_expert_bias(biased)
    assert op_durations_ns(biased, device("b200"), plain) < op_durations_ns(
        biased, device("b200"), written
    )


def test_gradients_of_the_two_first_products_of_experts_are_one_products() -> None:
    of_experts, bias = ((8, 1, 512, 1024),) * 3, ((8, 1, 512, 1024), (8, 1024), (8, 1, 512, 1024))
    software = Software()
    summed = op_ns("add", "e b c k, e b c k -> e b c k", of_experts, software)
    biased = op_ns("add", "e b c n, e n -> e b c n", bias, software)
    assert summed < biased < op_ns("add", "x b c k, x b c k -> x b c k", of_experts, software)


@pytest.mark.parametrize(("nodes", "chosen"), [(1, 1), (1, 2), (2, 8)])
def test_tokens_that_all_ranks_gather_take_as_long_as_an_all_gather_of_them(
    nodes: int, chosen: int
) -> None:
    plain, gathering = across(nodes), across(nodes, gathers=True)
    ranks = tuple(range(plain.devices))
    tokens = 64 * MIB  # of one rank
    gathered_ns = collective_duration_ns(
        "all_gather", tokens * len(ranks), len(ranks), plain, ranks
    )
    assert exchange_ns(gathering, chosen, chosen * tokens) == pytest.approx(gathered_ns, abs=2)
    assert gathered_ns > exchange_ns(plain, chosen, tokens)
    # What goes elsewhere than to experts is exchanged as ever.
    assert exchange_ns(gathering, 0) == exchange_ns(plain, 0)
