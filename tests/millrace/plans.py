"""A plan by hand, with enough in it to be drawn."""

from models.spec import TrainingSpec
from models.zoo.catalogue import model_spec
from planner.cluster import Cluster
from planner.clusters import local_cluster
from planner.mesh import Axis, Mesh
from planner.plan import BlockChoice, Chunk, Evidence, OpSignature, Plan, Variant


def cluster() -> Cluster:
    return local_cluster(4, cores=2, memory_bytes=8 * 2**30)


def drawn_plan() -> Plan:
    """Four blocks of a GPT on two stages of two devices."""
    split = OpSignature(inputs=("B", "S(1)"), outputs=("S(2)",))
    return Plan(
        model=model_spec("gpt-demo"),
        training=TrainingSpec(),
        cluster=cluster(),
        global_batch=16,
        microbatches=4,
        mesh=Mesh(axes=(Axis(name="tp", size=2),)),
        stages=2,
        schedule="1f1b",
        interleave=1,
        variants=(
            Variant(template="embedding", signatures={}),
            Variant(template="h", signatures={"mlp.fc1.matmul": split}),
            Variant(template="head", signatures={}),
        ),
        chunks=(
            Chunk(stage=0, blocks=_blocks("embedding", "h.0", "h.1")),
            Chunk(stage=1, blocks=_blocks("h.2", "h.3", "head")),
        ),
        evidence=Evidence(objective_s=0.11, bound_s=0.1, gap=0.1, candidates=12, pruned=7),
    )


def _blocks(*names: str) -> tuple[BlockChoice, ...]:
    variants = {"embedding": 0, "h": 1, "head": 2}
    return tuple(
        BlockChoice(block=name, variant=variants[name.partition(".")[0]]) for name in names
    )
