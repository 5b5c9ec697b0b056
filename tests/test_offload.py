"""Optimizer state in host memory: the same numbers, in less of a device, for the time of copies."""

import dataclasses
from collections import Counter
from functools import cache

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from millrace.executor.values.manifest import manifest_of
from millrace.models.graph import Graph, to_json
from millrace.models.ops import kinds_where
from millrace.planner.actors.graph import HOST, Program
from millrace.planner.cluster import Cluster, HostMemory
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.costs import durations
from millrace.planner.costs.host_transfers import PIECE_BYTES, UNKNOWN, host_of, state_copies_ns
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.memory import plan_memory, reserved_bytes
from millrace.planner.plan import OpSignature, Plan, read_plan
from millrace.planner.search import Pins, SearchRequest, search
from millrace.planner.search.report.explain import explain
from millrace.planner.search.report.host_offload import host_shortage
from millrace.planner.search.search_log import SearchLog
from millrace.simulator import predict
from tests.parallel_runs import run
from tests.plan_requests import request_of
from tests.small_models import small
from tests.test_same_mathematics import CASES, planned

UPDATES = kinds_where(lambda row: row.updates)
GPUS = parse_cluster("a100-sxm-80gb:2x1")
KINDS = [index for index, case in enumerate(CASES) if case.name in ("dp x tp", "interleaved pp")]


def on_host(plan: Plan) -> Plan:
    return replace(plan, offload="optimizer")


def offload_request(
    cluster: Cluster, limit_bytes: int | None = None, **pins: object
) -> SearchRequest:
    return request_of(small("gpt"), cluster, 16, memory_limit_bytes=limit_bytes, **pins)


def states(program: Program) -> list[int]:
    """Bytes of the state of every update, padded as in the arena."""
    sizes = [program.registers[index].slot_bytes for a in program.actors for index in a.state]
    assert sizes
    return sizes


@pytest.mark.parametrize("index", KINDS, ids=lambda index: CASES[index].name)
def test_the_formula_says_what_is_laid_out_on_the_device_and_on_the_host(index: int) -> None:
    plan, _, _ = planned(index, "fp32")
    before, said = plan_memory(plan), plan_memory(on_host(plan))
    programs = compile_plan(on_host(plan)).programs
    for was, now, program in zip(before, said, programs, strict=True):
        assert now.by_kind == {k: n for k, n in program.memory_bytes_by_kind.items() if n}
        assert now.arena_bytes == program.memory_bytes
        assert now.host_bytes == program.host_bytes == sum(states(program)) == was.optimizer_bytes
        # On the device there is the largest state of one variable, or a piece of it.
        pairs = [sum(program.registers[r].slot_bytes for r in a.state) for a in program.actors]
        assert now.optimizer_bytes == max(pairs) < was.optimizer_bytes
        assert now.parameter_bytes == was.parameter_bytes
        assert HOST not in now.by_kind


@pytest.mark.parametrize("index", KINDS, ids=lambda index: CASES[index].name)
def test_a_run_is_equal_bit_for_bit(index: int) -> None:
    plan, graph, actors = planned(index, "fp32")
    elsewhere = compile_plan(on_host(plan))
    for plain, offloaded in zip(
        run(plan, graph, actors, 4), run(on_host(plan), graph, elsewhere, 4), strict=True
    ):
        assert plain.run_state.totals == offloaded.run_state.totals
        positions = {
            r.name: position for position, r in enumerate(plain.program.registers) if r.initial
        }
        for position, register in enumerate(offloaded.program.registers):
            if register.initial:
                np.testing.assert_array_equal(
                    offloaded.arena.views[position][0],
                    plain.arena.views[positions.pop(register.name)][0],
                )
        assert not positions


def test_a_checkpoint_is_the_same_wherever_the_state_lies() -> None:
    plan, _, actors = planned(KINDS[0], "fp32")
    elsewhere = compile_plan(on_host(plan))
    plain, offloaded = (manifest_of(a, model="m", plan_digest="d") for a in (actors, elsewhere))
    assert plain == offloaded


@cache
def in_bf16(layers: int, **pins: object) -> tuple[Plan, Graph]:
    model = small("gpt", "bf16")
    model = replace(model, config={**model.config, "layers": layers})
    request = offload_request(parse_cluster("a100-sxm-80gb:4x1"), offload="optimizer", **pins)
    plan = search(dataclasses.replace(request, model=model))
    return plan, plan.graph


