"""The memory estimate against what the compiler lays out, and its parts."""

import pytest

from models.graph import Graph
from models.spec import ModelSpec, TrainingSpec
from models.zoo.catalogue import build_training
from planner.boxing import boxing_path
from planner.clusters import local_cluster
from planner.compile import compile_plan
from planner.memory import boxing_places, plan_memory
from planner.plan import Plan
from planner.sbp import format_nd_sbp, parse_nd_sbp
from planner.search import Pins, SearchRequest, search

GPT = ModelSpec(
    name="small",
    family="gpt",
    config={
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "ffn_hidden": 256,
        "vocab": 128,
        "positions": 32,
    },
    seq_len=32,
)


def planned(devices: int, **pins: object) -> tuple[Plan, Graph]:
    plan = search(
        SearchRequest(
            model=GPT,
            training=TrainingSpec(),
            cluster=local_cluster(devices, cores=2, memory_bytes=2**33),
            global_batch=16,
            pins=Pins(**pins),  # type: ignore[arg-type]
        )
    )
    return plan, build_training(plan.model, plan.training, plan.batch)


@pytest.mark.parametrize(
    ("devices", "pins"),
    [
        (2, {"dp": 2, "tp": 1, "pp": 1}),
        (2, {"dp": 1, "tp": 2, "pp": 1}),
        (4, {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 2}),
        (2, {"dp": 2, "tp": 1, "pp": 1, "zero": 3, "micro_batch": 2}),
        (2, {"dp": 1, "tp": 1, "pp": 2, "micro_batch": 2, "schedule": "1f1b"}),
        (4, {"dp": 1, "tp": 1, "pp": 4, "micro_batch": 1, "schedule": "1f1b"}),
    ],
)
def test_the_estimate_is_near_what_the_compiler_lays_out(
    devices: int, pins: dict[str, object]
) -> None:
    plan, graph = planned(devices, **pins)
    compiled = [program.memory_bytes for program in compile_plan(plan, graph).programs]
    for stage, actual in zip(plan_memory(plan, graph), compiled, strict=True):
        assert stage.total_bytes == pytest.approx(actual, rel=0.25)


def test_storage_split_over_replicas_divides_weights_and_optimizer() -> None:
    whole, _ = plan_memory(*planned(2, dp=2, tp=1, pp=1, zero=0)), None
    split = plan_memory(*planned(2, dp=2, tp=1, pp=1, zero=1))
    assert split[0].optimizer_bytes == whole[0].optimizer_bytes // 2
    assert split[0].parameter_bytes == whole[0].parameter_bytes // 2
    assert whole[0].optimizer_bytes == 2 * whole[0].parameter_bytes


def test_earlier_stages_keep_more_microbatches() -> None:
    plan, graph = planned(2, dp=1, tp=1, pp=2, micro_batch=2, schedule="1f1b")
    first, last = plan_memory(plan, graph)
    assert first.activation_bytes > last.activation_bytes


@pytest.mark.parametrize(
    ("source", "target", "keeps_source", "keeps_target", "expected"),
    [
        ("P(sum)", "B", False, False, ["B", "P(sum)"]),
        ("P(sum)", "B", False, True, ["P(sum)"]),
        ("P(sum)", "S(0)", True, False, ["S(0)"]),
        ("B", "S(0)", False, False, []),
        ("B", "S(0)", True, False, ["S(0)"]),
        ("B", "B", True, False, []),
    ],
)
def test_boxing_adds_the_buffers_that_its_ends_do_not_have(
    source: str, target: str, keeps_source: bool, keeps_target: bool, expected: list[str]
) -> None:
    path = boxing_path(parse_nd_sbp(source), parse_nd_sbp(target), (2,), (4, 4))
    places = boxing_places(path, keeps_source=keeps_source, keeps_target=keeps_target)
    assert [format_nd_sbp(place) for place in places] == expected
