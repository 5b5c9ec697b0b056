"""Roles are read off signatures, never declared."""

from msgspec.structs import replace

from models.graph import Graph
from models.spec import ModelSpec, TrainingSpec
from models.zoo.catalogue import build_training
from planner.clusters import local_cluster
from planner.mesh import Axis, Mesh
from planner.plan import BlockChoice, Chunk, OpSignature, Plan, Variant
from planner.roles import axis_roles, roles
from planner.search import Pins, SearchRequest, search

GPT = ModelSpec(
    name="tiny",
    family="gpt",
    config={
        "layers": 2,
        "hidden": 32,
        "heads": 4,
        "ffn_hidden": 128,
        "vocab": 64,
        "positions": 16,
    },
    seq_len=16,
)


def planned(**pins: object) -> tuple[Plan, Graph]:
    plan = search(
        SearchRequest(
            model=GPT,
            training=TrainingSpec(),
            cluster=local_cluster(2, cores=2, memory_bytes=2**33),
            global_batch=8,
            pins=Pins(**pins),  # type: ignore[arg-type]
        )
    )
    return plan, build_training(plan.model, plan.training, plan.batch)


def test_names_of_axes_say_nothing() -> None:
    plan, graph = planned(dp=2, tp=1, pp=1)
    renamed = replace(plan, mesh=Mesh(axes=(Axis(name="tp", size=2),)))
    assert axis_roles(renamed, graph) == (frozenset({"dp"}),)
    assert roles(renamed, graph)["dp"] == 2


def test_ops_that_disagree_leave_roles_open() -> None:
    by_batch, graph = planned(dp=2, tp=1, pp=1)
    by_heads, _ = planned(dp=1, tp=2, pp=1)
    places = {variant.template: i for i, variant in enumerate(by_batch.variants)}
    mixed = replace(
        by_batch,
        variants=(*by_batch.variants, *by_heads.variants),
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
    found = roles(mixed, graph)
    assert found["dp"] is None
    assert found["tp"] is None
    assert found["zero"] is None
    assert found["pp"] == 1


def test_an_axis_that_repeats_all_work_has_no_role() -> None:
    plan, graph = planned(dp=2, tp=1, pp=1)

    def whole(signature: OpSignature) -> OpSignature:
        return OpSignature(
            inputs=("B",) * len(signature.inputs), outputs=("B",) * len(signature.outputs)
        )

    variants = tuple(
        Variant(
            template=variant.template,
            signatures={name: whole(one) for name, one in variant.signatures.items()},
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
        "zero": 0,
        "sequence_parallel": False,
    }