@pytest.mark.parametrize(
    ("layers", "pins"),
    [
        (11, {"dp": 1, "tp": 1, "pp": 4, "micro_batch": 2, "schedule": "1f1b"}),
        (4, {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 2, "zero": 1}),
        (4, {"dp": 4, "tp": 1, "pp": 1, "micro_batch": 2, "zero": 3}),
    ],
)
def test_sixteen_bits_leave_the_variables_on_the_host_too(
    layers: int, pins: dict[str, object]
) -> None:
    plan, _ = in_bf16(layers, **pins)
    actors = compile_plan(plan)
    said = plan_memory(plan)
    for now, was, program in zip(
        said, plan_memory(replace(plan, offload="none")), actors.programs, strict=True
    ):
        laid_out = program.memory_bytes_by_kind
        assert {kind: now.by_kind.get(kind, 0) for kind in laid_out} == laid_out
        assert now.arena_bytes == program.memory_bytes
        assert now.host_bytes == program.host_bytes
        variables = [r for r in program.registers if r.initial]
        assert {r.memory_kind for r in variables} == {HOST}
        stored = was.optimizer_bytes + was.parameter_bytes - now.parameter_bytes
        assert now.host_bytes == stored == sum(r.slot_bytes for r in variables)


def test_a_variable_that_is_cast_otherwise_than_stored_stays_on_the_device() -> None:
    plan, graph = in_bf16(4, dp=2, tp=2, pp=1, micro_batch=2, zero=1)
    name = next(op.name for op in graph.ops if op.kind == "cast" and op.block == "h.0")
    inner = name.removeprefix("h.0.")
    variants = []
    for variant in plan.variants:
        signatures = dict(variant.signatures)
        if variant.template == graph.templates["h.0"]:
            assert "S(" in signatures[inner].inputs[0]
            signatures[inner] = OpSignature(inputs=("(B, B)",), outputs=("(B, B)",))
        variants.append(replace(variant, signatures=signatures))
    plan = replace(plan, variants=tuple(variants))
    (said,) = plan_memory(plan)
    (program,) = compile_plan(plan).programs
    assert said.arena_bytes == program.memory_bytes
    assert said.host_bytes == program.host_bytes
    kinds = {r.name: r.memory_kind for r in program.registers if r.initial}
    assert kinds[name.removesuffix(".cast")] == "parameter"
    assert Counter(kinds.values()) == {HOST: len(kinds) - 4, "parameter": 4}  # of every block


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_the_planner_adds_for_copies_is_what_the_simulator_adds(precision: str) -> None:
    pins = {"dp": 1, "tp": 1, "pp": 2, "micro_batch": 4, "schedule": "1f1b", "recompute": "none"}
    request = dataclasses.replace(offload_request(GPUS, **pins), model=small("gpt", precision))
    plans = [
        search(dataclasses.replace(request, pins=Pins(**pins, offload=where)))  # type: ignore[arg-type]
        for where in ("none", "optimizer")
    ]
    objectives = [plan.evidence.objective_s for plan in plans if plan.evidence]
    times = [predict(plan).step_time_ns / 1e9 for plan in plans]
    assert objectives[1] - objectives[0] == pytest.approx(times[1] - times[0], rel=0.02)


def on_gpus(index: int) -> tuple[Plan, Graph]:
    plan, graph, _ = planned(index, "fp32")
    return replace(plan, cluster=parse_cluster("a100-sxm-80gb:4x1")), graph


def test_an_update_takes_its_copies_longer_and_nothing_else_does() -> None:
    plan, _ = on_gpus(next(index for index in KINDS if CASES[index].name == "dp x tp"))
    host = plan.cluster.host
    assert host is not None
    plain, offloaded = (compile_plan(p) for p in (plan, on_host(plan)))
    longer = 0
    for program, before, after in zip(
        offloaded.programs,
        durations(plain, plan.cluster),
        durations(offloaded, plan.cluster),
        strict=True,
    ):
        for actor, old, new in zip(program.actors, before, after, strict=True):
            copies = 0
            if actor.kind in UPDATES:
                size = np.prod(program.registers[actor.state[0]].shape) * 4
                copies = int(state_copies_ns(size, 2, [host]))
                assert copies >= 4 * host.latency_ns
            assert new - old == copies
            longer += copies
    for fidelity in ("op", "stage"):
        slower, faster = (predict(p, fidelity=fidelity).step_time_ns for p in (on_host(plan), plan))
        assert slower - faster == pytest.approx(longer, rel=0.02)


