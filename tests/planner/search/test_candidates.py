"""Candidates within pins, and pins that cannot be had."""

import pytest

from millrace.planner.cluster import Cluster
from millrace.planner.clusters import local_cluster, parse_cluster
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.search.candidates import Candidate, candidates, shape_of, wider
from millrace.planner.search.meshes import divisors
from millrace.planner.search.pins import Pins


def cluster(devices: int) -> Cluster:
    return local_cluster(devices, cores=2, memory_bytes=2**34)


def listed(devices: int = 4, batch: int = 8, sequence: bool = True, **pins: object) -> list[str]:
    enumerated = candidates(Pins(**pins), cluster(devices), batch, 6, sequence=sequence)  # type: ignore[arg-type]
    return [candidate.text for candidate in enumerated]


def all_of(devices: int, batch: int, **pins: object) -> tuple[Candidate, ...]:
    return candidates(Pins(**pins), cluster(devices), batch, 6, sequence=True)  # type: ignore[arg-type]


def test_free_candidates_use_every_device() -> None:
    enumerated = all_of(8, 16)
    shapes = {(candidate.pipeline.stages, candidate.sizes) for candidate in enumerated}
    assert {(1, (8,)), (1, (2, 4)), (1, (4, 2)), (2, (4,)), (2, (2, 2)), (4, (2,))} <= shapes
    for candidate in enumerated:
        product = candidate.pipeline.stages
        for size in candidate.sizes:
            product *= size
        assert product == 8
        assert candidate.batch * candidate.pipeline.microbatches == 16


def test_pinned_degrees_get_axes_with_their_role_and_tp_joins_neighbours() -> None:
    (first, *_) = all_of(8, 8, dp=2, tp=2, pp=2)
    assert [(axis.role, axis.size) for axis in first.axes] == [("dp", 2), ("tp", 2)]


def test_what_is_left_of_the_devices_goes_to_free_axes() -> None:
    (first, *_) = all_of(8, 8, tp=2, pp=1)
    assert [(axis.role, axis.size) for axis in first.axes] == [("", 4), ("tp", 2)]


def test_micro_batch_counts_samples_of_one_replica() -> None:
    enumerated = all_of(4, 16, dp=2, tp=1, pp=2, micro_batch=2, schedule="1f1b")
    assert [(candidate.batch, candidate.pipeline.microbatches) for candidate in enumerated] == [
        (4, 4)
    ]


def test_pins_of_replicas_give_every_candidate_a_known_degree() -> None:
    enumerated = all_of(4, 16, micro_batch=2, pp=1)
    assert {sum(a.size for a in candidate.axes if a.role == "dp") for candidate in enumerated} == {
        0,
        2,
        4,
    }
    assert all(candidate.batch == 2 * max(1, sum(a.size for a in candidate.axes if a.role == "dp"))
               for candidate in enumerated)  # fmt: skip
    assert all(
        any(a.role == "dp" for a in candidate.axes) for candidate in all_of(4, 16, zero=1, pp=1)
    )


def test_interleaving_is_searched_in_whole_rounds_and_pinned_in_any() -> None:
    enumerated = all_of(2, 8, dp=1, tp=1, pp=2, schedule="interleaved-1f1b")
    assert {candidate.pipeline.microbatches for candidate in enumerated} == {2, 4, 8}
    pinned = all_of(2, 8, dp=1, tp=1, pp=2, schedule="interleaved-1f1b", interleave=2)
    assert {candidate.pipeline.microbatches for candidate in pinned} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("pins", "sentence"),
    [
        ({"dp": 3}, "make 3 devices, which do not divide the 4"),
        ({"dp": 2, "tp": 1, "pp": 1, "cp": 1}, "make 2 devices, `local:4` has 4"),
        ({"ep": 2}, "this model has no experts"),
        ({"zero": "3-hybrid", "dp": 2}, "--dp 2 has no part"),
        ({"zero": 1, "dp": 1}, "--dp is 1"),
        ({"sequence_parallel": True, "tp": 1}, "--tp is 1"),
        ({"pp": 4, "schedule": "interleaved-1f1b", "interleave": 2}, "no plan: 4 devices"),
        ({"dp": 4, "tp": 1, "pp": 1, "micro_batch": 3}, "--micro-batch 3"),
    ],
)
def test_pins_that_cannot_be_had_are_refused_with_a_sentence(
    pins: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InfeasibleError, match=sentence):
        listed(**pins)


