"""Reports of a search: layers, what decided each choice, and what would make room."""

from dataclasses import replace
from itertools import combinations, count

import pytest

from millrace.models.graph import to_json
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.formatting import limit_option, one_of, size
from millrace.planner.memory import NO_RESERVE, Reserve
from millrace.planner.parallel_degrees import ROLES, plan_roles
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest, search
from millrace.planner.search.evaluation import Pruned, Refused, SolvedPlan
from millrace.planner.search.placement_groups import candidates_of
from millrace.planner.search.ranking.outcomes import outcomes_of
from millrace.planner.search.report.alternatives import Rival, alternatives
from millrace.planner.search.report.breakdown import breakdown, busy_ns
from millrace.planner.search.report.explain import CHOICES, explain
from millrace.planner.search.report.host_offload import with_first_search_reason
from millrace.planner.search.report.neighbours import pipelines
from millrace.planner.search.report.suggestions import larger, least_memory_need, storage_bytes
from millrace.planner.search.request import MemoryLimitError, NoPlanError
from millrace.planner.search.search_log import SearchLog
from tests.plan_requests import NEAR, request_of
from tests.small_models import gpt_of

MODEL = gpt_of(2, 64, 4, vocab=64, positions=32)


def request(devices: int, **fields: object) -> SearchRequest:
    where = f"a100-sxm-80gb:{devices}x1"
    return request_of(**{"model": MODEL, "where": where, "max_gap": NEAR, **fields})


@pytest.fixture(scope="module")
def recorded() -> tuple[Plan, SearchLog]:
    ticks = count()
    record = SearchLog(clock=lambda: float(next(ticks)))
    return search(request(2, max_gap=0.01), record=record), record


def test_alternatives_differ_in_roles_from_the_plan_and_from_one_another() -> None:
    asked = request(4)
    record = SearchLog()
    plan = search(asked, record=record)
    assert record.answer is not None
    evaluator, chosen = record.answer.evaluator, record.answer.chosen
    solved = [
        outcome
        for outcome in outcomes_of(evaluator, list(candidates_of(asked, evaluator.graph))).values()
        if isinstance(outcome, SolvedPlan)
    ]
    rivals = [
        Rival(
            solved_plan=other,
            loss=other.division.step_ns / chosen.division.step_ns - 1,
            by="planner",
        )
        for other in solved
    ]
    rows = alternatives(evaluator, (chosen, plan), rivals, [], top=100)
    assert 8 < len(rows) < len(rivals) - 1
    roles = [{name: row["mixed"].get(name, [row[name]]) for name in ROLES} for row in rows]
    roles.append(plan_roles(plan, plan.graph))
    assert all(first != second for first, second in combinations(roles, 2))
    assert sorted(row["loss"] for row in rows) == [row["loss"] for row in rows]
    assert all(row["reason"].startswith(("loses", "saves")) for row in rows)
    assert alternatives(evaluator, (chosen, plan), rivals, [], top=2) == rows[:2]


def test_an_alternative_that_lacks_memory_says_how_much_and_one_not_solved_why() -> None:
    record = SearchLog()
    plan = search(request(4, max_gap=0.0), record=record)
    assert record.answer is not None
    answer = record.answer
    other = next(
        solved for solved in answer.solved_plans if solved.candidate.pipeline.stages != plan.stages
    )
    unlike = replace(other.candidate, batch=1)
    short = Refused(replace(other.candidate, batch=2), MemoryLimitError(3 << 30, 1 << 30))
    rows = alternatives(
        answer.evaluator,
        (answer.chosen, plan),
        [Rival(solved_plan=other, loss=-0.01, by="simulated", refused="no", over_bytes=1 << 20)],
        [Pruned(unlike, 1e9, "far off"), Pruned(unlike, 2e9, "far off"), short],
        top=4,
    )
    assert [row["over_bytes"] for row in rows] == [1 << 20, None, 2 << 30]
    assert rows[0]["reason"].startswith(
        "saves 1.0 % of the simulated step (exceeds memory by 1.0 MiB"
    )
    assert [row["reason"] for row in rows[1:]] == [
        "not solved: far off",
        "exceeds memory by 2.0 GiB",
    ]
    assert rows[1]["pp"] == unlike.pipeline.stages


