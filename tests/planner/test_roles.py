"""Roles are read off signatures, never declared."""

import pytest
from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.mesh import Axis, Mesh
from millrace.planner.parallel_degrees import HYBRID, axis_roles, mixed_roles, roles
from millrace.planner.plan import BlockChoice, Chunk, OpSignature, Plan, Variant, recomputed
from tests.plan_requests import plan_of
from tests.small_models import gpt_of, small

GPT = gpt_of(2, 32, 4, vocab=64, positions=16)


def planned(
    model: ModelSpec = GPT, ranks: int = 2, where: Cluster | None = None, **pins: object
) -> tuple[Plan, Graph]:
    plan = plan_of(model, where or ranks, **pins)
    return plan, build_training(plan.model, plan.training, plan.batch)


def halves(first: Plan, second: Plan, graph: Graph) -> Plan:
    """Plan whose block `h.1` runs as in `second`, all else as in `first`."""
    places = {variant.template: i for i, variant in enumerate(first.variants)}
    return replace(
        first,
        variants=(*first.variants, *second.variants),
        chunks=(
            Chunk(
                stage=0,
                blocks=tuple(
                    BlockChoice(
                        block=block,
                        variant=places[graph.templates[block]] + 3 * (block == "h.1"),
                    )
                    for block in graph.blocks
                ),
            ),
        ),
    )


def test_names_of_axes_say_nothing() -> None:
    plan, graph = planned(dp=2, tp=1, pp=1)
    renamed = replace(plan, mesh=Mesh(axes=(Axis(name="tp", size=2),)))
    assert axis_roles(renamed, graph) == (frozenset({"dp"}),)
    assert roles(renamed, graph)["dp"] == 2


def test_ops_that_disagree_leave_roles_open() -> None:
    by_batch, graph = planned(dp=2, tp=1, pp=1)
    by_heads, _ = planned(dp=1, tp=2, pp=1)
    mixed = halves(by_batch, by_heads, graph)
    role_degrees = roles(mixed, graph)
    assert role_degrees["dp"] is None
    assert role_degrees["tp"] is None
    assert role_degrees["pp"] == 1
    assert mixed_roles(mixed, graph) == {"dp": [1, 2], "tp": [1, 2]}


def test_what_holds_on_a_mixed_axis_is_stated() -> None:
    """An axis that one block gives to cp and another to tp is still one of ring and of norms."""
    by_sequence, graph = planned(dp=1, tp=1, pp=1, cp=2, zero=1)
    by_heads, _ = planned(dp=1, tp=2, pp=1, sequence_parallel=True)
    role_degrees = roles(mixed := halves(by_sequence, by_heads, graph), graph)
    assert (role_degrees["tp"], role_degrees["cp"]) == (None, None)
    assert (role_degrees["dp"], role_degrees["zero"], role_degrees["ring"]) == (1, 1, False)
    assert mixed_roles(mixed, graph) == {"tp": [1, 2], "cp": [1, 2]}


def test_an_axis_that_repeats_all_work_has_no_role() -> None:
    plan, graph = planned(dp=2, tp=1, pp=1)

    def replicated(signature: OpSignature) -> OpSignature:
        return OpSignature(
            inputs=("B",) * len(signature.inputs), outputs=("B",) * len(signature.outputs)
        )

    variants = tuple(
        Variant(
            template=variant.template,
            signatures={
                name: replicated(signature) for name, signature in variant.signatures.items()
            },
        )
        for variant in plan.variants
    )
    idle = replace(plan, variants=variants)
    assert axis_roles(idle, graph) == (frozenset(),)
    assert roles(idle, graph) == {
        "dp": 1,
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
        "etp": 1,
        "zero": 0,
        "sequence_parallel": False,
        "ring": False,
        "recompute": "none",
    }


def test_recompute_is_what_the_repeated_blocks_agree_on() -> None:
    plan, _ = planned(dp=2, tp=1, pp=1)
    full = recomputed(plan, {"h.0": "full", "h.1": "full"})
    assert roles(full, full.graph)["recompute"] == "full"
    mixed = recomputed(full, {"h.1": "selective"})
    assert roles(mixed, mixed.graph)["recompute"] is None
    assert mixed_roles(mixed, mixed.graph) == {"recompute": ["full", "selective"]}
    ends = recomputed(plan, {"embedding": "full", "head": "full"})
    assert roles(ends, ends.graph)["recompute"] == "none"


def test_recomputing_changes_no_other_role() -> None:
    plan, graph = planned(small("mixtral"), 4, dp=4, tp=1, pp=1, ep=2, zero=1)
    full = recomputed(plan, dict.fromkeys(graph.blocks, "full"))
    assert roles(full, full.graph) == roles(plan, graph) | {"recompute": "full"}