@pytest.mark.parametrize(
    ("pins", "said", "unsaid"),
    [
        ({"schedule": "zb-v"}, "zb-v needs two chunks a stage and at least 2", "1f1b"),
        ({"schedule": "interleaved-1f1b"}, "microbatches in multiples of the stages", "zb-v"),
        ({"schedule": "interleaved-1f1b", "interleave": 2}, "outnumber blocks", "multiples"),
        ({"interleave": 4}, "1f1b runs one chunk a stage; zb-h1", "interleaved-1f1b"),
        ({"schedule": "interleaved-1f1b", "interleave": 1}, "more than one chunk", "multiples"),
    ],
)
def test_pins_that_leave_nothing_name_the_rules_that_hold_under_them(
    pins: dict[str, object], said: str, unsaid: str
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        listed(4, 2, pp=4, micro_batch=1, **pins)
    said_of_pins, _, rules = str(caught.value).partition("): ")
    assert "no plan: 4 devices" in said_of_pins
    assert said in rules
    assert unsaid not in rules


@pytest.mark.parametrize(
    "pins",
    [{"dp": 0}, {"schedule": "fastest"}, {"recompute": "some"}, {"zero": 4}, {"micro_batch": -1}],
)
def test_malformed_pins_cannot_be_understood(pins: dict[str, object]) -> None:
    with pytest.raises(PlanError) as caught:
        listed(**pins)
    assert not isinstance(caught.value, InfeasibleError)


def test_a_model_without_a_sequence_has_none_to_split() -> None:
    with pytest.raises(InfeasibleError, match="no sequence"):
        listed(sequence=False, cp=2)
    with pytest.raises(InfeasibleError, match="no sequence"):
        listed(sequence=False, sequence_parallel=True)


def test_recompute_none_and_ep_one_are_no_restriction() -> None:
    assert listed(recompute="none", ep=1) == listed()


def experts_on(
    devices: int, experts: int, **pins: object
) -> set[tuple[tuple[str, int, bool], ...]]:
    """Meshes of all candidates of a model with so many experts: role, size, experts split."""
    enumerated = candidates(
        Pins(**pins),  # type: ignore[arg-type]
        cluster(devices),
        8,
        6,
        sequence=True,
        experts=experts,
    )
    return {
        tuple((a.role, a.size, bool(a.experts)) for a in candidate.axes) for candidate in enumerated
    }


def test_a_pinned_ep_splits_experts_over_replicas_tensor_parallel_ranks_or_both() -> None:
    meshes = experts_on(8, 8, dp=4, tp=2, pp=1, ep=4)
    assert meshes == {
        (("dp", 4, True), ("tp", 2, False)),
        (("dp", 2, False), ("dp", 2, True), ("tp", 2, True)),
    }


def test_without_a_pin_experts_lie_whole_or_over_as_many_ranks_as_divide_them() -> None:
    assert experts_on(4, 2, dp=4, tp=1, pp=1) == {
        (("dp", 4, False),),
        (("dp", 2, False), ("dp", 2, True)),
    }
    assert experts_on(4, 2, dp=4, tp=1, pp=1, ep=1) == {(("dp", 4, False),)}


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="6 experts do not divide by it"):
        experts_on(8, 6, ep=4)


def test_hybrid_zero_splits_storage_inside_a_node_and_copies_it_across() -> None:
    nodes = parse_cluster("h100-sxm-80gb:8x4")
    pins = Pins(zero="3-hybrid", dp=32, tp=1, pp=1)
    enumerated = candidates(pins, nodes, 64, 6, sequence=True)
    assert {tuple((a.size, a.copies) for a in candidate.axes) for candidate in enumerated} == {
        ((4, True), (8, False))
    }
    # Beside tensor parallelism a node holds fewer replicas; a node alone says nothing.
    beside = candidates(Pins(zero="3-hybrid", dp=16, tp=2, pp=1), nodes, 64, 6, sequence=True)
    assert {candidate.sizes for candidate in beside} == {(4, 4, 2)}
    alone = all_of(8, 16, zero="3-hybrid", dp=8, pp=1)
    assert {candidate.sizes for candidate in alone} == {(2, 4), (4, 2)}