def test_every_layer_says_what_it_proved_and_why_candidates_were_left(
    recorded: tuple[Plan, SearchLog],
) -> None:
    plan, record = recorded
    assert plan.evidence is not None
    layers = {layer["name"]: layer for layer in plan.evidence.layers}
    assert list(layers) == ["shapes", "blocks", "stages", "simulation", "proof"]
    shapes = layers["shapes"]
    left = sum(shapes["pruned"].values()) + sum(shapes["refused"].values())
    assert shapes["bounded"] == shapes["candidates"] == plan.evidence.candidates
    assert left < shapes["candidates"]
    assert sum(shapes["pruned"].values()) == plan.evidence.pruned
    for name in ("shapes", "blocks", "stages"):
        layer = layers[name]
        assert 0 < layer["bound_s"] <= layer["objective_s"]
        assert layer["gap"] == pytest.approx(layer["objective_s"] / layer["bound_s"] - 1)
    assert layers["blocks"]["programs"] > 0
    assert layers["blocks"]["options_max"] > 0
    assert layers["stages"]["divisions"] > 0
    assert record.answer is not None


def test_times_stand_beside_the_plan_and_never_in_it(recorded: tuple[Plan, SearchLog]) -> None:
    plan, record = recorded
    assert plan.evidence is not None
    timed = record.timed(plan.evidence.layers)
    assert all(layer["seconds"] > 0 for layer in timed)
    assert b"seconds" not in to_json(plan)
    assert to_json(plan) == to_json(search(request(2, max_gap=0.01)))


def test_time_counts_for_the_innermost_layer() -> None:
    ticks = iter([0.0, 1.0, 11.0, 111.0])
    record = SearchLog(clock=lambda: next(ticks))
    with record.layer("blocks"), record.layer("stages"):
        pass
    assert (record.seconds["blocks"], record.seconds["stages"]) == (1.0 + 100.0, 10.0)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-h1"])
def test_a_breakdown_sums_up_to_the_planners_step_time(schedule: str) -> None:
    record = SearchLog()
    pins = Pins(pp=2, schedule=schedule, recompute="full")
    search(request(4, pins=pins), record=record)
    assert record.answer is not None
    chosen = record.answer.chosen
    parts = breakdown(record.answer.evaluator, chosen)
    assert sum(parts.values()) == pytest.approx(chosen.division.step_ns)
    assert parts["recomputation"] > 0
    assert parts["sends between stages"] > 0
    assert parts["compute"] < busy_ns(parts) < chosen.division.step_ns


def test_every_choice_has_a_reason_and_alternatives_an_effect_or_what_they_lack(
    recorded: tuple[Plan, SearchLog],
) -> None:
    plan, record = recorded
    assert record.answer is not None
    reasons = explain(plan, record.answer)
    assert [name for name in CHOICES if name not in {reason.choice for reason in reasons}] == []
    assert all(reason.reason and reason.line for reason in reasons)
    (memory,) = (reason for reason in reasons if reason.choice == "memory")
    assert memory.effect is not None
    assert memory.effect <= 0
    effects = [reason for reason in reasons if reason.effect is not None and reason is not memory]
    assert len(effects) > 4
    for reason in effects:
        assert reason.parts_s is not None
        assert sum(reason.parts_s.values()) == pytest.approx(
            reason.effect * record.answer.chosen.division.step_ns / 1e9, rel=1e-6, abs=1e-12
        )


