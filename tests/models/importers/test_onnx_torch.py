"""Modules exported by torch.onnx and imported: loss and every gradient are those of PyTorch."""

import numpy as np
import pytest

from millrace.models.graph import with_batch
from millrace.models.importers.onnx import import_file
from tests.extras import optional
from tests.models.torch_parity.machinery import assert_same

torch = optional("torch")
optional("onnx", "onnx")
optional("onnxscript")

from tests.models.importers import onnx_networks as networks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

BATCH = 3


def exported(module, inputs, path, opset, *, open_batch=True, optimize=True):
    dim = torch.export.Dim("batch")
    program = torch.onnx.export(
        module,
        (inputs,),
        dynamo=True,
        opset_version=opset,
        optimize=optimize,
        dynamic_shapes=({0: dim},) if open_batch else None,
        verbose=False,
    )
    program.save(path, external_data=True)
    return path


def gradients_of(module, inputs, targets):
    logits = module(inputs)
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), reduction="sum"
    )
    module.zero_grad()
    loss.backward()
    return loss.item(), dict(module.named_parameters())


def theirs(parameter, value, parameters):
    """The gradient of the parameter that holds these values, perhaps transposed."""
    for candidate in parameters.values():
        for view in (lambda x: x, lambda x: x.T if x.ndim == 2 else x):
            try:
                seen = parameter.value(view(candidate.detach().numpy()))
            except (IndexError, ValueError):  # of another shape
                continue
            if np.array_equal(seen, value):
                return candidate, parameter.value(view(candidate.grad.numpy()))
    raise AssertionError("a variable holds no parameter's values")


def assert_same_as_torch(module, inputs, path, classes, source):
    imported = import_file(path)
    graph = with_batch(imported.graph, BATCH)
    logits = module(inputs)
    targets = torch.randint(0, classes, logits.shape[:-1])
    loss, parameters = gradients_of(module, inputs, targets)
    matches = {
        name: theirs(imported.parameters[name], value, parameters)
        for name, value in imported.values.items()
    }
    assert {id(parameter) for parameter, _ in matches.values()} == {*map(id, parameters.values())}
    gradients = {name: gradient for name, (_, gradient) in matches.items()}
    sources = [op.attributes["source"] for op in graph.ops if op.kind == "input"]
    (target,) = {"targets", "masked_targets", "classes"}.intersection(sources)
    data = {source: inputs.numpy(), target: targets.numpy().astype(np.int32)}
    assert_same(graph, imported.values, data, loss, gradients)
    return imported


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def randomised(module):
    """Give every parameter values of its own, so that each is known by them."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


# The exporter's optimizer folds a transposed tied table into a second tensor, and batch norms into
# convolutions: such models are exported without it.


@pytest.mark.parametrize(("opset", "tied"), [(18, True), (23, False)])
def test_a_gpt_has_the_gradients_of_pytorch(tmp_path, opset, tied):
    module = randomised(networks.Gpt(tied=tied))
    ids = torch.randint(0, 50, (BATCH, 8))
    path = exported(module, ids, tmp_path / "gpt.onnx", opset, optimize=not tied)
    imported = assert_same_as_torch(module, ids, path, 50, "tokens")
    kinds = [op.kind for op in imported.graph.ops]
    assert (kinds.count("attention"), kinds.count("softmax")) == (1, 0)
    assert (kinds.count("gelu"), kinds.count("tanh")) == (1, 0)
    assert "narrow" not in kinds or tied  # only of the table of positions


def test_rotary_grouped_and_gated_layers_have_the_gradients_of_pytorch(tmp_path):
    module = randomised(networks.OnnxLlama())
    ids = torch.randint(0, 40, (BATCH, 6))
    path = exported(module, ids, tmp_path / "llama.onnx", 18)
    imported = assert_same_as_torch(module, ids, path, 40, "tokens")
    (attention,) = (op for op in imported.graph.ops if op.kind == "attention")
    assert attention.labels.startswith("b t g r d!, b s! g d!")
    assert attention.attributes["causal"] is True
    assert sum(op.kind == "rms_norm" for op in imported.graph.ops) == 3


def test_layers_of_torch_have_its_gradients_with_a_weight_for_each_of_q_k_and_v(tmp_path):
    module = randomised(networks.Encoder()).eval()
    ids = torch.randint(0, 40, (BATCH, 6))
    path = exported(module, ids, tmp_path / "encoder.onnx", 18)
    imported = assert_same_as_torch(module, ids, path, 40, "tokens")
    kinds = [op.kind for op in imported.graph.ops]
    assert (kinds.count("attention"), kinds.count("narrow")) == (2, 0)
    assert "layer.1" in imported.graph.blocks


def test_a_residual_network_in_training_has_the_gradients_of_pytorch(tmp_path):
    module = randomised(networks.ResidualNet()).train()
    images = torch.randn(BATCH, 3, 16, 16)
    path = exported(module, images, tmp_path / "residual.onnx", 18, optimize=False)
    assert_same_as_torch(module, images, path, 5, "images")


def test_activations_have_the_gradients_of_pytorch(tmp_path):
    module = randomised(networks.Activations())
    features = torch.randn(BATCH, 12)
    path = exported(module, features, tmp_path / "mlp.onnx", 18)
    imported = assert_same_as_torch(module, features, path, 4, "features")
    kinds = {op.kind for op in imported.graph.ops}
    assert {"gelu_erf", "silu", "softplus", "leaky_relu", "tanh", "clip"} <= kinds


def test_a_vision_transformer_exported_for_one_image_has_the_gradients_of_pytorch(tmp_path):
    module = randomised(networks.Vit())
    images = torch.randn(1, 1, 8, 8)
    path = exported(module, images, tmp_path / "one.onnx", 18, open_batch=False)
    more = torch.randn(BATCH, 1, 8, 8)
    imported = assert_same_as_torch(module, more, path, 4, "images")
    assert sum(op.kind == "attention" for op in imported.graph.ops) == 1


def test_a_written_out_lstm_and_a_norm_of_one_plus_its_weight_have_its_gradients(tmp_path):
    module = randomised(networks.Recurrent())
    ids = torch.randint(0, 40, (BATCH, 4))
    path = tmp_path / "recurrent.onnx"
    exported(module, ids, path, 18, open_batch=False, optimize=False)
    imported = assert_same_as_torch(module, ids, path, 40, "tokens")
    assert "rms_norm" in {op.kind for op in imported.graph.ops}
    exported(module, ids, path, 18, open_batch=False)  # folds the sum into a weight of its own
    assert import_file(path).graph.parameter_count == imported.graph.parameter_count
