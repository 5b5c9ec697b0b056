"""The search as a whole: pins are kept, memory is kept, evidence is given, bytes repeat."""

import gc
from dataclasses import replace
from weakref import ref

import pytest

from millrace.models.graph import Graph, to_json
from millrace.models.spec import ModelSpec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.parallel_degrees import roles
from millrace.planner.plan import Plan, Prediction
from millrace.planner.search import Pins, Pure, SearchRequest, search
from millrace.planner.search.blocks import fork_join
from millrace.planner.search.search_log import SearchLog
from tests.plan_requests import NEAR, request_of
from tests.small_models import gpt_of

GPT = gpt_of(4, 32, 4, vocab=64, positions=16)
MLP = ModelSpec(
    name="tiny-mlp",
    family="mlp",
    config={"inputs": 64, "columns": 8, "hidden": 32, "layers": 4, "classes": 8},
)


def request(devices: int, *, model: ModelSpec = GPT, **fields: object) -> SearchRequest:
    return request_of(model, fields.pop("cluster", devices), **{"max_gap": NEAR, **fields})


def graph_of(plan: Plan) -> Graph:
    return build_training(plan.model, plan.training, plan.batch)


@pytest.mark.parametrize(
    ("devices", "pins", "shown"),
    [
        (4, {"dp": 4, "tp": 1, "pp": 1}, {"dp": 4, "tp": 1, "pp": 1, "cp": 1}),
        (4, {"dp": 1, "tp": 4, "pp": 1}, {"dp": 1, "tp": 4, "pp": 1, "cp": 1}),
        (4, {"dp": 2, "tp": 2, "pp": 1}, {"dp": 2, "tp": 2}),
        (2, {"pp": 2}, {"dp": 1, "tp": 1, "pp": 2}),
        (8, {"dp": 2, "tp": 2, "pp": 2}, {"dp": 2, "tp": 2, "pp": 2}),
        (2, {"cp": 2, "dp": 1, "tp": 1, "pp": 1}, {"cp": 2, "dp": 1}),
        (2, {"cp": 2, "dp": 1, "pp": 1, "ring": True}, {"cp": 2, "ring": True}),
        (2, {"cp": 2, "dp": 1, "pp": 1, "ring": False}, {"cp": 2, "ring": False}),
        (2, {"tp": 2, "sequence_parallel": True}, {"tp": 2, "sequence_parallel": True}),
        (2, {"tp": 2, "sequence_parallel": False}, {"tp": 2, "sequence_parallel": False}),
        *((4, {"dp": 4, "tp": 1, "pp": 1, "zero": z}, {"zero": z, "dp": 4}) for z in range(4)),
    ],
)
def test_a_plan_shows_the_roles_that_were_pinned(
    devices: int, pins: dict[str, object], shown: dict[str, object]
) -> None:
    plan = search(request(devices, pins=Pins(**pins)))  # type: ignore[arg-type]
    plan_roles = roles(plan, graph_of(plan))
    assert {name: plan_roles[name] for name in shown} == shown
    assert plan.pins == pins
    assert plan.ranks == devices


def test_axes_are_named_after_their_roles() -> None:
    plan = search(request(4, pins=Pins(dp=2, tp=2, pp=1)))
    assert plan.mesh.names == ("dp", "tp")


def test_pinned_experts_are_sent_their_tokens() -> None:
    model = model_spec("mixtral-demo")
    pinned = search(request(4, model=model, pins=Pins(dp=4, ep=4)), None)
    assert routed(pinned) == {("S(0)", "S(1)")}, "split by sample, all of the places of its tokens"


def routed(plan: Plan) -> set[tuple[str, str]]:
    """Splits of the tokens that go to experts, and of the experts' places that they fill."""
    signatures = [
        v.signatures["experts.dispatch"]
        for v in plan.variants
        if "experts.dispatch" in v.signatures
    ]
    return {(signature.inputs[0], signature.outputs[0]) for signature in signatures}