def test_more_tensor_parallelism_than_heads_names_them_and_offers_what_they_divide() -> None:
    with pytest.raises(InfeasibleError) as caught:
        search(request(8, pins=Pins(tp=8), global_batch=1))
    said = str(caught.value)
    assert (
        "attn.core` has no legal signature on a mesh of 8: as far as pins let it, an axis splits "
        in said
    )
    assert "1 sample of a microbatch, 32 tokens or 4 heads" in said
    assert said.endswith("There are plans with --tp 4 or without --tp")


def test_where_ops_disagree_no_number_is_given_for_the_micro_batch(
    recorded: tuple[Plan, SearchLog],
) -> None:
    answer = recorded[1].answer
    assert answer is not None
    candidate = answer.chosen.candidate
    uniform = pipelines(answer.evaluator, candidate, 2)
    mixed = pipelines(answer.evaluator, candidate, None)
    other = [
        int(neighbour.alternative) for neighbour in uniform if neighbour.choice == "micro_batch"
    ]
    assert other
    assert [
        (neighbour.value, neighbour.alternative)
        for neighbour in mixed
        if neighbour.choice == "micro_batch"
    ] == [("mixed", f"{2 * samples} samples on all ranks") for samples in other]


def test_an_alternative_that_does_not_fit_says_by_how_much_and_where() -> None:
    record = SearchLog()
    pins = Pins(dp=2, tp=1, pp=1, micro_batch=4, zero=0)
    free = search(request(2, pins=pins), record=record)
    assert record.answer is not None
    need = record.answer.chosen.division.memory_bytes
    tight = request(2, pins=pins)
    reserved = tight.limit_bytes - int(tight.usable_bytes * 1.05)
    limit = reserved + int(need * 0.9 * 1.05)
    plan = search(request(2, pins=pins, memory_limit_bytes=limit), record=record)
    assert plan.digest() != free.digest()
    lacking = [reason for reason in explain(plan, record.answer) if reason.over_bytes]
    assert lacking
    assert all("exceeds memory by" in reason.line for reason in lacking)
    assert all(reason.over_bytes and reason.over_bytes > 0 for reason in lacking)


def test_pinned_choices_are_said_to_be_pinned() -> None:
    record = SearchLog()
    plan = search(request(2, pins=Pins(dp=2, recompute="none")), record=record)
    assert record.answer is not None
    reasons = {reason.choice: reason.reason for reason in explain(plan, record.answer)}
    assert (reasons["dp"], reasons["recompute"]) == ("pinned", "pinned")


def big(layers: int) -> ModelSpec:
    config = {**MODEL.config, "layers": layers, "hidden": 1024, "ffn_hidden": 4096}
    return ModelSpec(name="big", family="gpt", config=config, seq_len=32)


def refused(asked: SearchRequest) -> str:
    with pytest.raises(InfeasibleError) as caught:
        search(asked)
    return str(caught.value)


def test_what_one_device_cannot_store_names_a_number_of_devices_that_can() -> None:
    model, limit = big(24), 2 * 2**30
    sentence = refused(request(1, model=model, memory_limit_bytes=limit))
    assert "weights and gradients, spread over 1 device" in sentence
    assert "iB too few" in sentence
    devices = int(sentence.split("It fits with ")[1].split(" devices")[0])
    search(request(devices, model=model, memory_limit_bytes=limit))


def test_a_memory_limit_that_would_do_is_named_and_does() -> None:
    pins = Pins(dp=1, tp=1, pp=1, offload="none")
    sentence = refused(request(1, model=big(4), pins=pins, memory_limit_bytes=1340 * 2**20))
    option = sentence.split("--memory-limit ")[1].split()[0].rstrip(".,)")
    unit = {"GiB": 2**30, "MiB": 2**20}[option[-3:]]
    limit = int(float(option[:-3]) * unit)
    search(request(1, model=big(4), pins=pins, memory_limit_bytes=limit))


