"""In float16 every gradient is multiplied by the loss scale exactly once, at its beginning."""

import numpy as np
from msgspec.structs import replace

from millrace.models.gradients import LOSS_SCALED
from millrace.models.graph import Graph, Op, Phase
from millrace.models.recompute import with_recompute
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import build_training, model_spec
from tests.models.gradient_cases import images, layers, losses, products
from tests.models.gradient_cases.classifier import Ending, classifier, plain, unchanged
from tests.models.oracle import random_values, run

SCALE = 8.0
BODIES = {**products.CASES, **layers.CASES, **images.CASES}
ENDINGS: dict[str, Ending] = {"plain": plain, **losses.ENDINGS}


def marked(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.attributes.get(LOSS_SCALED)]


def scaled(graph: Graph) -> Graph:
    """The graph with an op `scale` behind every op that is marked: what a kernel does by itself."""
    tensors = graph.tensors_by_name
    ops: list[Op] = []
    inner = []
    for op in graph.ops:
        if not op.attributes.get(LOSS_SCALED):
            ops.append(op)
            continue
        (output,) = op.outputs
        inner.append(replace(tensors[output], name=f"{output}.plain"))
        out = op.labels.split("->")[1].strip() or "()"
        ops.append(replace(op, outputs=(f"{output}.plain",)))
        ops.append(
            replace(
                op,
                name=f"{op.name}.scaled",
                kind="scale",
                inputs=(f"{output}.plain",),
                labels=f"{out} -> {out}".replace("-> ()", "-> "),
                attributes={"factor": SCALE},
            )
        )
    return replace(graph, ops=tuple(ops), tensors=(*graph.tensors, *inner))


def gradients(graph: Graph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = run(graph, values)
    updates = (op for op in graph.ops if op.kind == "adamw")
    return {op.inputs[0]: tensors[op.inputs[1]] for op in updates}


def scaled_otherwise(forward: Graph) -> list[str]:
    """Names of variables whose gradients are not scaled exactly once."""
    training = check_graph(training_graph(forward, TrainingSpec()))
    if not marked(training):
        return ["no op is marked"]
    values = random_values(forward, 3)
    plain_ones = gradients(training, values)
    return [
        name
        for name, gradient in gradients(scaled(training), values).items()
        if gradient.shape != plain_ones[name].shape
        or not np.allclose(gradient, SCALE * plain_ones[name], rtol=1e-9, atol=0)
    ]


def test_gradients_of_any_loss_and_any_layer_are_scaled_once() -> None:
    graphs = {name: classifier(unchanged, ending, "fp16") for name, ending in ENDINGS.items()}
    graphs |= {f"{name} layer": classifier(body, precision="fp16") for name, body in BODIES.items()}
    wrong = {name: scaled_otherwise(graph) for name, graph in graphs.items()}
    assert {name: variables for name, variables in wrong.items() if variables} == {}


def test_nothing_is_marked_in_other_precisions() -> None:
    marked_ones = [
        (name, precision)
        for name, ending in ENDINGS.items()
        for precision in ("fp64", "fp32", "tf32", "bf16")
        if marked(training_graph(classifier(unchanged, ending, precision), TrainingSpec()))
    ]
    assert marked_ones == []


def test_a_loss_times_a_gradient_is_not_scaled_again() -> None:
    training = training_graph(classifier(unchanged, losses.weighted, "fp16"), TrainingSpec())
    assert [op.kind for op in marked(training)] == ["fill"]


def test_a_gpt_in_fp16_begins_at_its_cross_entropy_and_recomputes_as_before() -> None:
    spec = model_spec("gpt2-small", precision="fp16")
    plain_graph = build_training(spec, TrainingSpec(), 1)
    (marked_op,) = marked(plain_graph)
    assert (marked_op.kind, marked_op.phase) == ("cross_entropy_grad", Phase.BACKWARD_INPUT)
    again = with_recompute(plain_graph, dict.fromkeys(plain_graph.blocks, "full"))
    assert [op.name for op in marked(again)] == [marked_op.name]