def test_meshes_of_three_axes_are_few_and_keep_the_inner_axis_within_a_node() -> None:
    nodes = parse_cluster("h100-sxm-80gb:8x8")
    usual = candidates(Pins(), nodes, 64, 6, sequence=True)
    usual_shapes = {
        shape_of(candidate.pipeline) for candidate in usual if candidate.pipeline.microbatches == 4
    }
    wide = wider(Pins(), nodes, 64, 6, usual_shapes, sequence=True)
    assert wide
    assert {shape_of(candidate.pipeline) for candidate in wide} <= usual_shapes
    assert {candidate.axes for candidate in wide}.isdisjoint(candidate.axes for candidate in usual)
    for candidate in wide:
        assert [axis.role for axis in candidate.axes] == ["dp", "", ""]
        assert candidate.sizes[-1] in (4, 8)
        assert candidate.batch * candidate.pipeline.microbatches == 64


@pytest.mark.parametrize(
    ("pins", "roles"),
    [
        ({"tp": 8}, ["dp", "", "tp"]),
        ({"cp": 2}, ["dp", "cp", ""]),
        ({"dp": 4}, ["dp", "", ""]),
        ({"dp": 4, "tp": 8}, None),
    ],
)
def test_pinned_degrees_are_axes_of_the_three(
    pins: dict[str, int], roles: list[str] | None
) -> None:
    nodes = parse_cluster("h100-sxm-80gb:8x8")
    wide = wider(Pins(pp=1, **pins), nodes, 64, 6, (), sequence=True)  # type: ignore[arg-type]
    assert {tuple(axis.role for axis in candidate.axes) for candidate in wide} == (
        {tuple(roles or ())} - {()}
    )
    assert len(
        {(candidate.axes, candidate.batch, candidate.pipeline) for candidate in wide}
    ) == len(wide)


def test_small_stages_have_no_meshes_of_three_axes() -> None:
    assert not wider(Pins(), cluster(8), 16, 6, (), sequence=True)


def test_chunks_are_few_or_as_many_as_leave_them_even() -> None:
    enumerated = candidates(Pins(dp=1, tp=1), cluster(4), 16, 34, repeated=32, sequence=True)
    of_four = {
        candidate.pipeline.interleave for candidate in enumerated if candidate.pipeline.stages == 4
    }
    assert {1, 2, 4, 8} <= of_four  # 32 layers, an embedding and a head


def test_pinned_experts_lie_on_few_axes_where_they_can() -> None:
    pins = Pins(dp=8, tp=4, cp=2, pp=1, ep=8, micro_batch=1)
    enumerated = candidates(pins, cluster(64), 8, 6, sequence=True, experts=8)
    assert {candidate.sizes for candidate in enumerated} == {(8, 2, 4)}
    alone = Pins(dp=2, tp=2, cp=2, pp=1, ep=4)
    assert candidates(alone, cluster(8), 8, 6, sequence=True, experts=4)[0].sizes == (2, 2, 2)


@pytest.mark.parametrize("number", [1, 2, 7, 36, 96, 97, 10**9])
def test_divisors_are_all_there_in_order_however_large_the_number(number: int) -> None:
    all_divisors = divisors(number)
    assert list(all_divisors) == sorted(set(all_divisors))
    assert all(number % divisor == 0 for divisor in all_divisors)
    if number < 1000:
        assert all_divisors == tuple(
            divisor for divisor in range(1, number + 1) if number % divisor == 0
        )
    else:
        assert len(all_divisors) == 100  # 2^9 · 5^9


def test_a_batch_is_cut_into_no_more_microbatches_than_a_schedule_repeats() -> None:
    two = parse_cluster("local:2", cores=2, memory_bytes=2**33)
    enumerated = candidates(Pins(), two, 10**6, 4, sequence=True)
    assert max(candidate.pipeline.microbatches for candidate in enumerated) == 4000
    with pytest.raises(InfeasibleError, match="into at most 4,096"):
        candidates(Pins(micro_batch=1), two, 10**6, 4, sequence=True)