def test_micro_batch_schedule_and_interleave_are_kept() -> None:
    pins = Pins(dp=1, tp=1, pp=2, micro_batch=2, schedule="interleaved-1f1b", interleave=2)
    plan = search(request(2, pins=pins))
    assert (plan.microbatches, plan.batch) == (4, 2)
    assert (plan.schedule, plan.interleave, len(plan.chunks)) == ("interleaved-1f1b", 2, 4)
    assert [chunk.stage for chunk in plan.chunks] == [0, 1, 0, 1]


def test_the_other_family_plans_as_well() -> None:
    plan = search(request(2, model=MLP, pins=Pins(dp=1, tp=2, pp=1)))
    assert roles(plan, graph_of(plan))["tp"] == 2


def test_equal_requests_give_equal_bytes_and_evidence_why_others_lost() -> None:
    told: list[str] = []
    asked = request(4, seed=3, max_gap=0.01)
    plan = search(asked, progress=told.append)
    assert to_json(plan) == to_json(search(asked))
    evidence = plan.evidence
    assert evidence is not None
    assert 0 < evidence.bound_s <= evidence.objective_s
    assert evidence.gap == pytest.approx(evidence.objective_s / evidence.bound_s - 1)
    assert 0 < evidence.pruned < evidence.candidates
    assert evidence.alternatives
    assert all(other["reason"] and other["plan"] for other in evidence.alternatives)
    assert len(evidence.alternatives) == 5
    assert any("bound" in line for line in told)
    assert any("are open" in line for line in told)


def test_the_simulator_that_is_handed_in_ranks_the_best_few() -> None:
    seen: list[Plan] = []

    def backwards(plan: Plan) -> Prediction:
        """A simulator that likes best what the planner likes least."""
        seen.append(plan)
        return Prediction(step_time_s=1.0 / len(seen), memory_bytes_max=1)

    plan = search(request(4, pins=Pins(pp=1)), simulate=backwards)
    assert len(seen) > 1
    assert plan.figures["step_time_s"] == 1.0 / len(seen)
    assert plan.digest() == seen[-1].digest()


def test_plans_that_seemed_slower_are_simulated_where_the_best_are_late() -> None:
    """The cost leaves out what holds computation back: a free plan is no slower than a pinned."""
    cheapest = search(request(4)).stages
    other = 2 if cheapest == 1 else 1

    def late(plan: Plan) -> Prediction:
        return Prediction(step_time_s=2.0 if plan.stages == cheapest else 1.0, memory_bytes_max=1)

    free, pinned = search(request(4), late), search(request(4, pins=Pins(pp=other)), late)
    assert free.figures["step_time_s"] == pinned.figures["step_time_s"] == 1.0


def test_two_plans_simulated_at_once_are_ranked_as_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A process of a test may have other threads, beside which nothing forks by itself.
    monkeypatch.setattr(fork_join, "can_fork", lambda: True)

    def figures(plan: Plan) -> Prediction:
        return Prediction(step_time_s=plan.stages + plan.microbatches, memory_bytes_max=1)

    asked = request(2, pins=Pins(tp=1))
    assert to_json(search(asked, Pure(figures))) == to_json(search(asked, figures))


def test_a_plan_that_does_not_fit_is_not_simulated() -> None:
    free = search(request(2, pins=Pins(dp=2, tp=1, pp=1, micro_batch=4)))
    limit = memory_of(free) * 85 // 100
    simulated: list[Plan] = []

    def simulator(plan: Plan) -> Prediction:
        simulated.append(plan)
        return Prediction(step_time_s=1.0, memory_bytes_max=memory_of(plan))

    record = SearchLog()
    asked = request(2, pins=Pins(dp=2, tp=1, micro_batch=4), memory_limit_bytes=limit)
    plan = search(asked, simulate=simulator, record=record)
    assert simulated
    assert all(memory_of(simulated_plan) <= limit for simulated_plan in simulated)
    assert plan.figures["step_time_s"] == 1.0
    assert all(
        compared.laid_out_bytes <= limit for compared in record.compared if not compared.refused
    )


def memory_of(plan: Plan) -> int:
    return max(program.memory_bytes for program in compile_plan(plan).programs)