def test_experts_share_the_axis_of_the_replicas() -> None:
    plan, graph = planned(small("mixtral"), 4, dp=4, tp=1, pp=1, ep=2, zero=0)
    assert axis_roles(plan, graph) == (frozenset({"dp"}), frozenset({"dp", "ep"}))
    role_degrees = roles(plan, graph)
    assert (role_degrees["dp"], role_degrees["tp"], role_degrees["ep"]) == (4, 1, 2)


@pytest.mark.parametrize(("pins", "degrees"), [
    ({"tp": 2, "etp": 1, "ep": 4}, (2, 4, 1)),
    ({"tp": 4, "etp": 2}, (4, 2, 2)),
    ({"tp": 2, "etp": 2, "ep": 2}, (2, 2, 2)),
    ({"tp": 2, "etp": 2, "ep": 1}, (2, 1, 2)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("framework", ["any", "megatron-core"])
def test_tensor_parallel_ranks_split_experts_or_hold_different_ones(
    pins: dict[str, int], degrees: tuple[int, int, int], framework: str
) -> None:
    asked = {"pp": 1, "cp": 1, "runs": capabilities(framework), **pins}
    plan, graph = planned(small("mixtral"), 4, **asked)
    role_degrees = roles(plan, graph)
    assert tuple(role_degrees[name] for name in ("tp", "ep", "etp")) == degrees


def test_expert_tensor_parallelism_is_a_part_of_tensor_parallelism() -> None:
    with pytest.raises(InfeasibleError, match="--tp is 2: choose a divisor of 2"):
        planned(small("mixtral"), 4, tp=2, etp=4)
    with pytest.raises(InfeasibleError, match="--etp 1: this model has no experts"):
        planned(small("gpt"), 4, etp=1)


def test_storage_of_split_experts_is_not_taken_for_zero() -> None:
    plan, graph = planned(small("mixtral"), 2, dp=2, tp=1, pp=1, ep=2, zero=0)
    assert roles(plan, graph)["zero"] == 0
    plan, graph = planned(small("mixtral"), 4, dp=4, tp=1, pp=1, ep=2, zero=1)
    assert roles(plan, graph)["zero"] == 1


def test_levels_that_differ_from_block_to_block_are_none_and_not_0() -> None:
    plans = {level: planned(dp=2, tp=1, pp=1, cp=1, zero=level) for level in (0, 1, 2, 3)}
    assert [roles(*pair)["zero"] for pair in plans.values()] == [0, 1, 2, 3]
    graph = plans[1][1]
    for level in (0, 2, 3):
        mixed = halves(plans[1][0], plans[level][0], graph)
        assert roles(mixed, graph)["zero"] is None
        assert mixed_roles(mixed, graph) == {"zero": sorted((1, level))}


def test_levels_that_differ_from_axis_to_axis_are_none_unless_one_holds_copies() -> None:
    def level(*stored: str, repeated: str = "B") -> int | str | None:
        plan, graph = planned(dp=2, tp=1, pp=1, zero=1)

        def both(name: str, text: str) -> str:
            pair: tuple[str, ...] = (text, text)
            if name.endswith(".weight"):
                pair = stored
            elif name.endswith(".weight.repeat"):
                pair = (repeated, "B")
            return f"({', '.join(pair)})"

        def stretched(name: str, signature: OpSignature) -> OpSignature:
            inputs, outputs = (
                [both(name, t) for t in side] for side in (signature.inputs, signature.outputs)
            )
            return replace(signature, inputs=tuple(inputs), outputs=tuple(outputs))

        variants = tuple(
            replace(
                variant,
                signatures={
                    n: stretched(n, signature) for n, signature in variant.signatures.items()
                },
            )
            for variant in plan.variants
        )
        axes = (Axis(name="dp", size=2), Axis(name="dp2", size=2))
        return roles(replace(plan, variants=variants, mesh=Mesh(axes=axes)), graph)["zero"]

    assert level("S(0)", "S(1)") == 1
    assert level("S(0)", "B") is None
    assert level("S(0)", "B", repeated="S(0)") == HYBRID
    assert level("S(0)", "S(1)", repeated="S(0)") is None


def test_zero_is_read_through_the_casts_of_a_narrow_precision() -> None:
    narrow = replace(GPT, precision="bf16")
    plan, graph = planned(
        narrow, dp=2, tp=1, pp=1, zero=0, where=parse_cluster("a100-sxm-80gb:2x1")
    )
    assert roles(plan, graph)["zero"] == 0
