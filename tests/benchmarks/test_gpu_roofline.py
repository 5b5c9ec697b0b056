"""Bounds of plans on one device, on small models."""

from collections.abc import Iterator

import pytest

from benchmarks.gpu.roofline import ops_of, roofline, works
from benchmarks.gpu.trained_models import planned
from millrace.models.ops import model_flops
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.costs import OpFirings
from millrace.planner.plan import FUSED, FUSIONS, UNFUSED, Plan
from tests.small_models import small

BATCH = 4
DEVICE = "h100-sxm-80gb"
FACTS = parse_cluster(f"{DEVICE}:1x1").device


@pytest.mark.parametrize("fusion", FUSIONS)
def test_products_are_those_of_the_model(fusion: str) -> None:
    plan = planned(small("resnet", "bf16"), BATCH, DEVICE, fusion)
    bounds = roofline(plan)
    assert bounds.flops == bounds.model_flops == model_flops(plan.graph)
    assert bounds.fusion == fusion


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize(
    ("name", "counted", "seen"), [("gpt", 1, (16 + 1) / 32), ("mistral", 5 / 16, 70 / 256)]
)
def test_a_mask_leaves_its_share_of_attention(
    name: str, counted: float, seen: float, fusion: str
) -> None:
    # A window of five lets 1 + 2 + 3 + 4 + 12 times 5 scores of 16 tokens through.
    plan = planned(small(name, "bf16"), BATCH, DEVICE, fusion)
    bounds = roofline(plan)
    attention_flops = sum(float(firing.flops[0]) for firing in attentions(plan))
    assert bounds.model_flops - bounds.flops == pytest.approx(attention_flops * (counted - seen))


def attentions(plan: Plan) -> Iterator[OpFirings]:
    (program,) = compile_plan(plan).programs
    for actor in program.actors:
        for firing in ops_of(actor, program):
            if firing.kind.startswith("attention"):
                yield firing


def test_a_product_takes_its_flops_or_its_bytes() -> None:
    plan = planned(small("gpt", "bf16"), BATCH, DEVICE, UNFUSED)
    products = (product for product in works(plan) if product.kinds == ("matmul",))
    work = next(product for product in products if product.name.startswith("h.0.mlp.fc1"))
    rows, inner, outer = BATCH * 16, 32, 64
    assert work.flops == 2 * rows * inner * outer
    assert work.bytes == 2 * (rows * inner + inner * outer + rows * outer)
    assert work.compute_s == pytest.approx(work.flops / FACTS.flops_per_s["bf16"])
    assert work.memory_s == pytest.approx(work.bytes / FACTS.memory_bandwidth_bytes_per_s)
    assert work.bound_s == work.memory_s
    assert work.reachable_s == pytest.approx(work.memory_s / FACTS.memory_efficiency)


@pytest.mark.parametrize("name", ["gpt", "llama", "resnet"])
def test_fusing_moves_less_and_bounds_follow(name: str) -> None:
    alone, fused = (
        roofline(planned(small(name, "bf16"), BATCH, DEVICE, fusion)) for fusion in (UNFUSED, FUSED)
    )
    assert fused.flops == alone.flops
    assert fused.bytes < alone.bytes
    assert fused.actors < alone.actors
    assert fused.bound_s < alone.bound_s
    for bounds in (alone, fused):
        assert bounds.bound_s <= bounds.reachable_s
        rounded = bounds.bound_s * (1 + 1e-9)
        assert rounded >= bounds.flops / FACTS.flops_per_s["bf16"]
        assert rounded >= bounds.bytes / FACTS.memory_bandwidth_bytes_per_s
        assert bounds.bound_mfu == pytest.approx(
            bounds.model_flops / (FACTS.flops_per_s["bf16"] * bounds.bound_s)
        )
        assert sum(row.bound_s for row in bounds.kinds) == pytest.approx(bounds.bound_s)
        assert sum(row.share for row in bounds.kinds) == pytest.approx(1)