def test_a_plan_stays_within_the_memory_limit_once_compiled() -> None:
    free = search(request(2, pins=Pins(dp=2, tp=1, pp=1, micro_batch=4)))
    limit = memory_of(free) * 85 // 100
    asked = request(2, pins=Pins(dp=2, tp=1, pp=1, micro_batch=4), memory_limit_bytes=limit)
    plan = search(asked)
    assert memory_of(plan) <= limit
    assert plan.memory_limit_bytes == limit


def test_what_does_not_fit_names_the_limit_the_bytes_and_the_nearest_plan() -> None:
    with pytest.raises(InfeasibleError) as caught:
        search(request(2, memory_limit_bytes=100_000))
    sentence = str(caught.value)
    assert "97.7 KiB can be laid out" in sentence
    assert "too few" in sentence
    assert "Nearest:" in sentence


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="global batch of 6"):
        search(request(4, global_batch=6, pins=Pins(dp=4, tp=1, pp=1)))


@pytest.mark.parametrize(
    "fields", [{"global_batch": 0}, {"max_gap": -1.0}, {"memory_limit_bytes": 0}]
)
def test_malformed_requests_cannot_be_understood(fields: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        request(2, **fields)


def test_ninety_six_layers_on_a_thousand_devices_can_be_expressed() -> None:
    model = ModelSpec(
        name="deep",
        family="gpt",
        config={**GPT.config, "layers": 96},
        seq_len=16,
    )
    cluster = parse_cluster("a100-sxm-80gb:8x128")
    asked = request(
        1,
        model=model,
        cluster=cluster,
        global_batch=64,
        pins=Pins(dp=16, tp=4, pp=16, micro_batch=1, schedule="1f1b"),
    )
    plan = search(asked)
    assert plan.ranks == 1024
    assert sum(len(chunk.blocks) for chunk in plan.chunks) == 98
    assert len(plan.variants) == 3


def test_a_little_less_memory_makes_a_plan_a_little_slower() -> None:
    config = dict(GPT.config) | {"layers": 24, "hidden": 2048, "heads": 16, "ffn_hidden": 8192}
    config |= {"vocab": 32768, "positions": 2048}
    model = ModelSpec(name="gpt", family="gpt", config=config, seq_len=2048, precision="bf16")
    pins = Pins(dp=1, tp=1, pp=8, cp=1, micro_batch=4, schedule="zb-v", interleave=2)
    on = parse_cluster("a100-sxm-80gb:8x1")
    steps_s = []
    for limit in (20, 17):  # at 17 GiB the first division that has room is 15 % slower
        asked = request(
            8,
            model=model,
            cluster=on,
            global_batch=64,
            max_gap=0.01,
            pins=pins,
            memory_limit_bytes=limit * 2**30,
        )
        evidence = search(asked, remedies=False).evidence
        assert evidence is not None
        steps_s.append(evidence.objective_s)
    assert steps_s[1] < 1.02 * steps_s[0]


def test_a_plan_alone_is_the_plan_that_a_whole_search_finds_of_the_same_pins() -> None:
    pins = Pins(dp=2, tp=2, pp=2, cp=1, micro_batch=2, schedule="1f1b", recompute="none", zero=1)
    asked = request(8, model=GPT, cluster=parse_cluster("a100-sxm-80gb:8x1"), pins=pins)
    proven, alone = (
        search(replace(asked, plan_only=only), remedies=False) for only in (False, True)
    )
    assert (alone.chunks, alone.variants) == (proven.chunks, proven.variants)
    assert alone.evidence is not None
    assert alone.evidence.alternatives == ()


def test_what_a_search_made_is_freed_with_its_record() -> None:
    record = SearchLog()
    gc.disable()  # without cycles nothing is left for it
    try:
        search(request(2, pins=Pins(dp=2, tp=1, pp=1)), record=record, remedies=False)
        assert record.answer is not None
        evaluator = ref(record.answer.evaluator)
        del record
        assert evaluator() is None
    finally:
        gc.enable()
