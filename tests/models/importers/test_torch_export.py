"""Modules imported through torch.export do what PyTorch does: loss, gradients, FLOPs, counts."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.executor.reference import Reference
from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Rate, with_batch
from millrace.models.importers.torch_export import (
    ExportedModel,
    import_file,
    import_module,
    import_program,
    spec,
)
from millrace.models.ops import model_flops
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import build
from tests.extras import optional
from tests.models.importers.torch_modules import F, Mixer, Transformer, example, nn, torch
from tests.models.torch_parity.machinery import without_windows
from tests.plan_requests import plan_of

optional("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = ("llama", "llama, eager, one key head", "mixtral", "gpt2", "bert", "t5", "vit", "resnet")
BY_HAND = (
    "convolutions",
    "convolutions in groups",
    "transformer",
    "mixer",
    "odds",
    "windows",
    "sinks",
)
ROTARY = ("llama, stretched", "gptj", "gemma2, eager")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Arrays:
    """A dataset that is one microbatch."""

    by_source: dict[str, Any]

    def read(self, source: Any, samples: Any) -> Any:
        return self.by_source[source.name][samples]


@cache
def imported(name: str) -> ExportedModel:
    return import_module(*example(name))


@cache
def trained(name: str) -> Graph:
    return training_graph(imported(name).graph, TrainingSpec())


def data_of(graph: Graph, inputs: Any) -> tuple[dict[str, Any], Any]:
    """The inputs and random targets by source, and the targets."""
    generator = np.random.default_rng(1)
    given: dict[str, Any] = {}
    targets = None
    for op in graph.ops:
        if op.kind != "input":
            continue
        source = str(op.attributes["source"])
        if source.endswith(("targets", "classes")):
            shape = graph.tensor(op.outputs[0]).shape
            targets = generator.integers(0, int(op.attributes["values"]), shape).astype(np.int32)
            given[source] = targets
        else:
            name = op.name.rpartition(".")[2]
            array = (inputs[name] if isinstance(inputs, dict) else inputs).numpy()
            given[source] = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    return given, targets


def torch_loss(module: Any, inputs: Any, targets: Any) -> Any:
    out = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    logits = getattr(out, "logits", out)
    ids = torch.tensor(targets).long().reshape(-1)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids, reduction="sum")


@pytest.mark.parametrize("name", [*FAMILIES, *BY_HAND, *ROTARY])
def test_loss_every_gradient_and_flops_equal_those_of_pytorch(name: str) -> None:
    module, inputs = example(name)
    model = imported(name)
    given, targets = data_of(model.graph, inputs)
    reference = Reference(trained(name), 1, Arrays(given), 0)
    assert model.values is not None
    for variable, value in model.values.items():
        np.copyto(reference.values[variable], value)
    reference.step()
    counter = optional("torch.utils.flop_counter").FlopCounterMode
    math = torch.nn.attention.SDPBackend.MATH
    with torch.nn.attention.sdpa_kernel(math), counter(display=False) as counted:
        loss = torch_loss(module, inputs, targets)
        forward = counted.get_total_flops()
        loss.backward()
    # Every expert of ours computes all its places, 4 / 2 as many as are taken.
    extra = 2 * 2 * (16 * 2) * 3 * 32 * 48 if name == "mixtral" else 0
    assert model_flops(without_windows(model.graph)) == forward + extra
    if name != "convolutions in groups":  # counted there as if every channel met every other
        assert model_flops(without_windows(trained(name))) == counted.get_total_flops() + 3 * extra
    assert reference.run.totals[0][0] == pytest.approx(loss.item(), rel=TOLERANCE)
    parameters = dict(module.named_parameters())
    gradients = reference.gradients()
    largest = max(float(p.grad.abs().max()) for p in parameters.values() if p.grad is not None)
    for variable, source in model.parameters.items():
        want = source.read(parameters[source.fqn].grad.numpy())
        # Some gradients are zero but for rounding (the bias of keys): these against the largest.
        allowed = TOLERANCE * np.abs(want).max() + 1e-7 * largest
        assert np.abs(gradients[variable] - want).max() <= allowed, variable


@pytest.mark.parametrize("name", [*FAMILIES, *BY_HAND])
def test_every_parameter_is_there_once_and_the_graph_is_well_formed(name: str) -> None:
    module, _ = example(name)
    graph = check_graph(imported(name).graph)
    assert graph.parameter_count == sum(p.numel() for p in module.parameters())
    assert {source.fqn for source in imported(name).parameters.values()} == {
        parameter for parameter, _ in module.named_parameters()
    }


def test_heads_are_dims_of_their_own_and_key_heads_are_not_copied() -> None:
    graph = imported("llama").graph
    attention = next(op for op in graph.ops if op.kind == "attention")
    assert attention.labels == "b t g r d!, b s! g d!, b s! g u! -> b t g r u!, b t g r"
    assert attention.attributes["causal"] is True
    query = next(op for op in graph.ops if op.name.endswith("layer.0.self_attn.q_proj.weight"))
    assert graph.tensor(query.outputs[0]).shape == (2, 2, 8, 32)
    assert not [op for op in graph.ops if op.kind in ("rearrange", "broadcast", "concat")]
    assert len([op for op in graph.ops if op.kind == "rotary"]) == 4


def test_positions_are_the_rotary_op_or_tables_where_no_base_gives_them() -> None:
    turned = [op for op in imported("gptj").graph.ops if op.kind == "rotary"]
    assert [(op.attributes["dims"], op.attributes["interleaved"]) for op in turned] == [
        (4, True)
    ] * 4
    kinds = [op.kind for op in imported("llama, stretched").graph.ops]
    assert "rotary" not in kinds
    assert kinds.count("constant") == 2


@pytest.mark.parametrize("pins", [{"dp": 2, "tp": 2}, {"pp": 2, "cp": 2}])
def test_an_imported_model_is_planned_like_any_other(pins: dict[str, int]) -> None:
    plan = plan_of(spec(imported("llama")), 4, 4, **pins)
    assert plan.model.graph == imported("llama").graph


def test_blocks_are_found_in_what_was_imported() -> None:
    assert imported("llama").graph.blocks == ("stem", "layer.0", "layer.1", "head")
    assert imported("gpt2").graph.blocks == ("stem", "layer.0", "layer.1", "head")


def test_experts_are_dispatched_to_and_their_label_is_that_of_experts() -> None:
    graph = imported("mixtral").graph
    assert len([op for op in graph.ops if op.kind == "top_k"]) == 2
    down = next(op for op in graph.ops if op.kind == "matmul" and "experts" in op.name)
    assert down.labels.startswith("e b c ")


def test_fused_projections_are_variables_of_their_own() -> None:
    model = imported("transformer")
    parts = [source for source in model.parameters.values() if source.fqn == "blocks.0.qkv.weight"]
    assert [(part.cuts[0].start, part.shape) for part in parts] == [
        (0, (4, 4, 16)),
        (1, (4, 4, 16)),
        (2, (4, 4, 16)),
    ]
    assert not [op for op in model.graph.ops if op.kind == "narrow" and "qkv" in op.name]


def test_masks_become_attributes() -> None:
    kinds = [op for op in imported("odds").graph.ops if "attention" in op.kind]
    assert [op.kind for op in kinds] == ["attention", "biased_attention"]
    assert kinds[0].attributes["causal"] is True
    assert kinds[0].attributes["window"] == 3


def test_another_batch_gives_the_same_graph_but_for_the_batch() -> None:
    module = example("transformer")[0]
    single, triple = (import_module(module, torch.zeros(n, 8, dtype=torch.long)) for n in (1, 3))
    assert single.graph.batch == 1
    assert with_batch(single.graph, 3) == triple.graph
    for tensor in triple.graph.tensors:
        if tensor.rate is Rate.MICROBATCH and tensor.batch_dim is not None:
            assert tensor.shape[tensor.batch_dim] == 3


def test_a_file_gives_the_graph_of_the_module(tmp_path: Path) -> None:
    module, inputs = example("transformer")
    model = imported("transformer")
    path = tmp_path / "transformer.pt2"
    torch.export.save(torch.export.export(module, (inputs,)), path)
    read = import_file(path, name="Transformer")
    assert read.graph == model.graph
    assert read.values is not None
    assert model.values is not None
    for variable, value in model.values.items():
        np.testing.assert_array_equal(read.values[variable], value)


def test_a_program_with_a_dynamic_batch_is_imported() -> None:
    module, inputs = example("transformer")
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(module, (inputs,), dynamic_shapes=shapes)
    assert import_program(program, name="Transformer").graph == imported("transformer").graph


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_a_program_may_return_more_than_predictions(name: str) -> None:
    module, inputs = example(name)
    module(inputs)  # transformers tells the exporter of its outputs where they are first made
    program = torch.export.export(module, (inputs,))
    graph = import_program(program, name=imported(name).graph.name).graph
    assert graph == imported(name).graph


def test_a_program_taken_down_to_core_ops_counts_the_same() -> None:
    module, inputs = example("resnet")
    module(inputs)
    model = import_program(torch.export.export(module, (inputs,)).run_decompositions())
    assert model_flops(model.graph) == model_flops(imported("resnet").graph)
    assert model.graph.parameter_count == imported("resnet").graph.parameter_count


def test_a_module_without_weights_is_imported_without_values() -> None:
    with torch.device("meta"):
        module, inputs = Transformer(), torch.zeros(2, 8, dtype=torch.long)
    model = import_module(module, inputs)
    assert model.values is None
    assert model.graph == imported("transformer").graph


def test_angles_of_a_module_on_meta_are_initialised() -> None:
    with torch.device("meta"):
        module, _ = example("llama")
    model = import_module(module, torch.zeros(2, 8, dtype=torch.long))
    assert model.values is None
    assert model.graph == imported("llama").graph


def test_angles_of_a_part_of_a_module_on_meta_are_initialised_too() -> None:
    class WrappedModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, _ = example("llama")

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(ids)

    with torch.device("meta"):
        module = WrappedModule()
    model = import_module(module, torch.zeros(2, 8, dtype=torch.long))
    kinds = [op.kind for op in model.graph.ops]
    assert kinds == [op.kind for op in imported("llama").graph.ops]


def test_the_specification_builds_the_graph_again() -> None:
    model = imported("gpt2")
    assert build(spec(model), 2) == model.graph
    assert spec(model).seq_len == 8


def test_dropout_is_imported_in_training_and_left_out_in_evaluation() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.25), nn.Linear(6, 3))
    inputs = torch.zeros(2, 4)
    trained, evaluated = (
        import_module(module.train(mode), inputs).graph.ops for mode in (True, False)
    )
    assert [op.attributes["rate"] for op in trained if op.kind == "dropout"] == [0.25]
    assert not [op for op in evaluated if op.kind == "dropout"]


def test_one_logit_per_sample_takes_the_logistic_loss() -> None:
    model = import_module(nn.Linear(4, 1), torch.zeros(2, 4), loss="logistic")
    check_graph(training_graph(model.graph, TrainingSpec()))
    assert [op.kind for op in model.graph.ops][-3:] == ["logistic_loss", "sum", "count_valid"]


class Columns(nn.Module):  # type: ignore[misc]
    """A table per column of ids, and one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in (10, 20, 30))
        self.head = nn.Linear(12, 1)

    def forward(self, ids: Any) -> Any:
        rows = [table(ids[:, column]) for column, table in enumerate(self.tables)]
        return self.head(torch.cat(rows, -1)).squeeze(-1)