def test_a_reserve_that_leaves_too_little_is_named_and_without_it_there_is_a_plan() -> None:
    pins = Pins(dp=1, tp=1, pp=1, offload="none")
    device_bytes = request(1).cluster.device.memory_bytes
    reserve = Reserve(size_bytes=device_bytes - 1340 * 2**20)
    question = request(1, model=big(4), pins=pins, reserve=reserve)
    assert question.limit_bytes == 1340 * 2**20
    assert "with --reserve 0 (which leaves 78.0 GiB)" in refused(question)
    plan = search(replace(question, reserve=NO_RESERVE))
    assert plan.memory_limit_bytes == device_bytes


def test_state_that_a_reserve_sends_to_the_host_is_told_of_it() -> None:
    pins = Pins(dp=1, tp=1, pp=1)
    device_bytes = request(1).cluster.device.memory_bytes
    reserve = Reserve(size_bytes=device_bytes - 1340 * 2**20)
    plan = search(request(1, model=big(4), pins=pins, reserve=reserve))
    assert plan.offload == "optimizer"
    assert plan.evidence is not None
    assert plan.evidence.alternatives[0]["remedy"] == "with --reserve 0 (which leaves 78.0 GiB)"
    limited = search(request(1, model=big(4), pins=pins, memory_limit_bytes=1340 * 2**20))
    assert limited.evidence is not None
    assert "remedy" not in limited.evidence.alternatives[0]


def test_a_pin_that_binds_is_named_with_one_that_does_not() -> None:
    free = least_memory_need(request(1, model=big(4)), build_training(big(4), TrainingSpec(), 8))
    assert free is not None
    record = SearchLog()
    search(request(1, model=big(4), pins=Pins(recompute="none", micro_batch=8)), record=record)
    sentence = refused(
        request(
            1,
            model=big(4),
            pins=Pins(recompute="none", micro_batch=8, offload="none"),
            memory_limit_bytes=int(free.needed_bytes * 1.01),
        )
    )
    assert "with --recompute full" in sentence or "without --micro-batch" in sentence


def test_a_batch_or_a_degree_that_does_not_divide_names_the_nearest_that_does() -> None:
    sentence = refused(request(4, global_batch=6, pins=Pins(dp=4, tp=1, pp=1)))
    assert "--global-batch 4" in sentence
    search(request(4, global_batch=4, pins=Pins(dp=4, tp=1, pp=1)))
    sentence = refused(request(4, pins=Pins(dp=3)))
    assert "--dp 2" in sentence


def test_larger_clusters_fill_the_node_before_they_add_nodes() -> None:
    def names(cluster: Cluster) -> list[str]:
        return [grown.name for grown, _ in zip(larger(cluster), range(4), strict=False)]

    assert names(parse_cluster("a100-sxm-80gb:2x1")) == [
        "a100-sxm-80gb:4x1",
        "a100-sxm-80gb:8x1",
        "a100-sxm-80gb:8x2",
        "a100-sxm-80gb:8x4",
    ]


def test_storage_is_weights_gradients_and_state() -> None:
    graph = build_training(MODEL, TrainingSpec(), 1)
    # fp32 weights and gradients, and the two moments of AdamW.
    assert storage_bytes(graph) == 16 * graph.parameter_count


def test_sizes_are_worded_for_people() -> None:
    assert (size(0), size(1536), size(-3 * 2**30)) == ("0 bytes", "1.5 KiB", "-3.0 GiB")
    assert limit_option(1_500_000) == "1.44MiB"
    assert one_of(["a"]) == "a"
    assert one_of(["a", "b", "c"]) == "a, b or c"


def test_plans_on_devices_that_are_not_refuted_bound_the_last_resort() -> None:
    plan = search(request(1))
    assert plan.evidence is not None
    for share in (0.5, float("inf")):
        error = NoPlanError("one", 2, 1, bound_ns=share * plan.evidence.objective_s * 1e9)
        evidence = with_first_search_reason(plan, error).evidence
        assert evidence is not None
        assert evidence.bound_s == min(plan.evidence.bound_s, share * plan.evidence.objective_s)
        assert evidence.gap == pytest.approx(evidence.objective_s / evidence.bound_s - 1)