def test_copies_take_latency_per_piece_and_bytes_both_ways() -> None:
    host = HostMemory(latency_ns=1000, bandwidth_bytes_per_s=1e9, source="made up")
    assert state_copies_ns(np.array([10**6]), 2, [host])[0] == 2 * (2 * 1000 + 2 * 10**6)
    large = state_copies_ns(np.array([PIECE_BYTES]), 2, [host])[0]
    assert large == 2 * (2 * 2 * 1000 + 2 * PIECE_BYTES)
    slow = HostMemory(latency_ns=0, bandwidth_bytes_per_s=1e8, source="made up")
    assert state_copies_ns(np.array([10**6]), 1, [host, slow])[0] == 2 * 10**7


def test_every_gpu_of_the_catalogue_knows_the_way_to_its_host_and_others_get_a_default() -> None:
    for name in ("v100-sxm-32gb", "a100-sxm-80gb", "h100-sxm-80gb", "gb200", "mi300x"):
        assert parse_cluster(f"{name}:1x1").host is not None
    pod = parse_cluster("tpu-v4:4x1")
    assert host_of(pod.groups[0], pod) == UNKNOWN


def tight_bytes(cluster: Cluster, share: float = 1.05) -> int:
    """Memory limit under which optimizer state must leave the device."""
    plan = search(
        offload_request(cluster, pp=1, micro_batch=1, recompute="full", offload="optimizer")
    )
    (memory,) = plan_memory(plan)
    return int(reserved_bytes(cluster) + share * (memory.arena_bytes + 8_000))


def test_it_is_the_last_resort_and_the_evidence_says_so() -> None:
    cluster = parse_cluster("a100-sxm-80gb:1x1")
    roomy = search(offload_request(cluster))
    assert roomy.offload == "none"
    limit, record = tight_bytes(cluster), SearchLog()
    plan = search(offload_request(cluster, limit), record=record)
    assert plan.offload == "optimizer"
    assert "offload" not in plan.pins
    assert plan.evidence is not None
    first = plan.evidence.alternatives[0]
    assert first["plan"] == "optimizer state on the devices"
    assert first["reason"].startswith("no plan fits the memory. Nearest: ")
    assert read_plan(to_json(plan)) == plan
    assert record.answer is not None
    (why,) = [
        explanation
        for explanation in explain(plan, record.answer)
        if explanation.choice == "offload"
    ]
    assert why.line.startswith("offload = optimizer: none exceeds memory by ")


def test_a_pin_keeps_it_from_the_host_and_the_answer_names_the_way_out() -> None:
    cluster = parse_cluster("a100-sxm-80gb:1x1")
    with pytest.raises(InfeasibleError, match="It fits with --offload optimizer") as caught:
        search(offload_request(cluster, tight_bytes(cluster), offload="none"))
    assert "no plan fits the memory. Nearest: " in str(caught.value)
    with pytest.raises(InfeasibleError, match="memory with optimizer state on the host"):
        search(
            offload_request(cluster, tight_bytes(cluster, 0.8), offload="optimizer"), remedies=False
        )


def test_host_memory_that_is_too_small_is_named() -> None:
    cluster = parse_cluster("a100-sxm-80gb:1x1")
    assert cluster.host is not None
    host = msgspec.structs.replace(cluster.host, memory_bytes=50_000)
    small_host = replace(cluster, host=host)
    with pytest.raises(InfeasibleError, match="host memory: optimizer state takes at least"):
        search(offload_request(small_host, offload="optimizer"), remedies=False)
    by_hand = replace(search(offload_request(cluster)), cluster=small_host, offload="optimizer")
    short = host_shortage(by_hand)
    assert "a device on stage 0, a node has 48.8 KiB for each: " in str(short)


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(PlanError, match="--offload cpu: choose none or optimizer"):
        search(offload_request(GPUS, offload="cpu"))
    plan, _, _ = planned(KINDS[0], "fp32")
    with pytest.raises(PlanError, match="offload is `cpu`; one of none, optimizer"):
        compile_plan(replace(plan, offload="cpu"))
