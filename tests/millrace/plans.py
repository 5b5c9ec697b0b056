"""Plans by hand: one to be drawn, one that compiles and runs."""

from millrace.models.graph import GLOBAL_BLOCK, Graph, Op
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import local_cluster
from millrace.planner.mesh import Axis, Mesh
from millrace.planner.plan import BlockChoice, Chunk, Evidence, OpSignature, Plan, Variant
from millrace.planner.signatures import axis_signatures

# A block of each template.
BLOCKS = {"embedding": "embedding", "h": "h.0", "head": "head"}


def cluster() -> Cluster:
    """A cluster of four ranks on two cores."""
    return local_cluster(4, cores=2, memory_bytes=8 * 2**30)


def drawn_plan() -> Plan:
    """A plan of four GPT blocks on two stages of two devices that repeat all but one product."""
    split = OpSignature(inputs=("B", "S(1)"), outputs=("S(2)",))
    spec = model_spec("gpt-demo")
    graph = build_training(spec, TrainingSpec(), 4)
    variants = tuple(
        Variant(template=template, signatures=_replicated(graph, block))
        for template, block in BLOCKS.items()
    )
    variants[1].signatures["mlp.fc1.matmul"] = split
    evidence = Evidence(objective_s=0.11, bound_s=0.1, gap=0.1, candidates=12, pruned=7)
    return _plan(spec, "tp", variants, evidence)


def data_parallel_pipeline() -> Plan:
    """A plan of a tiny GPT on two stages of two devices that share each microbatch."""
    spec = ModelSpec(
        name="tiny",
        family="gpt",
        config={
            "layers": 4,
            "hidden": 16,
            "heads": 2,
            "ffn_hidden": 32,
            "vocab": 256,
            "positions": 8,
        },
        seq_len=8,
    )
    graph = build_training(spec, TrainingSpec(), 4)
    variants = tuple(
        Variant(template=template, signatures=_batch_split(graph, block))
        for template, block in BLOCKS.items()
    )
    return _plan(spec, "dp", variants, None)


def _plan(
    spec: ModelSpec, axis: str, variants: tuple[Variant, ...], evidence: Evidence | None
) -> Plan:
    return Plan(
        model=spec,
        training=TrainingSpec(),
        cluster=cluster(),
        global_batch=16,
        microbatches=4,
        mesh=Mesh(axes=(Axis(name=axis, size=2),)),
        stages=2,
        schedule="1f1b",
        interleave=1,
        variants=variants,
        chunks=(
            Chunk(stage=0, blocks=_blocks("embedding", "h.0", "h.1")),
            Chunk(stage=1, blocks=_blocks("h.2", "h.3", "head")),
        ),
        evidence=evidence,
    )


def _blocks(*names: str) -> tuple[BlockChoice, ...]:
    variants = {"embedding": 0, "h": 1, "head": 2}
    return tuple(
        BlockChoice(block=name, variant=variants[name.partition(".")[0]]) for name in names
    )


def _replicated(graph: Graph, block: str) -> dict[str, OpSignature]:
    return {
        op.name.removeprefix(f"{block}."): OpSignature(
            inputs=("B",) * len(op.inputs), outputs=("B",) * len(op.outputs)
        )
        for op in graph.ops
        if op.block == block
    }


def _batch_split(graph: Graph, block: str) -> dict[str, OpSignature]:
    """Split the batch wherever an op has one, leave gradients partial, all else whole."""
    return {
        op.name.removeprefix(f"{block}."): _signature(op)
        for op in graph.ops
        if op.block == block and op.block != GLOBAL_BLOCK
    }


def _signature(op: Op) -> OpSignature:
    signatures = axis_signatures(op.kind, op.labels)
    signature = next(
        (candidate for candidate in signatures if candidate.label == "b"), signatures[0]
    )
    if op.kind == "accumulate":
        signature = next(
            candidate for candidate in signatures if str(candidate.inputs[0]) == "P(sum)"
        )
    return OpSignature(
        inputs=tuple(str(sbp) for sbp in signature.inputs),
        outputs=tuple(str(sbp) for sbp in signature.outputs),
    )
