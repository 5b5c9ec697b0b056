"""Muon: as PyTorch has it, and the same on one device as on many."""

import numpy as np
import pytest

from millrace.executor.data import open_dataset
from millrace.executor.kernels import KernelContext, make_kernel
from millrace.executor.kernels.context import whole_shard
from millrace.executor.reference import run_reference
from millrace.models.ops import op_flops
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.training.optimizer_updates import hidden_matrices
from millrace.models.zoo.catalogue import build, build_training
from millrace.planner.clusters import local_cluster
from millrace.planner.compile import compile_plan
from tests.executor.kernel_calls import call, run_state
from tests.extras import optional
from tests.parallel_runs import assert_trains_as_one_device
from tests.plan_requests import plan_of
from tests.small_models import small

TRAINING = TrainingSpec(optimizer="muon", momentum=0.9, learning_rate=1e-2, clip_norm=0.5)
STEPS = 3


def orthogonal(matrices: np.ndarray, labels: str, rows: int) -> np.ndarray:
    shards = [whole_shard(matrices.shape, str(matrices.dtype))]
    attributes = {"rows": rows, "rounds": 5}
    (matrix,) = call("newton_schulz", labels, [matrices], shards, attributes=attributes)
    return matrix


def test_singular_values_come_near_one_and_vectors_stay() -> None:
    rng = np.random.default_rng(0)
    for shape, rows, columns in (((3, 8, 20), 8, 20), ((2, 24, 2, 5), 24, 10)):
        matrices = rng.standard_normal(shape)
        labels = "e k! n! -> e k! n!" if len(shape) == 3 else "e k! h! d! -> e k! h! d!"
        turned = orthogonal(matrices, labels, 1).reshape(-1, rows, columns)
        for before, after in zip(matrices.reshape(-1, rows, columns), turned, strict=True):
            u, _, v = np.linalg.svd(before, full_matrices=False)
            values = u.T @ after @ v.T
            assert np.all(np.abs(np.diag(values) - 0.95) < 0.3)
            assert np.allclose(values, np.diag(np.diag(values)), atol=1e-10)


def test_flops_are_three_products_a_round() -> None:
    attributes = {"rows": 1, "rounds": 5}
    flops = op_flops(
        "newton_schulz", "e k! n! -> e k! n!", [(3, 8, 20)], [(3, 8, 20)], attributes=attributes
    )
    assert flops == 5 * 3 * (2 * 8 * 8 * 20 + 2 * 8 * 8 * 8 + 2 * 8 * 8 * 20)


def test_a_step_is_that_of_pytorch() -> None:
    """Its products are in bfloat16, ours in float32."""
    torch = optional("torch")
    rng = np.random.default_rng(1)
    w = rng.standard_normal((16, 40)).astype("float32")
    gradients = [rng.standard_normal(w.shape).astype("float32") for _ in range(3)]
    start, parameter = w, torch.nn.Parameter(torch.tensor(w))
    optimizer = torch.optim.Muon(
        [parameter], lr=0.1, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    shard, scalar = whole_shard(w.shape, "float32"), whole_shard((), "float32")
    totals = np.array([0, 1, 1], "float32")
    direction, shards = np.empty_like(w), (shard, whole_shard((3,), "float32"))
    momentum = make_kernel(
        KernelContext(
            kind="momentum", name="direction", labels="k n, z! -> k n",
            attributes={"momentum": 0.9}, inputs=shards, outputs=shards[:1], run=run_state(),
            state=[np.zeros_like(w)],
        )
    )  # fmt: skip
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        momentum(0, [gradient, totals], [direction])
        (w,) = call(
            "muon", "k n, k n, z!, -> k n",
            [w, orthogonal(direction, "k! n! -> k! n!", 1), totals, np.array(0.1, "float32")],
            [shard], input_shards=[shard, *shards, scalar],
            attributes={"weight_decay": 0.1, "rate_factor": 0.2 * 40**0.5},
        )  # fmt: skip
    apart = np.linalg.norm(parameter.detach().numpy() - w) / np.linalg.norm(w - start)
    assert apart < 0.02


def test_hidden_matrices_are_those_between_layers() -> None:
    matrices = hidden_matrices(build(small("mixtral"), 2))
    of_layers = {name.split(".", 2)[-1] for name in matrices}
    assert {"attn.q.weight", "attn.out.weight", "experts.up.weight"} <= of_layers
    assert matrices["h.0.experts.up.weight"].batch == 1
    assert not any("tokens" in name or "logits" in name or "bias" in name for name in matrices)


CASES = [
    ("gpt", {"dp": 2, "zero": 1}),
    ("gpt", {"tp": 2}),
    ("gpt", {"dp": 2, "zero": 3}),
    ("gpt", {"pp": 2}),
    ("mixtral", {"dp": 2, "ep": 2}),
    ("gpt", {"dp": 2, "zero": 1, "offload": "optimizer"}),
]


@pytest.mark.parametrize(("name", "pins"), CASES, ids=str)
def test_many_devices_update_as_one(name: str, pins: dict[str, object]) -> None:
    spec: ModelSpec = small(name, "fp64")
    pins = {"dp": 1, "tp": 1, "pp": 1} | pins
    where = local_cluster(2, cores=2, memory_bytes=2**33)
    plan = plan_of(spec, where, 8, training=TRAINING, micro_batch=2, **pins)
    graph, actors = build_training(plan.model, plan.training, plan.batch), compile_plan(plan)
    alone = run_reference(
        build_training(spec, TRAINING, plan.batch),
        microbatches=plan.microbatches,
        steps=STEPS,
        dataset=open_dataset(None, spec, 0),
        keep_parameters=(STEPS,),
    )
    assert_trains_as_one_device(plan, graph, actors, alone, STEPS)
    kinds = {actor.kind for program in actors.programs for actor in program.actors}
    assert {"momentum", "newton_schulz", "muon", "adamw"} <= kinds