def test_columns_of_ids_have_tables_of_their_own() -> None:
    torch.manual_seed(0)
    module, ids = Columns(), torch.randint(0, 10, (4, 3))
    model = import_module(module, ids, loss="logistic")
    graph = check_graph(training_graph(model.graph, TrainingSpec()))
    clicks = np.array([0, 1, 1, 0], np.int32)
    reference = Reference(graph, 1, Arrays({"tokens": ids.int().numpy(), "clicks": clicks}), 0)
    assert model.values is not None
    for variable, value in model.values.items():
        np.copyto(reference.values[variable], value)
    reference.step()
    wanted = torch.tensor(clicks).float()
    loss = F.binary_cross_entropy_with_logits(module(ids), wanted, reduction="sum")
    loss.backward()
    assert reference.run.totals[0][0] == pytest.approx(loss.item(), rel=TOLERANCE)
    gradients = reference.gradients()
    for variable, source in model.parameters.items():
        want = dict(module.named_parameters())[source.fqn].grad.numpy()
        np.testing.assert_allclose(gradients[variable], source.read(want), atol=1e-6)


class Unsupported(nn.Module):  # type: ignore[misc]
    """Four calls that no graph has, of three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ELU())
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Mish(), nn.Linear(4, 4), nn.ELU())

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)).cumsum(-1)


def test_all_unsupported_calls_are_named_at_once_with_where_they_stand() -> None:
    with pytest.raises(ModelError) as caught:
        import_module(Unsupported(), torch.zeros(2, 4))
    message = str(caught.value)
    for part in ("`elu` in `first.1`", "`mish`", "`cumsum` in `the module itself`"):
        assert part in message


def test_what_a_graph_cannot_say_is_refused_in_words() -> None:
    class Stopped(Mixer):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x + self.enter(x).detach().mean(-1, keepdim=True))

    class AcrossSamples(nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x - x.mean(0))

    with pytest.raises(ModelError, match="stops a gradient"):
        import_module(Stopped(), torch.zeros(2, 5, 6))
    with pytest.raises(ModelError, match="mean over samples"):
        import_module(AcrossSamples(4, 3), torch.zeros(2, 4))
    with pytest.raises(ModelError, match="there is no loss `mse`"):
        import_module(nn.Linear(4, 3), torch.zeros(2, 4), loss="mse")
    with pytest.raises(ModelError, match="there is no such file"):
        import_file("nowhere.pt2")
